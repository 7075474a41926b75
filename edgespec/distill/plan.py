"""How long everything will take, and what it needs: measured before anything is started.

Nothing here needs PyTorch. Without it, the speed of training is estimated from that of the matrix
multiplications that a step consists of.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec.backend import Model, ParallelContext, Vocabulary
from edgespec.distill.corpus import answer_tokens_in
from edgespec.distill.prompts import FilePrompts, Prompts, SelfPrompts, TaskPrompts
from edgespec.distill.tasks import read_documents
from edgespec.distill.writing import measure_writing
from edgespec.errors import EdgespecError, InsufficientMemoryError, UsageError
from edgespec.files import replace_file
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.runtime.memory import available_memory, estimate
from edgespec.templates import ChatTemplate
from edgespec.tuning.exactness import fast_options

__all__ = [
    "ANSWER",
    "BATCH_LENGTH",
    "BATCH_ROWS",
    "LENGTH",
    "SEQUENCES",
    "Plan",
    "Rates",
    "Report",
    "Request",
    "choose_prompts",
    "described",
    "estimate_plan",
    "feature_layers",
    "in_words",
    "make_plan",
    "require_disk",
    "require_memory",
]

BATCH_ROWS, BATCH_LENGTH = 4, 256
"""Shape of a training step's batch."""

SEQUENCES, LENGTH, ANSWER = 64, 704, 320
"""Conversations that are written at a time, and the most tokens of each, and of an answer."""

_TRAINING_BYTES = 1 << 30

_REPETITIONS = 8.0
_SHARES = (0.3, 0.8)
_SPARE = 0.92  # vocabulary, export and proof take the rest
_LEAST_STEPS = 20
_SPARE_DISK = 1 << 30
_TRIES = 3
_USED = 0.6  # of the speed of a multiplication alone, by training


@dataclass(frozen=True)
class Request:
    """What to make, and from what.

    Attributes:
        target, output: files.
        kind: "tiny", "eagle3" or "medusa".
        data: files with the user's prompts; none to make them up.
        documents: files and folders that tasks are made from.
        hours: for everything, over all runs.
        vocabulary: number of tokens of the draft.
        start: a draft of this kind to continue from, a tiny one with its vocabulary; or None.
        work: folder for text and checkpoints.
        threads: for everything.
    """

    target: Path
    output: Path
    kind: str
    data: tuple[Path, ...]
    documents: tuple[Path, ...]
    hours: float
    vocabulary: int
    start: Path | None
    work: Path
    threads: int


class Report(Protocol):
    """Where progress goes."""

    def line(self, text: str) -> None:
        """Show a line that stays."""

    def now(self, text: str) -> None:
        """Show a line that the next one replaces."""


class Rates(NamedTuple):
    """Tokens per second of writing and of training, and whether training is in bfloat16."""

    writing: float
    training: float
    bfloat16: bool


@dataclass(frozen=True)
class Plan:
    """What a number of hours is spent on.

    Attributes:
        hours: over all runs with the same work folder.
        writing_rate, training_rate: tokens per second on this machine, as measured at first.
        tokens: number of tokens of answers to write.
        steps: number of training steps.
        bfloat16: whether matrices are multiplied in that type, which is faster on few processors.
    """

    hours: float
    writing_rate: float
    training_rate: float
    tokens: int
    steps: int
    bfloat16: bool = False

    @property
    def writing_s(self) -> float:
        """Seconds for all of the text."""
        return self.tokens / self.writing_rate

    @property
    def training_s(self) -> float:
        """Seconds for all of the training."""
        return self.steps * BATCH_ROWS * BATCH_LENGTH / self.training_rate


def make_plan(path: Path, hours: float, measure: Callable[[], Rates]) -> Plan:
    """Return the plan in a file; make a new one if there is none for this number of hours.

    A longer plan continues what a shorter one began. Time is split between text and training so
    that training sees each token about eight times.

    Args:
        measure: returns the rates, if they are not in the file.

    Raises:
        UsageError: the hours are out of range.
    """
    _check(hours)
    known = _read(path)
    if known is not None and known.hours == hours:
        return known
    rates = (
        Rates(known.writing_rate, known.training_rate, known.bfloat16)
        if known is not None
        else measure()
    )
    plan = divided(hours, rates)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(asdict(plan), indent=2) + "\n").encode(), alone=True)
    return plan


def divided(hours: float, rates: Rates) -> Plan:
    """Return how so many hours are divided."""
    writing, training, bfloat16 = rates
    seconds = hours * 3600 * _SPARE
    share = training / (training + _REPETITIONS * writing)
    share = min(max(share, _SHARES[0]), _SHARES[1])
    steps = (1 - share) * seconds * training / (BATCH_ROWS * BATCH_LENGTH)
    tokens = int(share * seconds * writing)
    return Plan(hours, writing, training, tokens, max(_LEAST_STEPS, int(steps)), bfloat16)


def estimate_plan(request: Request, report: Report) -> None:
    """Report the plan where PyTorch is not installed, and write nothing.

    Raises:
        UsageError, InsufficientMemoryError, EdgespecError: as training would.
    """
    _check(request.hours)
    header = read_header(request.target)
    require_memory(header, request.target)
    layers = feature_layers(request.kind, header)
    have = answer_tokens_in(request.work / "text")
    plan = _read(request.work / f"{request.kind}-{request.vocabulary}" / "plan.json")
    measured = plan is not None and plan.hours == request.hours
    if plan is None or not measured:
        report.now("measuring this machine")
        training = _estimated_training(request, header)
        plan = divided(request.hours, Rates(_writing(request, header, layers), training, False))
    width = header.embedding_length
    for line in described(plan, have, request.work, width, len(layers)):
        report.line(line)
    if not measured:
        report.line("PyTorch is not installed: the speed of training is an estimate.")


