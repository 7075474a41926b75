"""E(k) / C(k): the tokens that a cycle of k proposals is expected to emit, over what it costs.

Proposals that are accepted with probabilities a1, a2 ... one after the other give
E(k) = 1 + a1 + a1 a2 + ... + a1...ak tokens (Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding", equation 1, with a probability for each position), at a
cost of C(k) = v(k + 1) + k c single-token evaluations (theorem 3.8, with measured costs).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

__all__ = [
    "ExpectedSpeedup",
    "continued",
    "expected_speedups",
    "fastest",
    "tokens_by_length",
    "with_one_more",
]

Number = TypeVar("Number", float, Fraction)


def with_one_more(tokens: Number, survival: Number, acceptance: Number) -> tuple[Number, Number]:
    """Return E(k + 1) and the probability that all k + 1 are accepted, from those of k.

    Args:
        acceptance: probability that the next proposal is accepted if all before it are.
    """
    survival = survival * acceptance
    return tokens + survival, survival


def tokens_by_length(acceptance: Sequence[Number], one: Number) -> list[Number]:
    """Return E(0), E(1) ... up to as many proposals as there are probabilities.

    Args:
        one: 1 in the arithmetic that is wanted.
    """
    found, survival = [one], one
    for rate in acceptance:
        tokens, survival = with_one_more(found[-1], survival, rate)
        found.append(tokens)
    return found


class ExpectedSpeedup(NamedTuple):
    """A cycle of k proposals: expected tokens, and cost in single-token evaluations."""

    k: int
    tokens: float
    cost: float

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.tokens / self.cost


def expected_speedups(
    alpha: Sequence[float], v: Sequence[float], c: float
) -> list[ExpectedSpeedup]:
    """Return E(k) and C(k) for k = 0 up to as many as there are probabilities.

    Args:
        alpha: of each position if all before it are accepted.
        v: v(1), v(2), ... at least one more.
        c: cost of a draft step.
    """
    tokens = tokens_by_length(alpha, 1.0)
    return [ExpectedSpeedup(k, each, v[k] + k * c) for k, each in enumerate(tokens)]


def fastest(found: Sequence[ExpectedSpeedup]) -> ExpectedSpeedup:
    """Return the one with the largest speedup, the shortest of equal ones."""
    return max(found, key=lambda each: each.speedup)


def continued(alpha: Sequence[float], count: int) -> list[float]:
    """Return probabilities for `count` positions; behind the last known one they stay the same."""
    return [alpha[min(position, len(alpha) - 1)] for position in range(count)]
