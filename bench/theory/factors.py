"""Explain measured / predicted speedup as a product of factors.

A side's seconds are a sum of parts, and so is what was predicted for them. Each part gets its
share of the logarithm of their quotient by the logarithmic mean, (measured - predicted) / L with
L = (x - y) / log(x / y) of the sums x and y (Ang 2004, "Decomposition analysis for policymaking in
energy"): shares add up exactly, and no order of the parts is preferred.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from bench.theory.answers import Answer
from bench.theory.costs import Known
from bench.theory.predictions import plain_s

__all__ = ["FACTORS", "Decomposition", "Part", "decompose"]

FACTORS = ("plain", "text", "same", "changed", "first", "drafting", "overhead")
"""Names of the factors; see `Decomposition`."""


@dataclass(frozen=True)
class Part:
    """Seconds per token of the answer, measured and predicted."""

    measured: float = 0.0
    predicted: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Measured / predicted; None without a prediction."""
        return self.measured / self.predicted if self.predicted > 0 else None


@dataclass(frozen=True)
class Decomposition:
    """The factors of measured speedup / prediction by cycles.

    Attributes:
        both: by how much the machine was slower, on both sides alike, than when the table was
            measured. It cancels in a speedup, and is not part of the factors.
        factors: by name. Above 1 the speedup is greater than predicted, because
            "plain": steps of plain decoding are slower than the table;
            "text": both texts differ, and plain decoding had other depths;
            "same": evaluations of as many tokens as the one before are faster than the table;
            "changed": the same for another number, for which llama.cpp plans its graph anew;
            "first": the same for the first ones after a prompt;
            "drafting": proposing is faster than measured;
            "overhead": the rest (sampling, text, Python), predicted to be 0, takes more of plain
            decoding than of speculative.
        parts: by factor, the seconds per token that it comes from; "overhead" is the speculative
            side's, "plain overhead" the plain side's.
    """

    both: float
    factors: dict[str, float]
    parts: dict[str, Part]

    @property
    def product(self) -> float:
        """The product of the factors."""
        return math.prod(self.factors.values())

    def as_json(self) -> dict[str, object]:
        """Return everything."""
        return asdict(self)


def decompose(plain: Answer, speculative: Answer, known: Known) -> Decomposition:
    """Explain one round, by its plain answer and its speculative one."""
    parts = {**_plain_parts(plain, known), **_speculative_parts(speculative, known)}
    table_s = plain_s(speculative, known) / speculative.tokens
    both = _common(parts)
    ours = {name: parts[name] for name in ("same", "changed", "first", "drafting", "overhead")}
    theirs = {name: parts[name] for name in ("plain", "plain overhead")}
    gained, lost = _shares(theirs, both), _shares(ours, both)
    logs = {
        "plain": gained["plain"],
        "text": math.log(parts["plain"].predicted / table_s),
        **{name: -share for name, share in lost.items()},
    }
    logs["overhead"] += gained["plain overhead"]
    return Decomposition(both, {name: math.exp(logs[name]) for name in FACTORS}, parts)


def _plain_parts(answer: Answer, known: Known) -> dict[str, Part]:
    verify_s = sum(cycle.verify_s for cycle in answer.cycles)
    table_s = sum(known.plain.evaluation_s(c.evaluated, c.depth) for c in answer.cycles)
    rest_s = answer.seconds - verify_s  # drafting nothing included
    return {
        "plain": Part(verify_s / answer.tokens, table_s / answer.tokens),
        "plain overhead": Part(rest_s / answer.tokens),
    }


def _speculative_parts(answer: Answer, known: Known) -> dict[str, Part]:
    measured = dict.fromkeys(("same", "changed", "first"), 0.0)
    predicted = dict(measured)
    for kind, n, depth, seconds in _evaluations(answer):
        measured[kind] += seconds
        predicted[kind] += known.speculative.evaluation_s(n, depth)
    parts = {
        kind: Part(measured[kind] / answer.tokens, predicted[kind] / answer.tokens)
        for kind in measured
    }
    draft_s = sum(cycle.draft_s for cycle in answer.cycles)
    drafting_s = sum(known.drafting.of_cycles(answer.turns))
    parts["drafting"] = Part(draft_s / answer.tokens, drafting_s / answer.tokens)
    rest_s = answer.seconds - draft_s - sum(measured.values())
    parts["overhead"] = Part(rest_s / answer.tokens)
    return parts


def _evaluations(answer: Answer) -> Iterator[tuple[str, int, int, float]]:
    """Yield kind, tokens, depth and seconds of every evaluation."""
    for turn in answer.turns:
        last = None
        for cycle in turn.cycles:
            kind = "first" if last is None else "same" if cycle.evaluated == last else "changed"
            yield kind, cycle.evaluated, cycle.depth, cycle.verify_s
            last = cycle.evaluated


def _common(parts: dict[str, Part]) -> float:
    """Return the factor by which steady evaluations of both sides are off, the smaller of two."""
    plain, same = parts["plain"].ratio, parts["same"].ratio
    if not plain or not same:
        return 1.0
    logs = math.log(plain), math.log(same)
    return math.exp(min(logs, key=abs)) if logs[0] * logs[1] > 0 else 1.0


def _shares(parts: dict[str, Part], both: float) -> dict[str, float]:
    """Return each part's share of the log of seconds / (`both` * predicted seconds) of a side."""
    measured = sum(part.measured for part in parts.values())
    predicted = both * sum(part.predicted for part in parts.values())
    scale = _logarithmic_mean(measured, predicted)
    return {name: (part.measured - both * part.predicted) / scale for name, part in parts.items()}


def _logarithmic_mean(x: float, y: float) -> float:
    """Return (x - y) / log(x / y), or its limit where they are equal."""
    difference = x - y
    return difference / math.log1p(difference / y) if difference else y
