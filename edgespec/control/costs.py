"""What evaluating n tokens costs here, and the speedup that follows for k proposals.

The table has seconds by depth and n. Real use moves two corrections: one for everything, which
follows a machine that warms up or throttles, and one for each n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np

from edgespec._types import Float64Array, Int64Array
from edgespec.sampling.kernel import kernel

__all__ = [
    "Achieved",
    "CostTable",
    "ExpectedSpeedup",
    "continued",
    "expected_speedups",
    "fastest",
    "fill_cycle_costs",
    "make_cost_table",
    "observe_cost",
    "predicted_cost",
    "tokens_by_length",
    "with_one_more",
]

_DRIFT_STEP, _SHAPE_STEP = 0.1, 0.05
_OUTLIER = 0.3  # log ratio beyond which a measurement says no more
_MOST = 2.0  # log ratio that corrections stay within
_USE_DECAY = 0.9

_GUESSED = 3.0
"""Evaluations' worth of knowledge in a cost that was not measured here."""
_MEASURED = 1e6
_SETTLED = 10.0
"""Evaluations after which one that is far off is an outlier."""

_CHANGING = 0.3
"""Share of batches followed by another size, before anything is known."""

_CHANGE_STEP, _CHANGE_FORGETTING = 0.2, 0.002  # at a batch, at a single token


class CostTable(NamedTuple):
    """Costs by depth and number of tokens.

    Attributes:
        depths: float64 (d,), tokens in the cache, ascending.
        seconds: float64 (d, largest + 1); column n is for n tokens, column 0 unused.
        switch_s: float64 (largest + 1,): seconds more if the evaluation before had another n.
        drift: float64 (1,), log of the factor that all costs are off by at the moment.
        shape: float64 (largest + 1,), log of the factor that each n is off by beyond that.
        use: float64 (largest + 1,), how often each n occurred lately.
        last: int64 (1,), the n of the evaluation before.
        changing: float64 (1,), share of recent batches that were followed by another size.
        known: float64 (largest + 1,), evaluations' worth of knowledge in each n's cost, and in the
            machine's speed (column 0): where that is little, corrections are larger.
    """

    depths: Float64Array
    seconds: Float64Array
    switch_s: Float64Array
    drift: Float64Array
    shape: Float64Array
    use: Float64Array
    last: Int64Array
    changing: Float64Array
    known: Float64Array

    @property
    def largest(self) -> int:
        """The most tokens it knows the cost of."""
        return int(self.seconds.shape[1]) - 1

    def corrections(self) -> dict[str, Any]:
        """Return what use has corrected the measurement by, as JSON."""
        return {"drift": float(self.drift[0]), "shape": self.shape.round(4).tolist()}


def make_cost_table(
    depths: Sequence[float],
    sizes: Sequence[int],
    seconds: Sequence[Sequence[float]],
    switch_s: Sequence[float],
    largest: int,
    *,
    measured: bool = True,
) -> CostTable:
    """Build a table from measurements; between two measured sizes it is interpolated.

    Args:
        depths: tokens in the cache.
        sizes: the n measured, ascending, 1 first.
        seconds: a row for each depth, a figure for each size.
        switch_s: for each size.
        largest: columns wanted; beyond the last size the last two are extrapolated.
        measured: on this machine, so that use is believed slowly where it disagrees.
    """
    known = np.array(sizes, np.float64)
    wanted = np.arange(largest + 1, dtype=np.float64)

    def fill(row: Sequence[float]) -> Float64Array:
        values = np.array(row, np.float64)
        filled = np.interp(wanted, known, values)
        if len(known) > 1:
            slope = max(0.0, (values[-1] - values[-2]) / (known[-1] - known[-2]))
            filled += slope * np.maximum(0.0, wanted - known[-1])
        return filled

    return CostTable(
        np.array(depths, np.float64),
        np.stack([fill(row) for row in seconds]),
        fill(switch_s),
        np.zeros(1),
        np.zeros(largest + 1),
        np.zeros(largest + 1),
        np.ones(1, np.int64),
        np.full(1, _CHANGING),
        np.full(largest + 1, _MEASURED if measured else _GUESSED),
    )


@kernel
def predicted_cost(table: CostTable, depth: float, n: int) -> float:
    """Return the seconds of evaluating n tokens behind `depth` others, as the time before."""
    depths, column = table.depths, table.seconds[:, n]
    value = column[0]
    if len(depths) > 1 and depth > depths[0]:
        i = 1
        while i < len(depths) - 1 and depths[i] < depth:
            i += 1
        slope = (column[i] - column[i - 1]) / (depths[i] - depths[i - 1])
        value = column[i - 1] + slope * (min(depth, depths[i]) - depths[i - 1])
        if depth > depths[i]:
            value += max(slope, 0.0) * (depth - depths[i])
    return float(value * math.exp(table.drift[0] + table.shape[n]))


@kernel
def _usual(table: CostTable) -> int:
    best = 1
    for n in range(1, len(table.use)):
        if table.use[n] > table.use[best]:
            best = n
    return best


@kernel
def fill_cycle_costs(
    table: CostTable, depth: float, limit: int, margin: float, cycle_s: Float64Array
) -> None:
    """Set ``cycle_s[j]`` to the seconds of verifying j proposals, for j up to `limit`.

    A batch size other than the last one makes llama.cpp plan its graph again; one other than the
    usual size makes it plan once more on the way back. The cycles that keep the new size share
    both costs, and they are few if sizes have lately changed often.

    Args:
        margin: by how much speculation is taken to cost more than was measured.
    """
    usual = _usual(table)
    for j in range(limit + 1):
        n = j + 1
        seconds = predicted_cost(table, depth, n)
        switches = int(n != table.last[0]) + int(n != usual)
        seconds += table.changing[0] * table.switch_s[n] * switches
        cycle_s[j] = seconds * (1.0 + margin) if j > 0 else seconds


@kernel
def observe_cost(table: CostTable, depth: float, n: int, seconds: float) -> tuple[float, float]:
    """Learn from one evaluation.

    Returns:
        The seconds predicted for it, and for a single token in its place.
    """
    plain = predicted_cost(table, depth, 1)
    switched = int(n != table.last[0])
    alike = predicted_cost(table, depth, n)
    extra = table.switch_s[n] * switched
    if seconds > extra:
        whole = math.log((seconds - extra) / alike)
        off = min(max(whole, -_OUTLIER), _OUTLIER)
        if table.known[0] < _SETTLED:
            table.drift[0] += min(max(whole, -_MOST), _MOST) / (1.0 + table.known[0])
        else:
            drift = table.drift[0] + _DRIFT_STEP * off
            table.drift[0] = min(max(drift, -_MOST), _MOST)
        table.known[0] += 1.0
        shape = table.shape[n] + max(_SHAPE_STEP, 1.0 / (1.0 + table.known[n])) * off
        table.shape[n] = min(max(shape, -_MOST), _MOST)
        table.known[n] += 1.0
    if table.last[0] > 1:
        table.changing[0] += _CHANGE_STEP * (switched - table.changing[0])
    else:
        table.changing[0] += _CHANGE_FORGETTING * (_CHANGING - table.changing[0])
    for i in range(len(table.use)):
        table.use[i] *= _USE_DECAY
    table.use[n] += 1.0
    table.last[0] = n
    return float(alike + extra), plain


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
