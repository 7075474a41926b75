"""One way to open a context, what was measured of it, and where that is kept."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgespec.backend import Context
from edgespec.control.costs import CostTable, make_cost_table
from edgespec.tuning.store import (
    forget_measurements,
    load_measurement,
    measurement_key,
    store_measurement,
)

__all__ = [
    "Setting",
    "SettingFigures",
    "find_setting",
    "forget_settings",
    "load_setting",
    "read_figures",
    "setting_of",
    "store_setting",
]


class Setting(NamedTuple):
    """One way to open a context."""

    threads: int
    flash_attention: bool
    repack: bool
    kv_type: str = "f16"
    kernels: str = "llama.cpp"

    @property
    def name(self) -> str:
        """Tells it from other settings."""
        flash = "flash" if self.flash_attention else "noflash"
        packed = "repack" if self.repack else "norepack"
        if self.kernels == "edgespec":
            packed = "edgespec"
        return f"{self.threads}t-{flash}-{packed}-{self.kv_type}"

    def as_json(self) -> dict[str, Any]:
        """What tuning decides: the type of the cache is the user's choice."""
        return {
            "threads": self.threads,
            "flash_attention": self.flash_attention,
            "repack": self.repack,
            "kernels": self.kernels,
        }


@dataclass(frozen=True)
class SettingFigures:
    """A setting, measured.

    Attributes:
        threads, flash_attention, repack, kv_type, kernels: how it was opened.
        identical: the largest n up to which every batch that was measured is bit-identical to
            single tokens.
        logit_difference, total_variation: the largest, over all batches that were measured.
        depths: tokens in the cache, ascending.
        sizes: tokens of the batches, 1, 2, 3 ... without a gap unless costs alone were measured.
        seconds: for each depth, the median seconds of a batch of each size.
        switch_s: for each size, seconds more after a batch of another size.
        prefill_s: seconds for each token of a prompt.
    """

    threads: int
    flash_attention: bool
    repack: bool
    kv_type: str
    identical: int
    logit_difference: float
    total_variation: float
    depths: list[int]
    sizes: list[int]
    seconds: list[list[float]]
    switch_s: list[float]
    prefill_s: float
    kernels: str = "llama.cpp"

    @property
    def setting(self) -> Setting:
        """How it was opened."""
        return Setting(self.threads, self.flash_attention, self.repack, self.kv_type, self.kernels)

    @property
    def name(self) -> str:
        """The setting's."""
        return self.setting.name

    def block_s(self, n: int) -> float:
        """Return the seconds of a batch of n tokens at the greatest depth."""
        return float(np.interp(n, self.sizes, self.seconds[-1]))

    def cost_table(self, largest: int) -> CostTable:
        """Return the table for the controller, with columns up to `largest` tokens."""
        return make_cost_table(self.depths, self.sizes, self.seconds, self.switch_s, largest)

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        return asdict(self)


def read_figures(data: Any) -> SettingFigures | None:
    """Read `SettingFigures.as_json`; None if it is damaged, or of another version."""
    try:
        figures = SettingFigures(**data)
        seconds = np.array(figures.seconds, np.float64)
        others = np.array([*figures.switch_s, figures.prefill_s], np.float64)
        sane = (
            seconds.shape == (len(figures.depths), len(figures.sizes))
            and len(figures.switch_s) == len(figures.sizes) > 0
            and figures.sizes[0] == 1
            and bool((np.diff(figures.sizes) > 0).all() and (np.diff(figures.depths) > 0).all())
            and 0 <= figures.identical <= figures.sizes[-1]
            and bool((seconds > 0).all() and np.isfinite(seconds).all())
            and bool((others >= 0).all() and np.isfinite(others).all())
            and math.isfinite(figures.logit_difference + figures.total_variation)
        )
    except (TypeError, ValueError):
        return None
    return figures if sane else None


def setting_of(context: Context) -> Setting:
    """Return the setting that a context was opened in."""
    options, model = context.options, context.model
    return Setting(
        options.threads,
        options.flash_attention,
        model.options.repack,
        options.kv_type,
        model.kernels,
    )


def load_setting(context: Context, needed: int = 1) -> SettingFigures | None:
    """Return what was measured in a context like this one, for batches of `needed` tokens."""
    return find_setting(context.model.path, setting_of(context).name, needed)


def find_setting(model: Path, name: str, needed: int = 1) -> SettingFigures | None:
    """Return it by the setting's name; what `edgespec tune` measured goes first."""
    for tuned in (True, False):
        figures = read_figures(load_measurement(_key(model, name, tuned)))
        if figures is not None and figures.sizes[-1] >= needed:
            return figures
    return None


def store_setting(model: Path, figures: SettingFigures, *, tuned: bool = False) -> None:
    """Keep what was measured, beside what was `tuned`, never in its place."""
    store_measurement(_key(model, figures.name, tuned), figures.as_json())


def forget_settings(model: Path, *, tuned: bool = True) -> None:
    """Remove what was measured of this file: all of it, or only what was not `tuned`."""
    for kind in (True, False) if tuned else (False,):
        forget_measurements(_key(model, "*", kind))


def _key(model: Path, name: str, tuned: bool) -> str:
    kind = "tuned" if tuned else "setting"
    return f"{kind}-{measurement_key(model, {})}-{name}"
