"""One way to open a context, what was measured of it, and the small JSON files that keep it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgespec.backend import Context, ContextOptions, Model, capabilities
from edgespec.control.costs import CostTable, make_cost_table
from edgespec.files import cache_root, read_at_most, replace_file

__all__ = [
    "Setting",
    "SettingFigures",
    "build_facts",
    "find_setting",
    "forget_measurements",
    "forget_settings",
    "load_measurement",
    "load_setting",
    "measurement_key",
    "read_figures",
    "setting_of",
    "store_measurement",
    "store_setting",
    "stored_choices",
    "stored_measurements",
]

_log = logging.getLogger("edgespec.tuning")

_VERSION = 3
_SAMPLE = 1 << 20
_MOST_BYTES = 4 << 20

_MOST_COST = 1.5
"""Of a batch, in as many single tokens: one that costs more was measured beside other programs."""


def build_facts() -> list[Any]:
    """Return what measurements depend on beside the model: versions, processor, build."""
    build = capabilities()
    processor = [platform.machine(), _processor()]
    return [_VERSION, *processor, build.binding, sorted(build.features)]


def measurement_key(model: Path, settings: dict[str, Any]) -> str:
    """Return a name that changes with processor, build, model file and settings.

    The file's beginning, end and size stand for its content: hashing gigabytes at every start
    would take longer than what it saves.
    """
    digest = hashlib.sha256()
    facts = [*build_facts(), model.stat().st_size, sorted(settings.items())]
    digest.update(json.dumps(facts).encode())
    with model.open("rb") as file:
        digest.update(file.read(_SAMPLE))
        file.seek(max(0, model.stat().st_size - _SAMPLE))
        digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:32]


def load_measurement(key: str) -> dict[str, Any] | None:
    """Return what was stored under this key; None if there is nothing readable.

    A file that nests too deeply was not written here, and is removed.
    """
    path = _path(key)
    try:
        data = json.loads(read_at_most(path, _MOST_BYTES))
    except (OSError, ValueError):
        return None
    except RecursionError:
        _log.warning("%s is damaged and was removed", path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return data if isinstance(data, dict) else None


def store_measurement(key: str, data: dict[str, Any]) -> None:
    """Keep a measurement; a folder that cannot be written costs only measuring again."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(data, indent=2) + "\n").encode())
    except OSError as error:
        _log.info("the measurement cannot be kept: %s", error)


def forget_measurements(pattern: str) -> None:
    """Remove what is stored under keys like this one, in which * stands for anything."""
    for path in _folder().glob(f"{pattern}.json"):
        with contextlib.suppress(OSError):
            path.unlink()


def stored_measurements(pattern: str) -> dict[str, dict[str, Any]]:
    """Return what is stored under keys like this one, in which * stands for anything."""
    keys = (path.stem for path in sorted(_folder().glob(f"{pattern}.json")))
    found = {key: load_measurement(key) for key in keys}
    return {key: data for key, data in found.items() if data is not None}


def stored_choices() -> list[dict[str, Any]]:
    """Return what was chosen for each model that was opened here."""
    return list(stored_measurements("choice-*").values())


def _folder() -> Path:
    return cache_root() / "measurements"


def _path(key: str) -> Path:
    return _folder() / f"{key}.json"


def _processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith(("model name", "CPU part", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


class Setting(NamedTuple):
    """One way to open a context."""

    threads: int
    flash_attention: bool
    repack: bool
    kv_type: str = "f16"
    kernels: str = "llama.cpp"

    @property
    def name(self) -> str:
        """A name that tells it from other settings."""
        flash = "flash" if self.flash_attention else "noflash"
        packed = "repack" if self.repack else "norepack"
        if self.kernels == "edgespec":
            packed = "edgespec"
        return f"{self.threads}t-{flash}-{packed}-{self.kv_type}"

    def as_json(self) -> dict[str, Any]:
        """Return what tuning decides; the type of the cache is the user's choice."""
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
        measured: whether the costs were measured here; otherwise they are of other machines
            (`published_figures`), corrected by use, and no batch beyond `identical` was
            compared unless `logit_difference` says so.
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
    measured: bool = True

    @property
    def setting(self) -> Setting:
        """The setting that was measured."""
        return Setting(self.threads, self.flash_attention, self.repack, self.kv_type, self.kernels)

    @property
    def name(self) -> str:
        """The name of the setting."""
        return self.setting.name

    @property
    def uncompared(self) -> bool:
        """Whether larger batches may be bit-identical to single tokens too: nobody looked."""
        return self.identical < self.sizes[-1] and self.logit_difference == 0.0

    def block_s(self, n: int) -> float:
        """Return the seconds of a batch of n tokens at the greatest depth."""
        return float(np.interp(n, self.sizes, self.seconds[-1]))

    def cost_table(self, largest: int) -> CostTable:
        """Return the table for the controller, with columns up to `largest` tokens."""
        return make_cost_table(
            self.depths,
            self.sizes,
            self.seconds,
            self.switch_s,
            largest,
            measured=self.measured,
        )

    def at_speed(self, token_s: float) -> SettingFigures:
        """Return them for a machine that takes so long for a single token."""
        factor = token_s / self.seconds[0][0]
        return replace(
            self,
            seconds=[[factor * each for each in row] for row in self.seconds],
            switch_s=[factor * each for each in self.switch_s],
            prefill_s=factor * self.prefill_s,
        )

    def corrected(self, costs: CostTable) -> SettingFigures:
        """Return them with what use taught a table that was made from them."""
        factors = np.exp(costs.drift[0] + costs.shape)
        known = [n for n in self.sizes if n <= costs.largest]
        seconds = np.maximum.accumulate(costs.seconds[:, known] * factors[known], axis=1)
        return replace(
            self,
            sizes=known,
            seconds=seconds.tolist(),
            switch_s=self.switch_s[: len(known)],
            identical=min(self.identical, known[-1]),
        )

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
            and bool((seconds <= _MOST_COST * seconds[:, :1] * figures.sizes).all())
            and math.isfinite(figures.logit_difference + figures.total_variation)
        )
    except (TypeError, ValueError):
        return None
    return figures if sane else None


def setting_of(model: Model, options: ContextOptions) -> Setting:
    """Return the setting that a context is opened in with these options."""
    return Setting(
        options.threads,
        options.flash_attention,
        model.options.repack,
        options.kv_type,
        model.kernels,
    )


def load_setting(context: Context, needed: int = 1) -> SettingFigures | None:
    """Return what was measured in a context like this one, for batches of `needed` tokens."""
    return find_setting(context.model.path, setting_of(context.model, context.options).name, needed)


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


def forget_settings(model: Path, name: str = "*") -> None:
    """Remove what was measured of this file, tuned or not: all of it, or of one setting."""
    for tuned in (True, False):
        forget_measurements(_key(model, name, tuned))


def _key(model: Path, name: str, tuned: bool) -> str:
    kind = "tuned" if tuned else "setting"
    return f"{kind}-{measurement_key(model, {})}-{name}"
