"""How a target's context is opened: settings that are exact bit for bit, or faster ones.

``bitwise`` settings evaluate batches without flash attention and are measured: a block never
holds more tokens than were bit-identical to single ones on this machine. ``distribution`` may
turn flash attention on; logits then differ in their last bits, and the difference is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgespec.backend import Context
from edgespec.tuning.invariance import measure_invariance
from edgespec.tuning.store import load_measurement, measurement_key, store_measurement

__all__ = [
    "PLAIN",
    "Exactness",
    "SettingFigures",
    "choose_exactness",
    "measure_setting",
    "remember_choice",
]

AFFORDABLE = 1.05
"""What bit-identity may cost before ``auto`` gives it up: the ratio of the times of a block."""

_DEPTHS = (40, 320)  # below and above the 256 tokens up to which flash attention rounds alike
_REPETITIONS = 5
_TEXT = (
    "The ferry leaves at six, whatever the weather. In 1913 the old pier burned down; nobody knew "
    "why. for i in range(10): print(i * i) - a list: salt, rope, tar, 14 nails. "
)


@dataclass(frozen=True)
class SettingFigures:
    """One way to open a context, measured.

    Attributes:
        flash_attention: whether it is on.
        identical: the largest batch that is bit-identical to single tokens, in tokens.
        logit_difference, total_variation: the largest, over all batches that were measured.
        block_s: seconds that a batch of k + 1 tokens takes at some 320 tokens of context.
    """

    flash_attention: bool
    identical: int
    logit_difference: float
    total_variation: float
    block_s: float


@dataclass(frozen=True)
class Exactness:
    """What was chosen.

    Attributes:
        mode: "bitwise" or "distribution".
        setting: its figures; None when nothing is speculated and nothing had to be measured.
        largest_k: the longest block of proposals that keeps the promise.
        reason: one line for the user.
    """

    mode: Literal["bitwise", "distribution"]
    setting: SettingFigures | None
    largest_k: int
    reason: str

    @property
    def flash_attention(self) -> bool:
        """How the context is to be opened."""
        return self.setting is not None and self.setting.flash_attention

    def as_json(self) -> dict[str, Any]:
        """The ``exactness`` object of ``edgespec run --json``."""
        figures = asdict(self.setting) if self.setting else {}
        figures.pop("block_s", None)
        return {"mode": self.mode, "reason": self.reason, **figures}


PLAIN = Exactness("bitwise", None, 0, "nothing is speculated")
"""What holds without speculation: plain decoding is what everything is compared with."""


def choose_exactness(
    wanted: str, k: int, exact: Callable[[], SettingFigures], fast: Callable[[], SettingFigures]
) -> Exactness:
    """Decide from measurements; only what is needed is measured.

    Args:
        wanted: "auto", "bitwise" or "distribution".
        k: block length that is going to be used.
        exact, fast: measure without and with flash attention.
    """
    slow = exact()
    if wanted == "bitwise":
        return _bitwise(slow, k)
    quick = fast()
    cost = slow.block_s / quick.block_s
    if wanted == "auto" and slow.identical > k and cost <= AFFORDABLE:
        return _bitwise(slow, k)
    best = quick if cost > 1 else slow
    if best.identical > k:
        return _bitwise(best, k)
    return Exactness(
        "distribution",
        best,
        k,
        f"bit-identical batches would take {cost:.2f} times as long: logits may differ by up to "
        f"{best.logit_difference:.2g} from those of single tokens"
        if best is quick
        else f"batches of this build are bit-identical up to {best.identical} tokens only",
    )


def _bitwise(figures: SettingFigures, k: int) -> Exactness:
    largest = min(k, figures.identical - 1)
    reason = f"batches of up to {figures.identical} tokens are bit-identical to single tokens"
    if largest < k:
        reason += f": blocks are cut to {largest} proposals"
    return Exactness("bitwise", figures, largest, reason)


def remember_choice(model: str, exactness: Exactness) -> None:
    """Keep what was chosen for a model, for `edgespec doctor`."""
    if exactness.setting is not None:
        name = re.sub(r"[^\w.-]", "_", model)[:100]
        store_measurement(f"choice-{name}", {"model": model, **exactness.as_json()})


def measure_setting(context: Context, k: int) -> SettingFigures:
    """Measure an open context, or remember what was measured on it before.

    Args:
        context: opened for k + 1 rows of output; its content is lost.
        k: block length.
    """
    options = context.options
    key = measurement_key(
        context.model.path,
        {
            "flash_attention": options.flash_attention,
            "threads": options.threads,
            "kv_type": options.kv_type,
            "repack": context.model.options.repack,
            "k": k,
            "room": min(context.capacity, max(_DEPTHS) + k + 1),
        },
    )
    stored = load_measurement(key)
    if stored is not None:
        try:
            return SettingFigures(**stored)
        except TypeError:
            pass  # written by another version: measured anew
    figures = _measure(context, k)
    store_measurement(key, asdict(figures))
    return figures


def _measure(context: Context, k: int) -> SettingFigures:
    text = context.model.vocabulary.tokenize(_TEXT * 12)
    depths = list(measure_invariance(context, text, _DEPTHS, k + 1))
    differences = [d for depth in depths for d in depth.differences]
    return SettingFigures(
        flash_attention=context.options.flash_attention,
        identical=min(depth.identical for depth in depths),
        logit_difference=max(d.logit for d in differences),
        total_variation=max(d.variation for d in differences),
        block_s=_block_time(context, text, depths[-1].depth, k),
    )


def _block_time(context: Context, text: npt.NDArray[np.int32], depth: int, k: int) -> float:
    context.prefill(text[:depth])
    times = []
    for _ in range(_REPETITIONS):
        started = perf_counter()
        context.evaluate(text[depth : depth + k + 1], k + 1)
        times.append(perf_counter() - started)
        context.truncate(depth)
        context.prefill(text[context.length : depth])
    context.clear()
    return float(np.median(times))
