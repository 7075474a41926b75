"""Measure the costs of evaluations and drafting, before the runs to predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.theory.answers import Turn
from edgespec.control.controller import fixed_budget
from edgespec.control.costs import CostTable, make_cost_table, predicted_cost
from edgespec.drafters import Drafter, PromptLookupDrafter
from edgespec.tuning.measure import measure_cost, measuring_text

if TYPE_CHECKING:
    from edgespec import Engine
    from edgespec.backend import Context

__all__ = ["Costs", "Drafting", "Known", "measure_drafting", "measure_evaluations"]

DEPTHS = (32, 128, 256, 512, 1024, 2048)
_LOOKUPS = 64


@dataclass(frozen=True)
class Costs:
    """v(n) of one way to open the target.

    Attributes:
        depths: tokens in the cache, ascending.
        sizes: the n, 1, 2, 3 ...
        seconds: for each depth, of an evaluation of each size after one of the same size.
    """

    depths: list[int]
    sizes: list[int]
    seconds: list[list[float]]

    @cached_property
    def _table(self) -> CostTable:
        free = [0.0] * len(self.sizes)
        return make_cost_table(self.depths, self.sizes, self.seconds, free, self.sizes[-1])

    def evaluation_s(self, n: int, depth: float) -> float:
        """Return the seconds of n tokens after `depth`, by linear interpolation of depths."""
        return float(predicted_cost(self._table, float(depth), n))

    def as_json(self) -> dict[str, Any]:
        """Return everything."""
        return asdict(self)


@dataclass(frozen=True)
class Drafting:
    """What proposals cost, in seconds; 0 where there is no such drafter.

    Attributes:
        lookup_s: of prompt lookup, per cycle.
        indexing_s: of prompt lookup, for each token of a prompt.
        step_s: of a draft model, per token.
        reading_s: of a draft model, for each token that it has not seen.
    """

    lookup_s: float = 0.0
    indexing_s: float = 0.0
    step_s: float = 0.0
    reading_s: float = 0.0

    def of_cycles(self, turns: Sequence[Turn]) -> Iterator[float]:
        """Yield the seconds of drafting of every cycle of these turns."""
        cached = 0  # by the draft model
        for turn in turns:
            cached = min(cached, turn.reused)
            for index, cycle in enumerate(turn.cycles):
                seconds = self.lookup_s
                if index == 0:  # prompt lookup builds its index anew for every prompt
                    seconds += self.indexing_s * (cycle.depth + 1)
                if cycle.drafted:
                    reading_s = self.reading_s * (cycle.depth - cached)
                    seconds += max(self.step_s, reading_s) + (cycle.proposed - 1) * self.step_s
                    cached = cycle.depth + min(cycle.proposed, cycle.emitted)
                yield seconds

    def as_json(self) -> dict[str, float]:
        """Return everything."""
        return asdict(self)


@dataclass(frozen=True)
class Known:
    """The costs that a prediction is made from.

    Attributes:
        plain, speculative: costs of the target as each side opens it.
        drafting: of the speculative side.
    """

    plain: Costs
    speculative: Costs
    drafting: Drafting


def measure_evaluations(context: Context, largest: int, repetitions: int = 5) -> Costs:
    """Measure 1 to `largest` tokens after all of `DEPTHS` that fit; the content is lost."""
    room = context.capacity - largest
    depths = [depth for depth in DEPTHS if depth <= room] or [max(1, room)]
    sizes = list(range(1, largest + 1))
    seconds = []
    for depth in depths:
        took = measure_cost(context, depth, sizes, repetitions)
        seconds.append([took[n] for n in sizes])
    return Costs(depths, sizes, seconds)


def measure_drafting(engine: Engine, k: int) -> Drafting:
    """Measure drafting with an engine that was just opened, which measured its draft.

    Args:
        k: the most proposals of a cycle.
    """
    drafter: Drafter = engine.drafter
    learned = drafter.learned()
    lookup_s = indexing_s = step_s = reading_s = 0.0
    if learned.model is not None:
        step_s, reading_s = learned.model["step_s"], learned.model["reading_s"]
    if learned.lookup is not None:
        lookup_s, indexing_s = _measure_lookup(measuring_text(engine.target, 4 * _LOOKUPS), k)
    return Drafting(lookup_s, indexing_s, step_s, reading_s)


def _measure_lookup(text: np.ndarray, k: int) -> tuple[float, float]:
    """Return the seconds of a look-up, and of indexing a token."""
    drafter, budget = PromptLookupDrafter(len(text)), fixed_budget(k)
    history = np.concatenate([text, np.zeros(k, text.dtype)])
    drafter.propose(history, 1, budget)  # compiles, or loads what was compiled
    known = len(text) - _LOOKUPS
    started = perf_counter()
    drafter.commit(history, known)
    indexing_s = (perf_counter() - started) / known
    took = []
    for length in range(known, len(text)):
        started = perf_counter()
        drafter.propose(history, length, budget)
        took.append(perf_counter() - started)
        history[: len(text)] = text  # in place of the proposals
        drafter.commit(history, length + 1)
    return median(took), indexing_s
