"""Measure one way to open a context: what batches cost there, and whether they are exact.

Every batch that is timed is also compared with single tokens, so that both figures are of the
same evaluations. Sizes take turns, each evaluated twice in a row: once after another size, when
llama.cpp plans its graph anew, and once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array
from edgespec.backend import Context
from edgespec.tuning.setting import SettingFigures

__all__ = [
    "QUICK",
    "Difference",
    "Effort",
    "Proof",
    "compare",
    "measure_context",
    "measure_cost",
    "measuring_text",
    "prove_batches",
    "stand_at",
    "token_seconds",
]

Progress = Callable[[float], None]

_TEXT = (
    "The ferry leaves at six, whatever the weather. In 1913 the old pier burned down; nobody knew "
    "why. for i in range(10): print(i * i) - a list: salt, rope, tar, 14 nails. "
)


class Difference(NamedTuple):
    """Between rows of a batch of n tokens and the same rows computed alone; 0 if identical.

    Attributes:
        n: tokens of the batch.
        logit: the largest absolute difference of a logit.
        variation: the largest total variation between softmaxes at temperature 1.
    """

    n: int
    logit: float
    variation: float


class Effort(NamedTuple):
    """How much to measure.

    Attributes:
        depths: tokens in the cache; shortened to what context and text allow.
        largest: tokens of the largest batch.
        repetitions: of each size at each depth.
        seconds: time spent on batches at one depth after which no further repetition is begun,
            nor at the first depth a further size.
        needed: tokens of the batches that are measured in any case.
        twice: tokens up to which a batch is evaluated twice in a row. A longer one is evaluated
            once, and what planning took with the shorter ones is taken off.
    """

    depths: tuple[int, ...]
    largest: int
    repetitions: int
    seconds: float
    needed: int = 8
    twice: int = 64


_NOISE = 1.1
"""Times that differ by less are alike."""

QUICK = Effort(depths=(272, 40), largest=16, repetitions=2, seconds=2.0)
"""For idle moments, a few seconds: one depth is above the 256 tokens up to which flash attention
rounds alike."""


class Proof(NamedTuple):
    """Batches compared with single tokens.

    Attributes:
        identical: up to how many tokens all are bit-identical to single ones.
        different: the first batch that is not; None if none was found.
        token_s: seconds of a single token.
    """

    identical: int
    different: Difference | None
    token_s: float


_PROVING_DEPTH, _PIECE = 40, 8
_SINGLES_SHARE = 0.5  # of the time, for single tokens and what stands before them
_GLANCE_S = 0.4


def token_seconds(context: Context) -> float:
    """Return the seconds of a single token, the fastest of up to three; the content is lost."""
    token = np.full(1, context.model.vocabulary.bos or 0, np.int32)
    times: list[float] = []
    context.clear()
    context.evaluate(token, 1)  # buffers of the first call
    while len(times) < 3 and sum(times) < _GLANCE_S:
        context.clear()  # the shortest context holds one
        started = perf_counter()
        context.evaluate(token, 1)
        times.append(perf_counter() - started)
    context.clear()
    return min(times)


def prove_batches(context: Context, largest: int, seconds: float) -> Proof:
    """Compare batches of 2, 3 ... tokens with single ones, as far as there is time.

    Args:
        context: of more than `largest` tokens, opened for as many rows; its content is lost.
    """
    started = perf_counter()
    text = measuring_text(context, _PROVING_DEPTH + largest)
    most = min(_PROVING_DEPTH, context.capacity - largest)
    context.clear()
    while context.length < most and perf_counter() - started < _SINGLES_SHARE * seconds / 2:
        context.prefill(text[context.length : min(context.length + _PIECE, most)])
    depth = context.length
    alone: list[Float32Array] = []
    times: list[float] = []
    while len(alone) < largest and (
        len(alone) < 2 or perf_counter() - started < _SINGLES_SHARE * seconds
    ):
        at, began = context.length, perf_counter()
        alone.append(context.evaluate(text[at : at + 1], 1)[0].copy())
        times.append(perf_counter() - began)
    rows, took = np.stack(alone), min(times)
    proof = Proof(1, None, took)
    for n in range(2, len(alone) + 1):
        if perf_counter() - started + took > seconds and n > 2:
            break
        stand_at(context, text, depth)
        began = perf_counter()
        difference = compare(n, context.evaluate(text[depth : depth + n], n), rows)
        took = perf_counter() - began
        if difference.logit > 0.0:
            proof = proof._replace(different=difference)
            break
        proof = proof._replace(identical=n)
    context.clear()
    return proof


def measuring_text(context: Context, length: int) -> Int32Array:
    """Return at least so many tokens of ordinary text."""
    tokens = context.model.vocabulary.tokenize(_TEXT)
    return np.tile(tokens, length // max(1, len(tokens)) + 1)


def measure_context(
    context: Context, effort: Effort, progress: Progress = lambda fraction: None
) -> SettingFigures:
    """Measure an open context; its content is lost.

    Args:
        context: opened for as many rows of output as the largest batch.
        progress: called with the done fraction.
    """
    depths = sorted({min(d, context.capacity - effort.largest) for d in effort.depths})
    text = measuring_text(context, depths[-1] + effort.largest)
    run = _Run(context, text, effort, progress)
    context.clear()
    # The greatest depth first: it decides, and is measured whole if time runs out.
    for depth in reversed(depths):
        run.measure(depth)
    context.clear()
    return run.figures()


def measure_cost(
    context: Context, depth: int, sizes: Sequence[int], repetitions: int = 5
) -> dict[int, float]:
    """Return the median seconds of evaluating n tokens, all of whose logits are wanted.

    The sizes take turns, so that a machine that slows down slows all of them down; each is
    evaluated twice in a row and timed the second time, as llama.cpp plans anew for a new size.

    Args:
        context: any content is lost; opened for as many rows of output as the largest size.
        depth: tokens in the cache before each evaluation.
        sizes: the n to measure.
        repetitions: of each size.
    """
    token = context.model.vocabulary.bos or 0
    tokens = np.full(max(depth, *sizes), token, np.int32)
    times: dict[int, list[float]] = {n: [] for n in sizes}
    context.clear()
    for _ in range(repetitions):
        for n in sizes:
            for timed in (False, True):
                context.truncate(depth)
                context.prefill(tokens[context.length : depth])
                started = perf_counter()
                context.evaluate(tokens[:n], n)
                if timed:
                    times[n].append(perf_counter() - started)
    context.clear()
    return {n: float(np.median(seconds)) for n, seconds in times.items()}


def stand_at(context: Context, text: Int32Array, depth: int) -> None:
    """Make the cache hold ``text[:depth]``; one that cannot be cut there is filled again."""
    context.truncate(depth)
    context.prefill(text[context.length : depth])


def compare(n: int, batch: Float32Array, alone: Float32Array) -> Difference:
    """Compare rows of a batch of n tokens with the same rows computed alone."""
    logit = variation = 0.0
    for row, expected in zip(batch, alone, strict=False):
        if not np.array_equal(row, expected):
            logit = max(logit, float(np.abs(row - expected).max()))
            apart = np.abs(_softmax(row) - _softmax(expected)).sum() / 2
            variation = max(variation, float(apart))
    return Difference(n, logit, variation)


def _softmax(row: Float32Array) -> Float64Array:
    weights = np.exp(row.astype(np.float64) - row.max())
    normalized: Float64Array = weights / weights.sum()
    return normalized


class _Run:
    """The measurement of one context under way."""

    def __init__(
        self, context: Context, text: Int32Array, effort: Effort, progress: Progress
    ) -> None:
        self._context, self._text, self._effort = context, text, effort
        self._progress = progress
        self._largest = effort.largest
        self._times: dict[int, dict[int, list[float]]] = {}
        self._first_times: dict[int, list[float]] = {}
        self._differences: list[Difference] = []
        self._prefill_s: list[float] = []
        self._spent_s = 0.0
        self._parts = effort.repetitions * len(effort.depths)
        self._done = 0

    def measure(self, depth: int) -> None:
        """Measure all sizes behind `depth` tokens."""
        started = perf_counter()
        context = self._context
        read = depth - min(depth, context.length)
        stand_at(context, self._text, depth)
        if read >= context.options.batch:
            self._prefill_s.append((perf_counter() - started) / read)
        alone = self._alone(depth)
        first = not self._times
        self._spent_s = 0.0
        self._times[depth] = {n: [] for n in range(1, self._largest + 1)}
        for repetition in range(self._effort.repetitions):
            if repetition and self._late:
                break
            self._take_turns(depth, alone, repetition, first and repetition == 0)
            self._done += 1
            self._progress(self._done / self._parts)

    def _alone(self, depth: int) -> Float32Array:
        rows = np.empty((self._largest, self._context.model.vocabulary.size), np.float32)
        for i in range(self._largest):
            rows[i] = self._context.evaluate(self._text[depth + i : depth + i + 1], 1)[0]
        return rows

    def _take_turns(self, depth: int, alone: Float32Array, repetition: int, may_stop: bool) -> None:
        sizes = range(1, self._largest + 1)
        # Back and forth, so that a machine that slows down is unfair to no size.
        for n in reversed(sizes) if repetition % 2 else sizes:
            if may_stop and n > self._effort.needed and self._late:
                self._largest = n - 1  # at every depth
                break
            took, logits = self._time(depth, n)
            if repetition == 0:
                self._differences.append(compare(n, logits, alone))
            if n <= self._effort.twice:
                self._first_times.setdefault(n, []).append(took)
                took, _ = self._time(depth, n)
            else:
                took = max(took - self._planning_s(), took / 2)
            self._times[depth][n].append(took)

    def _time(self, depth: int, n: int) -> tuple[float, Float32Array]:
        stand_at(self._context, self._text, depth)
        started = perf_counter()
        logits = self._context.evaluate(self._text[depth : depth + n], n)
        took = perf_counter() - started
        self._spent_s += took
        return took, logits

    @property
    def _late(self) -> bool:
        return self._spent_s > self._effort.seconds

    def figures(self) -> SettingFigures:
        """Return what was measured."""
        sizes = list(range(1, self._largest + 1))
        depths = sorted(self._times)
        wrong = [d.n for d in self._differences if d.logit > 0.0]
        options = self._context.options
        return SettingFigures(
            threads=options.threads,
            flash_attention=options.flash_attention,
            repack=self._context.model.options.repack,
            kv_type=options.kv_type,
            identical=min([*(n - 1 for n in wrong), self._largest]),
            logit_difference=max(d.logit for d in self._differences),
            total_variation=max(d.variation for d in self._differences),
            depths=depths,
            sizes=sizes,
            seconds=[self._fastest(depth, sizes) for depth in depths],
            switch_s=[self._planning_s()] * len(sizes),
            prefill_s=self._reading(depths),
            kernels=self._context.model.kernels,
        )

    def _fastest(self, depth: int, sizes: Sequence[int]) -> list[float]:
        """Return the minimum of the rounds: what disturbs a measurement makes it slower.

        A larger batch that was a little faster tells that the smaller one was disturbed in every
        round; one that was much faster has another kernel. And none is worse than single tokens.
        """
        single = min(self._times[depth][1])
        fastest = [min(n * single, *self._times[depth][n]) for n in sizes]
        for i in reversed(range(len(fastest) - 1)):
            if fastest[i + 1] < fastest[i] < _NOISE * fastest[i + 1]:
                fastest[i] = fastest[i + 1]
        return fastest

    def _planning_s(self) -> float:
        """Return the seconds of planning a graph, which are the same for all sizes."""
        extra = [
            first - again
            for n, times in self._first_times.items()
            if n > 1
            for first, again in zip(times, self._all_times(n), strict=False)
        ]
        return max(0.0, _median(extra)) if extra else 0.0

    def _all_times(self, n: int) -> list[float]:
        return [took for times in self._times.values() for took in times[n]]

    def _reading(self, depths: list[int]) -> float:
        if self._prefill_s:
            return _median(self._prefill_s)
        largest = self._largest  # too short a context for a whole batch of a prompt
        return _median(self._times[depths[-1]][largest]) / largest


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
