"""Measure every task on both sides, one after the other, in random order."""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from edgespec.benchmark.measuring import run_task
from edgespec.benchmark.results import Results
from edgespec.benchmark.tasks import Task
from edgespec.errors import ContextFullError
from edgespec.runtime.engine import Engine
from edgespec.sampling.parameters import SamplingParameters

__all__ = ["SIDES", "Work", "measure_pairs", "peak_memory"]

SIDES = ("plain", "speculative")


@dataclass(frozen=True)
class Work:
    """What is to be measured.

    Attributes:
        tasks: in the order in which they are done.
        temperatures: of the answers.
        rounds: how often each task is done at each temperature.
        tokens: of an answer, at most.
        minutes: begin no pair later than this; None for no limit.
    """

    tasks: Sequence[Task]
    temperatures: Sequence[float]
    rounds: int
    tokens: int
    minutes: float | None = None


def measure_pairs(
    engines: Mapping[str, Engine],
    work: Work,
    results: Results,
    note: Callable[[int, int, str], None],
) -> None:
    """Measure what the results lack.

    Both sides of a pair follow each other, so that a machine that slows down slows down both;
    chance decides which goes first. The round's number is the seed.

    Args:
        engines: for each of `SIDES`, used by nobody else.
        note: called before each pair with the pairs done, their total, and the next task.
    """
    jobs = [
        (task, temperature, round_)
        for round_ in range(work.rounds)
        for task in work.tasks
        for temperature in work.temperatures
    ]
    deadline = None if work.minutes is None else monotonic() + 60 * work.minutes
    warm = False
    for done, (task, temperature, round_) in enumerate(jobs):
        if results.has(task.name, temperature, round_):
            continue
        if deadline is not None and monotonic() > deadline:
            return
        note(done, len(jobs), task.name)
        sampling = SamplingParameters(temperature=temperature, seed=round_)
        if not warm:
            _warm_up(engines, task, sampling)
            warm = True
        _measure(engines, task, sampling, round_, work.tokens, results)
    note(len(jobs), len(jobs), "")


def _warm_up(engines: Mapping[str, Engine], task: Task, sampling: SamplingParameters) -> None:
    first = Task(task.name, task.category, ("Say hello.",))
    for engine in engines.values():
        run_task(engine, first, sampling, 16)


def _measure(
    engines: Mapping[str, Engine],
    task: Task,
    sampling: SamplingParameters,
    round_: int,
    tokens: int,
    results: Results,
) -> None:
    pair: dict[str, Any] = {
        "task": task.name,
        "category": task.category,
        "temperature": sampling.temperature,
        "round": round_,
    }
    order = random.sample(SIDES, len(SIDES))
    try:
        for side in order:
            pair[side] = run_task(engines[side], task, sampling, tokens).as_json()
    except ContextFullError as error:
        results.add({**pair, "skipped": str(error)})
        return
    pair["first"] = order[0]
    pair["same_text"] = pair["plain"]["digest"] == pair["speculative"]["digest"]
    results.add(pair)


def peak_memory() -> int:
    """Return the most bytes that this process, with both engines, has had resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
