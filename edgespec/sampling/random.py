"""Counter-based randomness: a draw depends on (seed, position, purpose) and on nothing else.

The mixing function is the finalizer of SplitMix64 (Steele, Lea and Flood 2014), applied to a
Weyl sequence over each counter. No state is carried: a position that is drafted, rejected and
drafted again sees the same number, whatever the drafter or the block length.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel

__all__ = [
    "PURPOSE_ACCEPT",
    "PURPOSE_DRAFT",
    "PURPOSE_NOISE",
    "PURPOSE_TARGET",
    "PURPOSE_XTC",
    "noise_uniform",
    "race",
    "stream",
    "uniform",
]

PURPOSE_TARGET = 1  # draws from p or from the residual
PURPOSE_DRAFT = 2  # draws from q
PURPOSE_ACCEPT = 3  # the acceptance test
PURPOSE_NOISE = 4  # Gumbel noise shared by draft and target
PURPOSE_XTC = 5  # whether the most likely tokens are excluded

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


@kernel
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    mixed: np.uint64 = x ^ (x >> np.uint64(31))
    return mixed


@kernel
def _unit(x: np.uint64) -> float:
    # The half step keeps 0 and 1 out, so that log(u) is always finite.
    return (float(x >> np.uint64(11)) + 0.5) * _TO_UNIT


@kernel
def stream(seed: int, position: int, purpose: int) -> np.uint64:
    """Return the 64-bit key of one draw: uint64 from (seed, position, purpose).

    The seed is an int64 with the bits of the user's unsigned number, so that all calls have the
    same signature.
    """
    key = _mix(np.uint64(seed) + _WEYL)
    key = _mix(key + (np.uint64(position) + np.uint64(1)) * _WEYL)
    return _mix(key + (np.uint64(purpose) + np.uint64(1)) * _WEYL)


@kernel
def uniform(seed: int, position: int, purpose: int) -> float:
    """Return one float64 in the open interval (0, 1)."""
    return _unit(stream(seed, position, purpose))


@kernel
def noise_uniform(key: np.uint64, token: int) -> float:
    """Return the uniform number behind a token's noise under a `stream` key: float64 in (0, 1)."""
    return _unit(_mix(key + (np.uint64(token) + np.uint64(1)) * _WEYL))


@kernel
def race(weights: Float32Array, tokens: Int32Array, count: int, key: np.uint64) -> int:
    """Return the winner of an exponential race: argmax of log w(v) + Gumbel(key, v).

    Gumbel-max (Gumbel 1954) in its exponential form: E(v) = -log u(v) is exponential, and
    argmin E(v) / w(v) is distributed as w normalized. Two distributions raced under one key
    agree with probability at least (1 - TV) / (1 + TV) (Daliri et al. 2024).

    Args:
        weights: float32 (n_vocab,), non-negative, normalized or not.
        tokens: int32, the tokens that may have weight, in its first `count` entries.
        count: how many tokens to look at.
        key: from `stream`.
    """
    best, winner = math.inf, -1
    for i in range(count):
        token = tokens[i]
        weight = weights[token]
        if weight <= 0.0:
            continue
        u = noise_uniform(key, token)
        # -log(u) >= 1 - u: most tokens lose on this bound and need no logarithm.
        if (1.0 - u) >= best * weight:
            continue
        arrival = -math.log(u) / weight
        if arrival < best:
            best, winner = arrival, token
    return winner