def feature_layers(kind: str, header: GGUFHeader) -> tuple[int, ...]:
    """Return the target's layers whose inputs a draft reads: for a head, low, middle and last."""
    count = header.block_count
    return (max(1, count // 10), count // 2, count - 1) if kind == "eagle3" else ()


def _writing(request: Request, header: GGUFHeader, layers: tuple[int, ...]) -> float:
    opened = fast_options(request.target, request.threads)
    with Model(request.target, opened) as model:
        template = None
        if header.chat_template:
            template = ChatTemplate.from_model(header, model.vocabulary)
        prompts = choose_prompts(request, template, model.vocabulary)
        threads = request.threads
        with ParallelContext(model, SEQUENCES, LENGTH, threads=threads, layers=layers) as context:
            return measure_writing(context, prompts, ANSWER)


def _estimated_training(request: Request, header: GGUFHeader) -> float:
    """Return tokens per second, from how fast NumPy multiplies matrices of such shapes."""
    width = header.embedding_length
    tokens = min(request.vocabulary, header.vocabulary_size)
    rows, random = BATCH_ROWS * BATCH_LENGTH, np.random.default_rng(0)
    states = random.standard_normal((rows, width), np.float32)
    matrix = random.standard_normal((width, tokens), np.float32)
    taken = []
    for _ in range(_TRIES):
        started = perf_counter()
        states @ matrix
        taken.append(perf_counter() - started)
    rate = rows * width * tokens / min(taken) * _USED
    teacher = width * tokens
    if request.kind == "eagle3":  # each of four steps: a block, and rows that do not change
        block = 6 * width**2 + width**2 + 8 * width**2
        own = 9.0 * width**2 + 4 * (3 * block + 2 * teacher)
    elif request.kind == "medusa":  # four heads, all but the first at every other state
        own = 2.5 * (6.0 * width**2 + 2 * teacher)
    else:  # two blocks, two fifths as wide
        narrow = 0.4 * width
        own = 3 * (2 * (4 * narrow**2 + 9 * narrow**2) + narrow * tokens)
    return float(rate / (teacher + own))


def choose_prompts(
    request: Request, template: ChatTemplate | None, vocabulary: Vocabulary
) -> Prompts:
    """Return what the target is asked."""
    if request.data:
        return FilePrompts(request.data, template, vocabulary)
    if template is None:
        return SelfPrompts(None, vocabulary)
    excerpts = read_documents(request.documents) if request.documents else []
    return TaskPrompts(template, vocabulary, excerpts)


def described(plan: Plan, have: int, folder: Path, width: int, layers: int) -> Iterator[str]:
    """Yield lines about what will be done.

    Args:
        have: tokens of answers that are there already.
        folder: of the text.
        width: of the target's states.
        layers: number of layers whose inputs come with them.

    Raises:
        EdgespecError: the disk has too little space.
    """
    missing = max(0, plan.tokens - have)
    disk = require_disk(folder, missing, width, layers)
    yield (
        f"Plan for {plan.hours:g} h: write {plan.tokens:,} tokens "
        f"({in_words(plan.writing_s)} at {plan.writing_rate:.0f} tokens/s), "
        f"train {plan.steps:,} steps "
        f"({in_words(plan.training_s)} at {plan.training_rate:.0f} tokens/s)."
    )
    yield (
        f"Text still to write: {missing:,} tokens, {in_words(missing / plan.writing_rate)}, "
        f"{disk / 2**20:,.0f} MiB in {folder}."
    )
    yield "Ctrl-C stops at any time; the same command continues from there."


def require_memory(header: GGUFHeader, target: Path) -> None:
    """Check that the target can write text here.

    Raises:
        InsufficientMemoryError: there is too little memory.
    """
    needed = estimate(
        header,
        context=SEQUENCES * LENGTH,
        batch=128,
        outputs=128,
        flash_attention=True,
        repack=True,
    ).required
    needed = max(needed, _TRAINING_BYTES)
    free = available_memory()
    if needed > free:
        raise InsufficientMemoryError(
            f"writing text with {target.name} takes {needed / 2**30:.1f} GiB of "
            f"memory, and {free / 2**30:.1f} GiB are free: close other programs"
        )


def require_disk(folder: Path, tokens: int, width: int, layers: int) -> int:
    """Return the bytes that so much more text takes, prompts included.

    Raises:
        EdgespecError: the disk has too little space.
    """
    needed = int(tokens * 1.5 * (2 * width * (1 + layers) + 12))
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    if needed + _SPARE_DISK > free:
        raise EdgespecError(
            f"the text would take {needed / 2**30:.1f} GiB in {folder}, where "
            f"{free / 2**30:.1f} GiB are free: give fewer --hours or another --work folder"
        )
    return needed


def _read(path: Path) -> Plan | None:
    try:
        data: Any = json.loads(path.read_text("utf-8"))
        plan = Plan(**data)
        return replace(plan, tokens=int(plan.tokens), steps=int(plan.steps))
    except (OSError, TypeError, ValueError):
        return None


def _check(hours: float) -> None:
    if not 0 < hours <= 10_000:
        raise UsageError(f"hours is {hours:g}: it has to be above 0")


def in_words(seconds: float) -> str:
    """Return a duration as one says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
