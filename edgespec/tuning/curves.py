"""What batches cost on other machines: believed until there are measurements of this one.

Each curve is the upper envelope of what was measured of four models in five caches ("Our own
kernels" of bench/README.md: SmolLM2-135M behind 256, 2,048 and 4,096 tokens, Gemma-3-270M and
Qwen2.5-Coder of 0.5B and 1.5B; AMD EPYC, Zen 3, AVX2, 2 threads). So most batches cost less than is
thought, and use corrects the curve, size by size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgespec.tuning.setting import Setting, SettingFigures

__all__ = ["published_figures"]

_SIZES = (1, 2, 3, 4, 6, 8, 16)
_PACKED = (1.0, 1.27, 1.63, 1.87, 3.09, 3.72, 6.98)
"""edgespec's kernels with AVX2. VNNI computes faster from the same memory: v is no larger there."""

_UNPACKING = (1.0, 1.85, 2.60, 3.35, 4.56, 6.24, 11.39)
"""llama.cpp's kernels; and ours on ARM, where they were run in an emulator only."""

_PLAIN = tuple(float(n) for n in _SIZES)
"""Without vector instructions, arithmetic is all that counts."""

_BYTES_PER_SECOND = 10e9
_PROMPT_SHARE = 0.25  # of a single token's time, for each of a prompt
_SWITCH_SHARE = 0.02  # of a single token's time, for planning a graph of another size
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
        switch_s=[_SWITCH_SHARE * seconds] * len(sizes),
        prefill_s=_PROMPT_SHARE * seconds,
        measured=False,
    )


def _curve(kernels: str, instruction_set: str | None) -> tuple[float, ...]:
    if kernels != "edgespec" or instruction_set is None:
        return _UNPACKING
    if instruction_set == "plain":
        return _PLAIN
    return _UNPACKING if instruction_set.startswith("neon") else _PACKED
