"""What a draft is expected to bring on this machine, before it has been used."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.tuning.costs import CostTable, predicted_cost

__all__ = ["best_block", "expected_speedup"]

_DEPTH = 256.0
"""Tokens in the cache that a draft is judged at: in the middle of an answer."""


def best_block(
    acceptance: Sequence[float], verify: Sequence[float], step: float
) -> tuple[int, float]:
    """The best block length and its speedup; acceptance goes on as it ends.

    Expected tokens of a cycle over its cost (Leviathan et al. 2023, theorem 3.8, with measured
    costs and a chance for each position).

    Args:
        acceptance: of the first, second, third ... proposal, if all before it were accepted.
        verify: seconds of an evaluation of 1, 2, 3 ... tokens.
        step: seconds of drafting one.

    Returns:
        0 and 1.0 if no block is faster than plain decoding.
    """
    best = (0, 1.0)
    expected, survival = 1.0, 1.0
    for k in range(1, len(verify)):
        survival *= acceptance[min(k, len(acceptance)) - 1]
        expected += survival
        speedup = expected * verify[0] / (verify[k] + k * step)
        if speedup > best[1]:
            best = (k, speedup)
    return best


def expected_speedup(acceptance: Sequence[float], costs: CostTable, step_s: float) -> float:
    """Of a draft with this held-out acceptance, at the depth of an ordinary answer."""
    verify = [predicted_cost(costs, _DEPTH, n) for n in range(1, costs.largest + 1)]
    return best_block(acceptance, verify, step_s)[1]
