"""Tasks, and every one measured on both sides: plain and speculative, in random order."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from edgespec.benchmark.results import Results
from edgespec.errors import ContextFullError, UsageError
from edgespec.runtime.cycle import CycleReport, Origin
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Session
from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters

__all__ = [
    "SIDES",
    "WORKLOADS",
    "EnergyMeter",
    "Run",
    "Task",
    "Work",
    "choose_tasks",
    "machine_facts",
    "measure_pairs",
    "own_tasks",
    "peak_memory",
    "read_tasks",
    "run_task",
]

_MOST_BYTES = 64 << 20

_TEXTS = Path(__file__).with_name("texts")


@dataclass(frozen=True)
class Task:
    """One conversation.

    Attributes:
        name: unique.
        category: what it is summarized under.
        turns: the user's messages, in order.
    """

    name: str
    category: str
    turns: tuple[str, ...]


def own_tasks() -> list[Task]:
    """Return the tasks that edgespec brings."""
    return [
        Task(f"{category}-{number}", category, tuple(turns))
        for category, conversations in WORKLOADS.items()
        for number, turns in enumerate(conversations, 1)
    ]


def read_tasks(path: Path) -> list[Task]:
    """Read tasks: each line a JSON object with "turns", "category" and "question_id".

    This is the form of Spec-Bench (Xia et al. 2024) and of MT-Bench.

    Raises:
        UsageError: it cannot be read, or a line is not of that form.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8: convert it first") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES >> 20} MiB: it is no list of tasks")
    tasks = list(_parse(path, text))
    if not tasks:
        raise UsageError(f"{path} has no tasks")
    if len({task.name for task in tasks}) < len(tasks):
        raise UsageError(f"{path} has two tasks of one category with the same question_id")
    return tasks


def choose_tasks(
    tasks: Sequence[Task], categories: Sequence[str] = (), limit: int | None = None
) -> list[Task]:
    """Choose tasks of these categories, or of all, at most `limit` of each.

    Categories take turns, so that a run that stops early has had as many of each.

    Raises:
        UsageError: there is no such category.
    """
    by_category: dict[str, list[Task]] = {}
    for task in tasks:
        by_category.setdefault(task.category, []).append(task)
    for name in categories:
        if name not in by_category:
            raise UsageError(f"no category {name!r}: there are {', '.join(sorted(by_category))}")
    wanted = [by_category[name][:limit] for name in dict.fromkeys(categories) or by_category]
    return [task for some in zip_longest(*wanted) for task in some if task is not None]


def _parse(path: Path, text: str) -> Iterator[Task]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _task(json.loads(line), number)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from None


def _task(item: Any, number: int) -> Task:
    turns = item.get("turns") if isinstance(item, dict) else None
    if not isinstance(turns, list) or not turns:
        raise ValueError('it is not an object with a list of "turns"')
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError("a turn is not text, or empty")
    category = item.get("category", "all")
    if not isinstance(category, str) or not category:
        raise ValueError("the category is not text")
    return Task(f"{category}-{item.get('question_id', number)}", category, tuple(turns))


# -- the tasks that edgespec brings -------------------------------------------------------


def _text(name: str) -> str:
    return (_TEXTS / name).read_text("utf-8").strip()


def _first_paragraph(name: str) -> str:
    return _text(name).partition("\n\n")[0]


