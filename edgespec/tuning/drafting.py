"""What a draft costs: a step, reading a token, and beside its target, by number of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edgespec.backend import Context, ContextOptions, HeadContext, Model, MTPContext
from edgespec.gguf.header import read_header
from edgespec.tuning.exactness import fast_options
from edgespec.tuning.measure import measuring_text, stand_at

if TYPE_CHECKING:
    from edgespec.kernels.operations import StateHeads

__all__ = [
    "HEAD_BATCH",
    "DraftCost",
    "DraftTrial",
    "measure_draft",
    "measure_drafting",
    "measure_head",
    "measure_heads",
    "measure_mtp",
]

HEAD_BATCH = 32
"""Tokens of one evaluation of an EAGLE-3 head, which computes logits for each of them."""

_DEPTH = 128
_FEW_STEPS = 7
_CACHE_BYTES = 32 << 20
_PIECE = 16
_PATIENCE_S = 0.5
"""For reading, and for steps: nobody waits long for a draft to be measured."""

_CYCLES = 4
_STEPS = 3
_ROUNDS = 3
_HOPELESS = 1.25


class DraftCost(NamedTuple):
    """Seconds of drafting one token, and of reading one that the draft has not seen."""

    step_s: float
    reading_s: float


def measure_draft(context: Context) -> DraftCost:
    """Measure a draft in an open context, whose content is lost. Takes a few steps."""
    return _measure_steps(context, _draft_reader(context))


def measure_head(context: HeadContext) -> DraftCost:
    """Measure an EAGLE-3 head; fusing features counts as reading."""
    return _measure_steps(context, _head_reader(context))


def measure_heads(heads: StateHeads, threads: int) -> float:
    """Return the seconds that all Medusa heads take, their weights read from memory each time."""
    heads.use_threads(threads)
    elsewhere = np.zeros(_CACHE_BYTES, np.uint8)
    seconds = []
    for _ in range(_FEW_STEPS):
        elsewhere += 1  # what the target's weights do to the processor's caches
        started = perf_counter()
        heads.compute()
        seconds.append(perf_counter() - started)
    return median(seconds[1:])


def measure_mtp(context: MTPContext) -> DraftCost:
    """Measure a model's MTP layer."""
    tokens = np.zeros(_DEPTH, np.int32)
    states = np.ones((_DEPTH, context.state_width), np.float32)
    return _measure_steps(context, lambda count: context.step(tokens[:count], states[:count]))


def _draft_reader(context: Context) -> Callable[[int], object]:
    """Return what appends up to `_DEPTH` tokens and computes the logits behind the last."""
    tokens = np.full(_DEPTH, context.model.vocabulary.bos or 0, np.int32)
    return lambda count: context.evaluate(tokens[:count], 1)


def _head_reader(context: HeadContext) -> Callable[[int], object]:
    """Return the same for a head, with features fused for more than one token."""
    head = context.model.header.eagle
    assert head is not None
    tokens = np.zeros(_DEPTH, np.int32)
    features = np.ones((_DEPTH, len(head.layers) * head.target_width), np.float32)
    state = np.ones((1, context.model.embedding_length), np.float32)

    def read(count: int) -> object:
        states = state if count == 1 else context.fuse(features[:count])
        return context.step(tokens[:count], states)

    return read


def _measure_steps(context: Context, read: Callable[[int], object]) -> DraftCost:
    """Time `read`, which appends so many tokens and computes the logits behind the last."""
    depth = max(1, min(_DEPTH, context.capacity - _FEW_STEPS - 1))
    context.clear()
    read(1)  # plans and buffers of the first call
    context.clear()
    reading_s = _reading_s(read, min(_PIECE, depth))
    if depth > _PIECE and reading_s * depth < _PATIENCE_S:
        reading_s = _reading_s(read, depth - _PIECE)
    steps: list[float] = []
    most = max(1, min(_FEW_STEPS, context.capacity - depth))
    while len(steps) < most and sum(steps) < _PATIENCE_S:
        started = perf_counter()
        read(1)
        steps.append(perf_counter() - started)
    context.clear()
    return DraftCost(float(np.median(steps)), reading_s)


def _reading_s(read: Callable[[int], object], count: int) -> float:
    started = perf_counter()
    read(count)
    return (perf_counter() - started) / count


@dataclass
class DraftTrial:
    """A draft with so many threads.

    Attributes:
        step_s: seconds of drafting one token, in each round.
        reading_s: seconds of reading one committed token.
        cycle_s: seconds of three steps and a single token of the target, which may have another
            number of threads: changing it costs time as well.
    """

    threads: int
    step_s: list[float] = field(default_factory=list)
    reading_s: list[float] = field(default_factory=list)
    cycle_s: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the medians."""
        return {k: median(v) if isinstance(v, list) else v for k, v in asdict(self).items()}


def measure_drafting(
    file: Path,
    target: Context,
    counts: Sequence[int],
    late: Callable[[], bool],
    note: Callable[[str], None],
) -> list[DraftTrial]:
    """Try a draft with these numbers of threads; the best comes first.

    Nothing is tried of Medusa heads: they are measured whenever they are opened.

    Args:
        target: an open context, whose content is lost.
        late: whether time is up; one round is made in any case.
    """
    if read_header(file).medusa is not None:
        return []
    note("loading the draft")
    trials = [DraftTrial(count) for count in counts]
    with Model(file, fast_options(file, counts[0])) as draft:
        rivals = trials
        for finished in range(_ROUNDS):
            if finished and late():
                break
            for trial in rivals:
                note(f"drafting with {trial.threads} threads")
                _look(draft, target, trial)
            limit = _HOPELESS * min(median(trial.cycle_s) for trial in rivals)
            rivals = [trial for trial in rivals if median(trial.cycle_s) <= limit]
    return sorted(trials, key=lambda trial: median(trial.cycle_s))


def _open(
    draft: Model, target: Context, threads: int, length: int, stack: ExitStack
) -> tuple[Context, Callable[[int], object]]:
    """Open a context of the draft; return it and what appends tokens to it."""
    options = ContextOptions(length=length, threads=threads, outputs=1)
    if draft.header.eagle is None:
        context = stack.enter_context(Context(draft, options))
        return context, _draft_reader(context)
    options = replace(options, batch=HEAD_BATCH, outputs=HEAD_BATCH)
    head = stack.enter_context(HeadContext(draft, options, target))
    return head, _head_reader(head)


def _look(draft: Model, target: Context, trial: DraftTrial) -> None:
    more = _CYCLES * _STEPS + 1
    length = min(_DEPTH + more, draft.context_length, target.capacity - 1)
    depth = length - more
    seen = measuring_text(target, depth + 1)
    with ExitStack() as stack:
        context, read = _open(draft, target, trial.threads, length, stack)
        read(1)  # buffers of the first call
        context.clear()
        started = perf_counter()
        read(depth)
        trial.reading_s.append((perf_counter() - started) / depth)
        steps, cycles = [], []
        for _ in range(_CYCLES):
            stand_at(target, seen, depth)
            started = perf_counter()
            target.evaluate(seen[depth : depth + 1], 1)
            drafting = perf_counter()
            for _ in range(_STEPS):
                read(1)
            ended = perf_counter()
            steps.append((ended - drafting) / _STEPS)
            cycles.append(ended - started)
        trial.step_s.append(median(steps[1:]))
        trial.cycle_s.append(median(cycles[1:]))
