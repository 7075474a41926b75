"""What a caller may ask of the next-token distribution, checked once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.errors import UsageError

__all__ = [
    "DEFAULT_BREAKERS",
    "MIROSTAT_2",
    "NO_BREAKERS",
    "FilterArguments",
    "SamplingParameters",
    "is_greedy",
    "read_breakers",
]


NO_BREAKERS: Int32Array = np.zeros((0, 2), np.int32)
"""Breakers as tokens, see `penalties.breaker_table`: nothing but the window ends a repetition."""

DEFAULT_BREAKERS = ("\n", ":", '"', "*")
_NO_BREAKER = "none"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " "}
MIROSTAT_2 = 2
_LARGEST = 1e38  # nearly the largest float32
_LARGEST_PENALTY = 1e6  # times a logit or the tokens of a context it stays far below that


class FilterArguments(NamedTuple):
    """`SamplingParameters` in the form the kernels take: plain numbers and arrays.

    A filter that is off, or that Mirostat replaces, has the value that has no effect.
    """

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
    top_n_sigma: float
    dynatemp_range: float
    dynatemp_exponent: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_window: int
    dry_breakers: Int32Array
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float


def is_greedy(arguments: FilterArguments) -> bool:
    """Return whether p is one-hot at every prefix."""
    return arguments.temperature <= 0.0 and arguments.dynatemp_range <= 0.0


@dataclass(frozen=True)
class SamplingParameters:
    """Filters in the order of llama.cpp's sampler chain, with its defaults.

    Order: logit bias, penalties, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC,
    temperature. With Mirostat: logit bias, temperature, Mirostat, and nothing else.

    Attributes:
        temperature: divides the logits of the tokens that the filters left; 0 takes the most
            likely token.
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
        top_n_sigma: keep logits within so many standard deviations of the largest (Tang et al.
            2024); 0 or less is off.
        dynatemp_range: the temperature varies from temperature - range to temperature + range
            with the entropy of the candidates (also at temperature 0); 0 is off.
        dynatemp_exponent: bends that dependence; 1 is linear.
        dry_multiplier: of the DRY penalty, multiplier * base ** (length - allowed length), on
            tokens that would continue a repetition of that length; 0 is off.
        dry_base: the base in that formula; at least 1.
        dry_allowed_length: shorter repetitions are not penalized.
        dry_window: how many recent tokens DRY looks at; -1 is the whole context.
        dry_breakers: strings that end a repetition.
        xtc_probability: how often XTC removes the most likely tokens; 0 is off.
        xtc_threshold: XTC removes all tokens at least this likely except the least likely of
            them; above 0.5 is off.
        mirostat: 2 for Mirostat 2.0 (Basu et al. 2021) in place of every filter but bias and
            temperature; 0 is off.
        mirostat_tau: the surprise it aims at, in bits per token.
        mirostat_eta: how fast it adapts.

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
    top_n_sigma: float = -1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int = 64
    dry_breakers: tuple[str, ...] = DEFAULT_BREAKERS
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    def __post_init__(self) -> None:
        _require(self.temperature, "temperature", 0.0, math.inf, "0 or more")
        _require(self.top_k, "top-k", 0, 2**31 - 1, "0 (off) or more")
        _require(self.typical_p, "typical-p", 0.0, 1.0, "between 0 and 1 (off)")
        _require(self.top_p, "top-p", 0.0, 1.0, "between 0 and 1 (off)")
        _require(self.min_p, "min-p", 0.0, 1.0, "between 0 (off) and 1")
        most = _LARGEST_PENALTY
        _require(
            self.repeat_penalty, "repeat-penalty", 1 / most, most, "above 0, up to 1e6 (1 is off)"
        )
        for name in ("frequency", "presence"):
            penalty = getattr(self, f"{name}_penalty")
            _require(penalty, f"{name}-penalty", -most, most, "within +-1e6 (0 is off)")
        _require(self.penalty_window, "penalty window", -1, 2**31 - 1, "-1 (whole context) or more")
        _require(self.seed, "seed", 0, 2**64 - 1, "between 0 and 2**64 - 1")
        _require(self.top_n_sigma, "top-n-sigma", -math.inf, math.inf, "finite (0 is off)")
        _require(self.dynatemp_range, "dynatemp-range", 0.0, _LARGEST, "0 (off) or more")
        _require(self.dynatemp_exponent, "dynatemp-exponent", 0.0, _LARGEST, "0 or more")
        _require(self.dry_multiplier, "dry-multiplier", 0.0, _LARGEST, "0 (off) or more")
        _require(self.dry_base, "dry-base", 1.0, _LARGEST, "1 or more")
        _require(self.dry_allowed_length, "dry-allowed-length", 0, 2**31 - 1, "0 or more")
        _require(self.dry_window, "dry-window", -1, 2**31 - 1, "-1 (whole context) or more")
        _require(self.xtc_probability, "xtc-probability", 0.0, 1.0, "between 0 (off) and 1")
        _require(self.xtc_threshold, "xtc-threshold", 0.0, 1.0, "between 0 and 1")
        _require(self.mirostat_tau, "mirostat-tau", 0.0, _LARGEST, "0 or more")
        _require(self.mirostat_eta, "mirostat-eta", 0.0, _LARGEST, "0 or more")
        if self.mirostat not in (0, MIROSTAT_2):
            raise UsageError(f"mirostat is {self.mirostat}: it has to be 0 (off) or 2")
        if isinstance(self.dry_breakers, str):
            raise UsageError("the DRY breakers are one text: give a tuple of texts")
        if not all(self.dry_breakers):
            raise UsageError("a DRY breaker is empty: leave it out or give it a character")
        for token, bias in self.logit_bias.items():
            if token < 0 or not (bias == -math.inf or abs(bias) <= _LARGEST):
                raise UsageError(
                    f"logit bias of token {token} is {bias}: give a token id of 0 or more and a "
                    "number, or -inf to forbid the token"
                )

    @property
    def greedy(self) -> bool:
        """Whether p has a single token at every prefix."""
        return is_greedy(self.filter_arguments())

    @property
    def uses_dry(self) -> bool:
        """Whether DRY is on, so that the breakers are needed as tokens."""
        return self.mirostat == 0 and self.dry_multiplier > 0.0 and self.dry_window != 0

    def filter_arguments(self, breakers: Int32Array = NO_BREAKERS) -> FilterArguments:
        """Return these parameters in the kernels' form, with the breakers as tokens."""
        arguments = FilterArguments(
            temperature=float(self.temperature),
            top_k=int(self.top_k),
            typical_p=float(self.typical_p),
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repeat_penalty=float(self.repeat_penalty),
            frequency_penalty=float(self.frequency_penalty),
            presence_penalty=float(self.presence_penalty),
            penalty_window=int(self.penalty_window),
            bias_tokens=np.array(list(self.logit_bias), dtype=np.int32),
            bias_values=np.array(list(self.logit_bias.values()), dtype=np.float32),
            top_n_sigma=max(float(self.top_n_sigma), 0.0),
            dynatemp_range=float(self.dynatemp_range),
            dynatemp_exponent=float(self.dynatemp_exponent),
            xtc_probability=float(self.xtc_probability) if self.xtc_threshold <= 0.5 else 0.0,
            xtc_threshold=float(self.xtc_threshold),
            dry_multiplier=float(self.dry_multiplier),
            dry_base=float(self.dry_base),
            dry_allowed_length=int(self.dry_allowed_length),
            dry_window=int(self.dry_window),
            dry_breakers=breakers,
            mirostat=int(self.mirostat),
            mirostat_tau=float(self.mirostat_tau),
            mirostat_eta=float(self.mirostat_eta),
        )
        return arguments if self.mirostat == 0 else arguments._replace(**_REPLACED)


_REPLACED: dict[str, Any] = {
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dynatemp_range": 0.0,
    "xtc_probability": 0.0,
}
"""Filters that Mirostat replaces, turned off."""


def read_breakers(words: Sequence[str]) -> tuple[str, ...]:
    r"""Read breakers as users type them: ``\n``, ``\t``, ``\r``, ``\s`` (space), or "none"."""
    if tuple(words) == (_NO_BREAKER,):
        return ()
    return tuple(
        re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), word) for word in words
    )


def _require(value: float, name: str, low: float, high: float, allowed: str) -> None:
    """Refuse NaN, infinities and anything outside [low, high]."""
    if not (low <= value <= high) or math.isinf(value):
        raise UsageError(f"{name} is {value}: it has to be {allowed}")