WORKLOADS: dict[str, list[list[str]]] = {
    "prose": [
        ["Write a short story about a lighthouse keeper who finds a letter in a bottle."],
        ["Describe a market in the early morning, before the first customers come."],
    ],
    "questions": [
        ["What is photosynthesis, and why do plants need light for it?"],
        ["Why is the sea salty, and why are rivers not?"],
    ],
    "code": [
        ["Write a Python class for a queue with a limited size, with a short example."],
        ["Write a SQL query that counts the orders of each customer, and explain it."],
    ],
    "summarizing": [
        [f"{_text('harbour.txt')}\n\nRepeat the most important sentences of this text."],
        [
            f"{_text('bakery.txt')}\n\nWhat are the most important sentences of this report? "
            "Quote them."
        ],
    ],
    "editing": [
        [
            f"```python\n{_text('inventory.txt')}\n```\n\n"
            "Print this file again, with the class Store called Inventory."
        ],
        [
            f"```python\n{_text('matrix.txt')}\n```\n\n"
            "Print this file again, with a docstring for every function."
        ],
    ],
    "copying": [
        [f"Copy this text word for word:\n\n{_first_paragraph('harbour.txt')}"],
        [f"Copy this text word for word:\n\n{_first_paragraph('bakery.txt')}"],
    ],
    "translation": [
        [f"Translate this into French:\n\n{_first_paragraph('bakery.txt')}"],
        [
            "Translate into German: The committee met on Monday, argued until Thursday, and "
            "agreed on nothing but the date of the next meeting."
        ],
    ],
    "extraction": [
        [
            f"{_first_paragraph('harbour.txt')}\n\nList the years in this text, each with what "
            'happened in it, as a JSON array of objects with the keys "year" and "event".'
        ],
        [
            "Anna Weber, 34, lives in Graz and repairs violins. Tomás Silva, 51, lives in Porto "
            "and paints boats. Li Wei, 28, lives in Xiamen and writes songs.\n\nWrite this as a "
            'JSON array of objects with the keys "name", "age", "city" and "work".'
        ],
    ],
    "conversation": [
        [
            "I want to grow tomatoes on a balcony. What do I need?",
            "How often do I have to water them?",
            "And what can I do against lice without poison?",
        ],
        [
            "Tell me something about the city of Lisbon.",
            "What would you look at there in one day?",
            "Write a postcard from there to my grandmother.",
        ],
    ],
}
"""Kind -> conversations; a conversation is the user's messages, in order.

Where an answer is to repeat its prompt, small models really do so with this wording.
"""


_PACKAGES = "intel-rapl:?"
_ROOT = Path("/sys/class/powercap")


def machine_facts() -> dict[str, Any]:
    """Return processor, cores and instruction sets, as far as the system reports them."""
    facts = _cpuinfo()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": facts.get("model name") or facts.get("Model") or platform.processor(),
        "cores": allowed,
        "flags": (facts.get("flags") or facts.get("Features") or "").split(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines))  # the first processor's win
    return {name.strip(): value.strip() for name, _, value in pairs}


# -- energy -------------------------------------------------------------------------------


