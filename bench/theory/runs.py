"""Run every task plainly and with every k, one after the other in random order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from bench.theory.answers import Answer, Cycle, Turn
from bench.theory.costs import Costs, Known, measure_drafting, measure_evaluations
from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters, Session
from edgespec.benchmark.measuring import Task, Work
from edgespec.errors import ContextFullError, UsageError
from edgespec.runtime.cycle import CycleReport
from edgespec.tuning.setting import setting_of

__all__ = ["PLAIN", "Variant", "measure_known", "open_variants", "run"]

PLAIN = "plain"
_DIGITS = 7  # of seconds

Note = Callable[[str], None]
Rounds = dict[str, list[Answer]]


@dataclass(frozen=True)
class Variant:
    """A way to decode.

    Attributes:
        name: `PLAIN`, or k.
        engine: open, and used by nobody else; variants of fixed k share one.
        k: the most proposals of a cycle.
    """

    name: str
    engine: Engine
    k: int


def _as_cycle(report: CycleReport) -> Cycle:
    """Return its timing, and whether a draft model had a part in the proposals."""
    timing = report.timing
    seconds = {name: round(getattr(timing, name), _DIGITS) for name in ("draft_s", "verify_s")}
    return Cycle(*timing._replace(**seconds), report.drafter not in ("none", "ngram"))


def open_variants(
    model: str | None, options: EngineOptions, ks: Sequence[int | None], stack: ExitStack
) -> list[Variant]:
    """Open plain decoding and every k (None is adaptive); the stack closes the engines.

    A k beyond what keeps texts exact here is reduced to that.

    Raises:
        UsageError: no block at all would be exact.
    """
    plain = stack.enter_context(Engine(model, replace(options, draft="none")))
    variants = [Variant(PLAIN, plain, 0)]
    fixed = sorted({k for k in ks if k is not None})
    if fixed:
        engine = stack.enter_context(Engine(model, replace(options, k=fixed[-1])))
        for k in sorted({min(k, _most(engine)) for k in fixed}):
            variants.append(Variant(str(k), engine, k))
    if None in ks:
        engine = stack.enter_context(Engine(model, options))
        variants.append(Variant("auto", engine, _most(engine)))
    return variants


def _most(engine: Engine) -> int:
    if engine.largest_k == 0:
        reason = engine.notice or engine.exactness.reason
        raise UsageError(f"nothing can be speculated with {engine.model_name}: {reason}")
    return engine.largest_k


def measure_known(variants: Sequence[Variant], note: Note) -> dict[str, Known]:
    """Measure costs for every speculative variant, once for each way to open the target."""
    largest: dict[str, Variant] = {}
    for variant in variants:
        way = _way(variant.engine)
        if way not in largest or variant.k > largest[way].k:
            largest[way] = variant
    drafting = {v.name: measure_drafting(v.engine, v.k) for v in variants[1:]}
    costs: dict[str, Costs] = {}
    for way, variant in largest.items():
        note(f"measuring v(n) up to n = {variant.k + 1}: {way}")
        costs[way] = measure_evaluations(variant.engine.target, variant.k + 1)
        variant.engine.forget()
    plain = costs[_way(variants[0].engine)]
    return {v.name: Known(plain, costs[_way(v.engine)], drafting[v.name]) for v in variants[1:]}


def _way(engine: Engine) -> str:
    """Name the way the target was opened; contexts opened alike cost the same."""
    tapped = ", hidden states read" if engine.target.on_evaluated is not None else ""
    return setting_of(engine.target.model, engine.target.options).name + tapped


def run(
    variants: Sequence[Variant], work: Work, note: Note
) -> Iterator[tuple[Task, int, dict[str, Answer]]]:
    """Yield every task of every round, with the answers by variant.

    A task whose first prompt does not fit into the context is left out.
    """
    limits = GenerationLimits(max_tokens=work.tokens)
    for variant in variants:  # the first answer takes longer
        _answer(variant, Task("warm-up", "", ("Say hello.",)), SamplingParameters(), limits)
    for round_ in range(work.rounds):
        sampling = SamplingParameters(temperature=work.temperatures[0], seed=round_)
        for task in work.tasks:
            note(f"round {round_ + 1} of {work.rounds}: {task.name}")
            order = random.sample(list(variants), len(variants))
            try:
                yield task, round_, {v.name: _answer(v, task, sampling, limits) for v in order}
            except ContextFullError as error:
                note(f"{task.name} is left out: {error}")


def _answer(
    variant: Variant, task: Task, sampling: SamplingParameters, limits: GenerationLimits
) -> Answer:
    """Have a conversation from empty caches; a later turn that does not fit is left out."""
    engine = variant.engine
    engine.forget()
    engine.largest_k = variant.k
    session, digest = Session(engine, None, sampling, limits), hashlib.sha256()
    turns: list[Turn] = []
    for message in task.turns:
        try:
            turns.append(_turn(session, message, digest))
        except ContextFullError:
            if not turns:
                raise
            break
    return Answer(tuple(turns), digest.hexdigest()[:16])


def _turn(session: Session, message: str, digest: Any) -> Turn:
    reports: list[CycleReport] = []
    turn = session.send(message)
    with session.engine.observing(reports.append):
        started = perf_counter()
        for _ in turn:
            pass
        took = perf_counter() - started
    result = turn.result
    digest.update(np.array(result.tokens, np.int32).tobytes())
    statistics = result.statistics
    seconds = round(took - statistics.prefill_s, _DIGITS)
    return Turn(
        statistics.reused_tokens, len(result.tokens), seconds, tuple(map(_as_cycle, reports))
    )
