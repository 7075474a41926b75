"""What a caller may ask of the next-token distribution, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.errors import UsageError

__all__ = ["FilterArguments", "SamplingParameters"]

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


class FilterArguments(NamedTuple):
    """`SamplingParameters` in the form the kernels take: plain numbers and two arrays."""

    temperature: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_window: int
    bias_tokens: Int32Array
    bias_values: Float32Array


@dataclass(frozen=True)
class SamplingParameters:
    """Filters in the order of llama.cpp's sampler chain, with its defaults.

    Order: logit bias, penalties, top-k, typical-p, top-p, min-p, temperature.

    Attributes:
        temperature: divides the logits of what the filters left; 0 takes the most likely token.
        top_k: keep the k most likely tokens; 0 keeps all.
        typical_p: locally typical sampling (Meister et al. 2022); 1 turns it off.
        top_p: keep the smallest set of most likely tokens with this mass; 1 turns it off.
        min_p: keep tokens at least this likely, relative to the most likely one; 0 turns it off.
        repeat_penalty: divides positive, multiplies negative logits of recent tokens; 1 is off.
        frequency_penalty: subtracted once for every recent occurrence; 0 is off.
        presence_penalty: subtracted once from a token that occurred recently; 0 is off.
        penalty_window: how many recent tokens the penalties see; -1 is the whole context.
        logit_bias: token id -> number added to its logit; ``-inf`` forbids the token.
        seed: of every draw, 0 to 2**64 - 1.

    Raises:
        UsageError: a value is NaN or outside its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    typical_p: float = 1.0
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.temperature, "temperature", 0.0, math.inf, "0 or more")
        _require(self.top_k, "top-k", 0, 2**31 - 1, "0 (off) or more")
        _require(self.typical_p, "typical-p", 0.0, 1.0, "between 0 and 1 (off)")
        _require(self.top_p, "top-p", 0.0, 1.0, "between 0 and 1 (off)")
        _require(self.min_p, "min-p", 0.0, 1.0, "between 0 (off) and 1")
        _require(self.repeat_penalty, "repeat-penalty", 1e-6, math.inf, "above 0 (1 is off)")
        _require(self.frequency_penalty, "frequency-penalty", -math.inf, math.inf, "finite")
        _require(self.presence_penalty, "presence-penalty", -math.inf, math.inf, "finite")
        _require(self.penalty_window, "penalty window", -1, 2**31 - 1, "-1 (whole context) or more")
        _require(self.seed, "seed", 0, 2**64 - 1, "between 0 and 2**64 - 1")
        for token, bias in self.logit_bias.items():
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise UsageError(
                    f"logit bias of token {token} is {bias}: give a token id of 0 or more and a "
                    "number, or -inf to forbid the token"
                )

    def filter_arguments(self) -> FilterArguments:
        """The kernels' form of these parameters."""
        return FilterArguments(
            float(self.temperature),
            int(self.top_k),
            float(self.typical_p),
            float(self.top_p),
            float(self.min_p),
            float(self.repeat_penalty),
            float(self.frequency_penalty),
            float(self.presence_penalty),
            int(self.penalty_window),
            np.array(list(self.logit_bias), dtype=np.int32),
            np.array(list(self.logit_bias.values()), dtype=np.float32),
        )


def _require(value: float, name: str, low: float, high: float, allowed: str) -> None:
    """Refuse NaN, infinities and anything outside [low, high]."""
    if not (low <= value <= high) or math.isinf(value):
        raise UsageError(f"{name} is {value}: it has to be {allowed}")