class EnergyMeter:
    """Count what all processor packages use together, other programs' work included.

    RAPL counts for Intel and AMD. On most systems only the administrator may read it.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._counters = [folder / "energy_uj" for folder in sorted(root.glob(_PACKAGES))]
        self._spans = [
            _read(counter.with_name("max_energy_range_uj")) for counter in self._counters
        ]
        self._before = [_read(counter) for counter in self._counters]

    def joules(self) -> float | None:
        """Return joules since the last call, or since opening; None where they cannot be read."""
        now = [_read(counter) for counter in self._counters]
        before, self._before = self._before, now
        total = 0
        for old, new, span in zip(before, now, self._spans, strict=True):
            if old is None or new is None:
                return None
            total += new - old if new >= old else new - old + (span or 0)  # it starts over
        return total / 1e6 if now else None


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# -- pairs --------------------------------------------------------------------------------------

SIDES = ("plain", "speculative")

_DEPTH_STEP = 256


@dataclass(frozen=True)
class Work:
    """What is to be measured.

    Attributes:
        tasks: in the order in which they are done.
        temperatures: of the answers.
        rounds: how often each task is done at each temperature.
        tokens: of an answer, at most.
        deadline: begin no pair later than this moment of the monotonic clock; None for no limit.
    """

    tasks: Sequence[Task]
    temperatures: Sequence[float]
    rounds: int
    tokens: int
    deadline: float | None = None


def measure_pairs(
    engines: Mapping[str, Engine],
    work: Work,
    results: Results,
    note: Callable[[float, int, str], None],
) -> None:
    """Measure what the results lack.

    Both sides of a pair follow each other, so that a machine that slows down slows down both;
    chance decides which goes first. The round's number is the seed.

    Args:
        engines: for each of `SIDES`, used by nobody else.
        note: called before and in the middle of each pair with the pairs done, their total, and
            the task.
    """
    jobs = [
        (task, temperature, round_)
        for round_ in range(work.rounds)
        for task in work.tasks
        for temperature in work.temperatures
    ]
    warm = False
    for done, (task, temperature, round_) in enumerate(jobs):
        if results.has(task.name, temperature, round_):
            continue
        if work.deadline is not None and monotonic() > work.deadline:
            return
        note(done, len(jobs), task.name)
        sampling = SamplingParameters(temperature=temperature, seed=round_)
        if not warm:
            _warm_up(engines, task, sampling)
            warm = True
        half = partial(note, done + 0.5, len(jobs), task.name)
        _measure(engines, task, sampling, round_, work.tokens, results, half)
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
    half: Callable[[], None],
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
            half()
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


# -- one task on one side -----------------------------------------------------------------


@dataclass
class Run:
    """What one side did with one task.

    Attributes:
        first_token_s: seconds from each message to the first token, added up over the turns.
        decode_s: seconds of decoding, prompts left out.
        digest: of all emitted tokens, to compare texts.
        tried, accepted: by position in the block, proposals that were judged and accepted.
        depths: tokens in the cache, in steps of 256 -> emitted tokens and seconds there.
        joules: of the whole processor, if the system reports them.
    """

    tokens: int = 0
    cycles: int = 0
    prompt_tokens: int = 0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    digest: str = ""
    tried: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    depths: dict[int, list[float]] = field(default_factory=dict)
    joules: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return one side of a line of the results file."""
        return asdict(self)


def run_task(engine: Engine, task: Task, sampling: SamplingParameters, most_tokens: int) -> Run:
    """Have a conversation from empty caches on.

    A later turn that does not fit into the context is left out.

    Raises:
        ContextFullError: the first one does not.
    """
    engine.forget()
    limits = GenerationLimits(max_tokens=most_tokens)
    session = Session(engine, None, sampling, limits)
    run, digest, meter = Run(), hashlib.sha256(), EnergyMeter()
    with engine.observing(lambda report: _count(run, report)):
        for number, message in enumerate(task.turns):
            try:
                _turn(session, message, run, digest)
            except ContextFullError:
                if number == 0:
                    raise
                break
    run.joules = meter.joules()
    run.digest = digest.hexdigest()[:16]
    return run


def _turn(session: Session, message: str, run: Run, digest: hashlib._Hash) -> None:
    started = perf_counter()
    turn = session.send(message)
    next(iter(turn), None)
    run.first_token_s += perf_counter() - started
    result = turn.result
    digest.update(np.array(result.tokens, np.int32).tobytes())
    run.tokens += len(result.tokens)
    run.prompt_tokens += result.prompt_tokens
    run.decode_s += result.statistics.decode_s


def _count(run: Run, report: CycleReport) -> None:
    timing, origins = report.timing, report.cycle.origins
    accepted = len(origins) - 1
    run.cycles += 1
    for position in range(accepted + (origins[-1] is Origin.CORRECTED)):
        if position == len(run.tried):
            run.tried.append(0)
            run.accepted.append(0)
        run.tried[position] += 1
        run.accepted[position] += position < accepted
    here = run.depths.setdefault(timing.depth // _DEPTH_STEP * _DEPTH_STEP, [0.0, 0.0])
    here[0] += timing.emitted
    here[1] += timing.draft_s + timing.verify_s
