"""How a target's context is opened: settings that are exact bit for bit, or faster ones.

``bitwise`` settings evaluate batches without llama.cpp's flash attention (ours is exact) and are
measured: a block never holds more tokens than were bit-identical to single ones on this machine.
``distribution`` may turn it on; logits then differ in their last bits, which is reported.
``auto`` is bitwise where this build can be, unless `edgespec tune` found that it costs too much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgespec.tuning.setting import (
    SettingFigures,
    forget_measurements,
    store_measurement,
)

__all__ = [
    "ENOUGH_PROVED",
    "PLAIN",
    "Exactness",
    "choose_exactness",
    "exactness_of",
    "forget_choice",
    "relative_cost",
    "remember_choice",
]

_TYPICAL_BLOCK = 4
"""Tokens of the batch whose times are compared."""

ENOUGH_PROVED = _TYPICAL_BLOCK
"""Tokens of a batch. If there was no time to compare even these, it is tried again."""


@dataclass(frozen=True)
class Exactness:
    """What was chosen.

    Attributes:
        mode: "bitwise" or "distribution"; "lossy" under a rule that does not keep the distribution.
        setting: its figures; None when nothing is speculated and nothing had to be measured.
        largest_k: the longest block of proposals that keeps the promise.
        reason: one line for the user.
    """

    mode: Literal["bitwise", "distribution", "lossy"]
    setting: SettingFigures | None
    largest_k: int
    reason: str

    @property
    def flash_attention(self) -> bool:
        """Whether the context is to be opened with flash attention."""
        return self.setting is not None and self.setting.flash_attention

    def under_lossy_rule(self) -> Exactness:
        """Return what is left of it for an answer by typical acceptance."""
        reason = (
            "typical acceptance emits any proposal that the model finds likely enough: texts are "
            "not distributed as without speculation"
        )
        return replace(self, mode="lossy", reason=reason)

    def as_json(self) -> dict[str, Any]:
        """Return the ``exactness`` object of ``edgespec run --json``."""
        report: dict[str, Any] = {"mode": self.mode, "reason": self.reason}
        if self.setting is not None:
            report |= {name: getattr(self.setting, name) for name in _REPORTED}
        return report


_REPORTED = ("flash_attention", "identical", "logit_difference", "total_variation")

PLAIN = Exactness("bitwise", None, 0, "nothing is speculated")
"""What holds without speculation: plain decoding is what everything is compared with."""


def choose_exactness(
    wanted: str,
    k: int,
    exact: Callable[[], SettingFigures],
    fast: Callable[[], SettingFigures | None],
    *,
    adaptive: bool = False,
) -> Exactness:
    """Decide from what is known; only what is needed is looked at.

    Args:
        wanted: "auto", "bitwise" or "distribution".
        k: block length that is going to be used.
        exact, fast: what is known without and with flash attention; None if nothing is.
        adaptive: k is only the most, and shorter blocks will do.
    """
    slow = exact()
    enough = min(k, _TYPICAL_BLOCK) if adaptive else k
    careful = slow.identical > enough or slow.uncompared
    if wanted == "bitwise" or (wanted == "auto" and careful):
        return exactness_of("bitwise", k, slow)
    quick = fast()
    if quick is None:
        return exactness_of(wanted, k, slow)
    cost = relative_cost(slow, quick)
    chosen = exactness_of("auto", k, quick if cost > 1 else slow)
    if chosen.mode == "distribution" and cost > 1:
        note = f"bit-identical batches would take {cost:.2f} times as long: "
        return replace(chosen, reason=note + chosen.reason)
    return chosen


def relative_cost(one: SettingFigures, other: SettingFigures) -> float:
    """Return how many times as long one takes; single tokens and a typical block count alike."""
    n = min(_TYPICAL_BLOCK, one.sizes[-1], other.sizes[-1])
    ratio = one.block_s(1) / other.block_s(1) * one.block_s(n) / other.block_s(n)
    return math.sqrt(ratio)


def exactness_of(
    wanted: str, k: int, figures: SettingFigures, *, adaptive: bool = False
) -> Exactness:
    """Return what holds in this setting: "bitwise" if it is wanted, or is so anyway.

    Args:
        adaptive: shorter blocks than k will do, so that "auto" is bitwise for their sake.
    """
    enough = min(k, _TYPICAL_BLOCK) if adaptive and wanted == "auto" else k
    careful = wanted == "auto" and figures.uncompared
    if wanted == "bitwise" or figures.identical > enough or careful:
        return _bitwise(figures, k)
    if figures.uncompared:
        reason = f"batches of more than {figures.identical} tokens were not compared yet"
        return Exactness("distribution", figures, min(k, figures.sizes[-1] - 1), reason)
    return Exactness(
        "distribution",
        figures,
        min(k, figures.sizes[-1] - 1),
        f"batches are bit-identical up to {figures.identical} tokens only, logits of longer ones "
        f"differ by up to {figures.logit_difference:.2g} from those of single tokens",
    )


def _bitwise(figures: SettingFigures, k: int) -> Exactness:
    largest = max(0, min(k, figures.identical - 1))
    reason = f"batches of up to {figures.identical} tokens are bit-identical to single tokens"
    if largest < k:
        reason += ", larger ones were not compared yet" if figures.uncompared else ""
        reason += f": blocks are cut to {largest} proposals"
    return Exactness("bitwise", figures, largest, reason)


def remember_choice(model: str, exactness: Exactness) -> None:
    """Keep what was chosen for a model, for `edgespec doctor`."""
    if exactness.setting is not None:
        store_measurement(_choice_key(model), {"model": model, **exactness.as_json()})


def forget_choice(model: str) -> None:
    """Remove it."""
    forget_measurements(_choice_key(model))


def _choice_key(model: str) -> str:
    name = re.sub(r"[^\w.-]", "_", model)[:100]
    return f"choice-{name}"
