"""What evaluating n tokens costs here: a measured table that every evaluation corrects.

The table has seconds by depth and n. Real use moves two corrections: one for everything, which
follows a machine that warms up or throttles, and one for each n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float64Array, Int64Array
from edgespec.sampling.kernel import kernel

__all__ = ["CostTable", "fill_cycle_costs", "make_cost_table", "observe_cost", "predicted_cost"]


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
