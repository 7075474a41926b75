"""Speedup: expected of k proposals, E(k) / C(k), and achieved by the cycles that ran.

Proposals that are accepted with probabilities a1, a2 ... one after the other give
E(k) = 1 + a1 + a1 a2 + ... + a1...ak tokens (Leviathan et al. 2023, "Fast Inference from
Transformers via Speculative Decoding", equation 1, with a probability for each position), at a
cost of C(k) = v(k + 1) + k c single-token evaluations (theorem 3.8, with measured costs).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Achieved",
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


_LONGEST = 64


@dataclass
class Achieved:
    """Totals over all cycles whose costs were known.

    Attributes:
        tokens: emitted.
        seconds: of drafting and verifying.
        plain_s: seconds that as many single tokens would have taken.
        sizes: tokens of an evaluation -> cycles.
    """

    tokens: int = 0
    seconds: float = 0.0
    plain_s: float = 0.0
    sizes: Counter[int] = field(default_factory=Counter)

    @property
    def cycles(self) -> int:
        """How many there were."""
        return sum(self.sizes.values())

    @property
    def speedup(self) -> float:
        """Return the speedup over plain decoding, up to tokens a cycle; 1 before anything."""
        if not self.seconds > 0:
            return 1.0
        return min(self.plain_s / self.seconds, self.tokens / max(1, self.cycles))

    @property
    def speculated(self) -> bool:
        """Whether anything was proposed."""
        return any(n > 1 for n in self.sizes)

    def add(self, evaluated: int, emitted: int, seconds: float, plain_s: float) -> None:
        """Add a cycle."""
        self.tokens += emitted
        self.seconds += seconds
        self.plain_s += plain_s
        self.sizes[evaluated] += 1

    def __add__(self, other: Achieved) -> Achieved:
        return Achieved(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.plain_s + other.plain_s,
            self.sizes + other.sizes,
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for `from_json`."""
        sizes = {str(n): count for n, count in sorted(self.sizes.items())}
        return {**vars(self), "sizes": sizes}

    @classmethod
    def from_json(cls, data: Any) -> Achieved:
        """Read it from `as_json`; anything else counts as nothing achieved."""
        if not isinstance(data, Mapping):
            return cls()
        try:
            sizes = Counter({int(n): int(count) for n, count in data["sizes"].items()})
            read = cls(int(data["tokens"]), float(data["seconds"]), float(data["plain_s"]), sizes)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return cls()
        known = all(1 <= n <= _LONGEST and count > 0 for n, count in sizes.items())
        sane = read.tokens > 0 and all(
            math.isfinite(seconds) and seconds > 0 for seconds in (read.seconds, read.plain_s)
        )
        return read if known and sane else cls()
