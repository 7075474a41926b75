"""What a cycle of k proposals brings: expected tokens over their cost, in single-token evaluations.

Proposals that are accepted with probabilities a1, a2 ... one after the other give
E = 1 + a1 + a1 a2 + ... tokens at a cost of v(k + 1) + k c (Leviathan et al. 2023, theorem 3.8,
with measured costs and a probability for each position).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgespec.control.costs import CostTable, predicted_cost

__all__ = ["ExpectedSpeedup", "continued", "draft_speedup", "expected_speedups", "fastest"]

_DEPTH = 256.0
"""Tokens in the cache that a draft is judged at before it is used: in the middle of an answer."""


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
    """For k = 0 up to as many as there are probabilities of acceptance.

    Args:
        alpha: of each position if all before it are accepted.
        v: v(1), v(2), ... at least one more.
        c: cost of a draft step.
    """
    found = [ExpectedSpeedup(0, 1.0, v[0])]
    survival, tokens = 1.0, 1.0
    for k, rate in enumerate(alpha, 1):
        survival *= rate
        tokens += survival
        found.append(ExpectedSpeedup(k, tokens, v[k] + k * c))
    return found


def fastest(found: Sequence[ExpectedSpeedup]) -> ExpectedSpeedup:
    """The fastest."""
    return max(found, key=lambda each: each.speedup)


def continued(alpha: Sequence[float], count: int) -> list[float]:
    """Probabilities for so many positions: behind the last one known they stay the same."""
    return [alpha[min(position, len(alpha) - 1)] for position in range(count)]


def draft_speedup(alpha: Sequence[float], costs: CostTable, step_s: float) -> float:
    """Of a draft with this held-out acceptance at its best k, at the depth of an ordinary answer.

    Args:
        step_s: seconds of drafting one token.
    """
    seconds = [float(predicted_cost(costs, _DEPTH, n)) for n in range(1, costs.largest + 1)]
    v = [s / seconds[0] for s in seconds]
    return fastest(expected_speedups(continued(alpha, len(v) - 1), v, step_s / seconds[0])).speedup
