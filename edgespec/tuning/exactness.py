"""How a target's context is opened: settings exact bit for bit or faster, and whose kernels.

``bitwise`` settings evaluate batches without llama.cpp's flash attention (ours is exact) and are
measured: a block never holds more tokens than were bit-identical to single ones on this machine.
``distribution`` may turn it on; logits then differ in their last bits, which is reported.
``auto`` is bitwise where this build can be, unless `edgespec tune` found that it costs too much.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgespec.backend import ModelOptions, formats_of, kernel_status, time_formats
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.tuning.setting import (
    Setting,
    SettingFigures,
    build_facts,
    forget_measurements,
    load_measurement,
    store_measurement,
)

__all__ = [
    "ENOUGH_PROVED",
    "PLAIN",
    "Exactness",
    "choose_exactness",
    "exactness_of",
    "fast_options",
    "faster_formats",
    "forget_choice",
    "published_figures",
    "relative_cost",
    "remember_choice",
    "usual_kernels",
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


_TOKEN, _BLOCK, _PROMPT = 1, 4, 32
_SECONDS = 0.2
"""For a format, in any case one look at each of the rivals."""

_WORTH = 1.05
"""Where both are about as fast, ours: their batches are bit-identical to single tokens."""

_PROMPT_SHARE = 1 / 8
"""Of an answer's evaluations a prompt's are few, but long."""


def faster_formats(header: GGUFHeader) -> frozenset[str]:
    """Return the types of tensors that our kernels multiply faster; measure what is unknown."""
    if kernel_status().instruction_set is None:
        return frozenset()
    return frozenset(name for name in formats_of(header) if _faster(name))


def fast_options(file: Path, threads: int) -> ModelOptions:
    """Return how to open a file so that the kernels that are faster here multiply its weights."""
    return ModelOptions(faster_formats(read_header(file)), threads)


def usual_kernels(header: GGUFHeader) -> str:
    """Say whose kernels multiply most of a file's weights where the user left it open."""
    return "edgespec" if faster_formats(header) else "llama.cpp"


def _faster(name: str) -> bool:
    key = _key(name)
    known = _verdict(key)
    if known is None:
        columns = (_TOKEN, _BLOCK, _PROMPT)
        times = time_formats([name], threads=1, columns=columns, seconds=_SECONDS).get(name)
        if times is None:
            return False
        ours, theirs = _score(times.ours), _score(times.theirs)
        known = _verdict(key)  # another process may have measured meanwhile: one verdict for all
        if known is None:
            store_measurement(key, {"format": name, "ours_s": ours, "theirs_s": theirs})
            known = ours <= _WORTH * theirs
    return known


def _verdict(key: str) -> bool | None:
    stored = load_measurement(key) or {}
    ours, theirs = stored.get("ours_s"), stored.get("theirs_s")
    if not isinstance(ours, float) or not isinstance(theirs, float):
        return None
    return ours <= _WORTH * theirs


def _score(seconds: dict[int, float]) -> float:
    return seconds[_TOKEN] + seconds[_BLOCK] + _PROMPT_SHARE * seconds[_PROMPT]


def _key(name: str) -> str:
    facts = [*build_facts(), kernel_status().instruction_set, name]
    return "kernels-" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


# -- what batches cost before they were measured here ------------------------------------------
#
# Each curve is the upper envelope of what was measured of four models in five caches ("Our own
# kernels" of bench/README.md: SmolLM2-135M behind 256, 2,048 and 4,096 tokens, Gemma-3-270M and
# Qwen2.5-Coder of 0.5B and 1.5B; AMD EPYC, Zen 3, AVX2, 2 threads). So most batches cost less than
# is thought, and use corrects the curve, size by size.

_SIZES = (1, 2, 3, 4, 6, 8, 16)
_PACKED = (1.0, 1.27, 1.63, 1.87, 3.09, 3.72, 6.98)
"""edgespec's kernels with AVX2. VNNI computes faster from the same memory: v is no larger there."""

_PACKED_512 = (1.0, 1.10, 1.18, 1.28, 1.55, 2.0, 3.7)
"""edgespec's kernels with AVX-512 VNNI: the same models at 256 tokens (AMD EPYC, Zen 4)."""

_UNPACKING = (1.0, 1.85, 2.60, 3.35, 4.56, 6.24, 11.39)
"""llama.cpp's kernels; and ours on ARM, where they were run in an emulator only."""

_PLAIN = tuple(float(n) for n in _SIZES)
"""Without vector instructions, arithmetic is all that counts."""

_BYTES_PER_SECOND = 10e9
_PROMPT_TOKEN = 0.25  # of a single token's time, for each of a prompt
_PLANNING_S = 0.5e-3  # of a graph of another size, with 30 layers: 0.5 to 0.6 ms of 4.2
_DEPTH = 256


def published_figures(
    model: Path,
    setting: Setting,
    instruction_set: str | None,
    largest: int,
    identical: int,
    token_s: float | None = None,
) -> SettingFigures:
    """Return the figures of a setting that was not measured.

    Args:
        model: whose size tells about how long a token takes where `token_s` is not known.
        instruction_set: that our kernels use; None if they cannot be used.
        largest: tokens of the largest batch.
        identical: up to how many tokens batches are known to be bit-identical to single tokens.
    """
    seconds = token_s or model.stat().st_size / _BYTES_PER_SECOND
    sizes = list(range(1, max(largest, _SIZES[-1]) + 1))
    curve = _curve(setting.kernels, instruction_set)
    slope = (curve[-1] - curve[-2]) / (_SIZES[-1] - _SIZES[-2])
    v = [float(np.interp(n, _SIZES, curve)) + slope * max(0, n - _SIZES[-1]) for n in sizes]
    return SettingFigures(
        **setting._asdict(),
        identical=min(identical, sizes[-1]),
        logit_difference=0.0,
        total_variation=0.0,
        depths=[_DEPTH],
        sizes=sizes,
        seconds=[[seconds * cost for cost in v]],
        switch_s=[_PLANNING_S] * len(sizes),
        prefill_s=_PROMPT_TOKEN * seconds,
        measured=False,
    )


def _curve(kernels: str, instruction_set: str | None) -> tuple[float, ...]:
    if kernels != "edgespec" or instruction_set is None:
        return _UNPACKING
    if instruction_set == "plain":
        return _PLAIN
    if instruction_set == "avx512-vnni":
        return _PACKED_512
    return _UNPACKING if instruction_set.startswith("neon") else _PACKED
