"""The arithmetic of one proposal and of one cycle, in exact fractions.

Sources: Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative
Decoding" (ICML 2023); Chen et al., "Accelerating Large Language Model Decoding with Speculative
Sampling" (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from edgespec.control.speedup import tokens_by_length

__all__ = [
    "ONE",
    "ZERO",
    "Choice",
    "Cost",
    "Decomposition",
    "Distribution",
    "MeasuredCost",
    "best_k",
    "cycle_speedup",
    "decompose",
    "expected_tokens",
    "free_verification",
    "normalized",
    "speedup",
    "total_variation",
]

Distribution = tuple[Fraction, ...]
# v(n): one target evaluation of n tokens, in units of a single token's; None where not known.
Cost = Callable[[int], Fraction | None]
ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class Decomposition:
    """What happens to one token proposed from q and judged by p.

    Attributes:
        p, q: the target's and the draft's distribution.
        acceptance: min(1, p/q) for each token; None where q = 0, which is never proposed
            (Leviathan et al. 2023, section 2.3).
        accepted: q * acceptance = min(p, q).
        rejected: q - accepted = (q - p)+.
        residual: norm((p - q)+), where a rejected token's replacement is drawn from (algorithm 1;
            Chen et al. 2023, algorithm 2). None if p = q: nothing is ever rejected.
        alpha: the mass of `accepted`, equal to 1 - TV(p, q) (Leviathan et al. 2023,
            theorem 3.5 and corollary 3.6).
    """

    p: Distribution
    q: Distribution
    acceptance: tuple[Fraction | None, ...]
    accepted: Distribution
    rejected: Distribution
    residual: Distribution | None
    alpha: Fraction

    @property
    def rejection(self) -> Fraction:
        """Return the probability that the proposal is rejected."""
        return ONE - self.alpha

    def replaced_from(self, replacement: Distribution | None) -> Distribution:
        """Return what is emitted if replacements for rejected tokens are drawn from there."""
        drawn = replacement or (ZERO,) * len(self.p)
        return tuple(a + self.rejection * r for a, r in zip(self.accepted, drawn, strict=True))

    @property
    def recovered(self) -> Distribution:
        """Replace from the residual, which gives p again (Leviathan et al. 2023, appendix A.1)."""
        return self.replaced_from(self.residual)

    @property
    def naive(self) -> Distribution:
        """Replace from p itself: the tempting mistake.

        It gives p in one case only: on the tokens p allows, q is a multiple of p.
        """
        return self.replaced_from(self.p)


def total_variation(p: Distribution, q: Distribution) -> Fraction:
    """Return half the sum of |p - q|."""
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), ZERO) / 2


def normalized(weights: Distribution) -> Distribution | None:
    """Return weights divided by their sum; None if they have none."""
    total = sum(weights, ZERO)
    return tuple(weight / total for weight in weights) if total else None


def decompose(p: Distribution, q: Distribution) -> Decomposition:
    """Split p into what q's proposals contribute and what the residual adds.

    Args:
        p, q: distributions of the same length; each sums to 1.
    """
    pairs = list(zip(p, q, strict=True))
    accepted = tuple(min(a, b) for a, b in pairs)
    return Decomposition(
        p=p,
        q=q,
        acceptance=tuple(min(ONE, a / b) if b else None for a, b in pairs),
        accepted=accepted,
        rejected=tuple(b - c for b, c in zip(q, accepted, strict=True)),
        residual=normalized(tuple(a - c for a, c in zip(p, accepted, strict=True))),
        alpha=sum(accepted, ZERO),
    )


def free_verification(n: int) -> Fraction:
    """Return a GPU's v(n) = 1: weights are read once, however many tokens there are."""
    return ONE


class MeasuredCost:
    """v(n) from measured points, straight lines between them, unknown beyond the last.

    Args:
        points: cost by number of tokens; n = 1 is among them, and every cost is positive. Any
            unit does: costs are divided by that of n = 1.
    """

    def __init__(self, points: Mapping[int, Fraction]) -> None:
        self.points = {n: points[n] / points[1] for n in sorted(points)}

    def __call__(self, n: int) -> Fraction | None:
        """Return v(n); None beyond what was measured."""
        if n in self.points:
            return self.points[n]
        below = max((m for m in self.points if m < n), default=None)
        above = min((m for m in self.points if m > n), default=None)
        if below is None or above is None:
            return None
        low, high = self.points[below], self.points[above]
        return low + (high - low) * Fraction(n - below, above - below)


def expected_tokens(alpha: Fraction, k: int) -> Fraction:
    """Return the tokens that a cycle emits on average: 1 + alpha + ... + alpha^k.

    Leviathan et al. (2023), equation (1). It takes every proposal to be accepted with the same
    probability, independently: real acceptances come in runs.
    """
    return tokens_by_length([alpha] * k, ONE)[-1]


def speedup(tokens: Fraction, n: int, draft: Fraction, cost: Cost) -> Fraction | None:
    """Return tokens per unit of cost, where plain decoding gives one; None without v(n).

    Args:
        tokens: expected tokens of a cycle.
        n: tokens that the target evaluates in it.
        draft: cost of drafting.
        cost: v.
    """
    verification = cost(n)
    return None if verification is None else tokens / (verification + draft)


def cycle_speedup(alpha: Fraction, k: int, c: Fraction, cost: Cost) -> Fraction | None:
    """Return the speedup of a chain of k proposals: expected tokens / (v(k + 1) + k * c).

    With v = 1 this is Leviathan et al. (2023), theorem 3.8. At k = 0 it is 1.
    """
    return speedup(expected_tokens(alpha, k), k + 1, k * c, cost)


class Choice(NamedTuple):
    """A block length and its speedup; k = 0 means not to speculate."""

    k: int
    speedup: Fraction


def best_k(alpha: Fraction, c: Fraction, cost: Cost, limit: int = 16) -> Choice:
    """Return the block length up to `limit` with the largest speedup, the shortest of equals.

    Every length is tried: measured costs have steps and cliffs, so that a speedup which falls
    may rise again. Lengths of unknown cost are passed over.
    """
    best = Choice(0, ONE)
    for k in range(1, limit + 1):
        gain = cycle_speedup(alpha, k, c, cost)
        if gain is not None and gain > best.speedup:
            best = Choice(k, gain)
    return best
