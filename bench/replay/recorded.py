"""Read traces of `edgespec run --trace FILE`, and what evaluations cost in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.control.costs import CostTable, make_cost_table, predicted_cost

__all__ = ["Costs", "Generation", "read_traces"]

_ENOUGH = 5  # evaluations of a size that show how far its measured cost is off


@dataclass
class Generation:
    """The lines of one generation.

    Attributes:
        start: the line it began with.
        cycles: those before the context was shifted, if it was.
        end: the line it ended with; empty if there is none.
    """

    start: dict[str, Any]
    cycles: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    shifted: bool = False

    def add(self, cycle: dict[str, Any]) -> None:
        """Add a cycle."""
        self.shifted |= bool(self.cycles) and cycle["depth"] < self.cycles[-1]["depth"]
        if not self.shifted:
            self.cycles.append(cycle)

    @property
    def text(self) -> np.ndarray:
        """Prompt and answer, with what the last block had after its end: int32."""
        answer = [token for cycle in self.cycles for token in cycle["tokens"]]
        return np.array(self.start["prompt"] + answer, np.int32)

    @property
    def kept(self) -> int:
        """Tokens of the answer."""
        decoded = sum(len(cycle["tokens"]) for cycle in self.cycles)
        return decoded if self.shifted else self.end.get("emitted", decoded)

    @property
    def seconds(self) -> float:
        """What its cycles took."""
        return sum(cycle["seconds"] for cycle in self.cycles)

    def agreement(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where the draft model was right (1), wrong (0), or not asked (nan).

        Returns:
            Two float64 arrays, for every position of `text`: this, and how sure it was.
        """
        right, sure = np.full((2, len(self.text)), np.nan)
        length = len(self.start["prompt"])
        for cycle in self.cycles:
            if cycle["drafter"] == "model":
                judged = min(cycle["proposed"], cycle["accepted"] + 1)
                for j in range(min(judged, len(right) - length)):
                    right[length + j] = j < cycle["accepted"]
                    sure[length + j] = cycle["acceptance"][j]
            length += len(cycle["tokens"])
        return right, sure


def read_traces(paths: Iterable[Path]) -> list[Generation]:
    """Read all generations that had a cycle, in the order in which they began."""
    generations: dict[str, Generation] = {}
    for path in paths:
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                _take(generations, json.loads(line))
            except (ValueError, KeyError, TypeError):
                # This line was being written when the program was killed.
                print(f"{path}: line {number} is not a line of a trace: left out")
    return [generation for generation in generations.values() if generation.cycles]


def _take(generations: dict[str, Generation], line: dict[str, Any]) -> None:
    if line["type"] == "generation":
        generations[line["id"]] = Generation(line)
    elif line["type"] == "cycle":
        generations[line["id"]].add(line)
    elif line["type"] == "end":
        generations[line["id"]].end = line


class Costs:
    """What evaluations took: a recorded table, scaled by the times of recorded cycles.

    Args:
        generations: of one model in one setting; one of them has a table.

    Raises:
        SystemExit: none has.
    """

    def __init__(self, generations: Sequence[Generation]) -> None:
        recorded = next((g.start["costs"] for g in generations if g.start["costs"]), None)
        if recorded is None:
            raise SystemExit("no cost table in these traces: add one recorded with --draft ngram")
        self._recorded = recorded
        self.largest = recorded["sizes"][-1]
        self.table = self.believed(None)
        cycles = [cycle for g in generations for cycle in g.cycles]
        self.lookup_s = _median([c["draft_s"] for c in cycles if c["drafter"] != "model"])
        drafted = [c for c in cycles if c["drafter"] == "model"]
        self.step_s = _median([c["draft_s"] / c["proposed"] for c in drafted])
        rest = [c["seconds"] - c["draft_s"] - c["verify_s"] for c in cycles]
        self.token_s = sum(rest) / sum(len(c["tokens"]) for c in cycles)
        self._scale = self._fit(generations)

    def believed(self, corrections: dict[str, Any] | None) -> CostTable:
        """Return the table that a policy has at the start of a generation."""
        r = self._recorded
        table = make_cost_table(r["depths"], r["sizes"], r["seconds"], r["switch_s"], self.largest)
        if corrections is not None:
            known = min(len(table.shape), len(corrections["shape"]))
            table.shape[:known] = corrections["shape"][:known]
            table.drift[0] = corrections["drift"]
        return table

    def evaluation_s(self, depth: int, n: int, last: int) -> float:
        """Return the seconds of n tokens after `depth`, when `last` were evaluated before."""
        return self._measured_s(depth, n, last) * self._scale[n]

    def _measured_s(self, depth: int, n: int, last: int) -> float:
        seconds = predicted_cost(self.table, float(depth), n)
        return float(seconds + self.table.switch_s[n] * (n != last))

    def _fit(self, generations: Sequence[Generation]) -> np.ndarray:
        """Return by what factor each size took longer than its entry: float64 (largest + 1,)."""
        ratios: list[list[float]] = [[] for _ in range(self.largest + 1)]
        for generation in generations:
            last = 1
            for cycle in generation.cycles:
                n = cycle["n"]
                if n <= self.largest:
                    measured = self._measured_s(cycle["depth"], n, last)
                    ratios[n].append(cycle["verify_s"] / measured)
                last = n
        common = _median([ratio for part in ratios for ratio in part])
        return np.array([_median(part) if len(part) >= _ENOUGH else common for part in ratios])


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else 0.0
