"""Text in the target's own words, until there is enough of it.

Many conversations are written at a time, each in a slot of one context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import ParallelContext
from edgespec.backend.parallel import Rows
from edgespec.distill.corpus import Corpus, Written
from edgespec.distill.prompts import Prompts
from edgespec.drafters.protocol import draft_token
from edgespec.errors import NumericalError
from edgespec.interrupts import held_interrupts
from edgespec.sampling.filters import make_workspace
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import DrawSettings, draw_settings

__all__ = ["TEMPERATURES", "Writer", "measure_writing", "write_corpus"]


TEMPERATURES = (0.0, 0.4, 0.8, 1.0)
"""Temperatures of the answers, in turn."""

_ASKING = SamplingParameters(temperature=1.0, top_k=100, top_p=0.98, min_p=0.01)
_LONGEST_QUESTION = 120  # tokens
_MOST_REFUSED = 1000
_SHARD = 32  # conversations
_PROBED = 8  # tokens of each sequence
_ELSEWHERE = 1 << 40  # a number that no text reaches: the try must not use up its prompts
_LOOP, _LONGEST_PERIOD = 64, 20  # tokens
_ANSWERED = 0.75  # share of the time; the rest is spent on making up questions and on prompts


def write_corpus(
    corpus: Corpus,
    context: ParallelContext,
    prompts: Prompts,
    goal: int,
    answer: int,
    show: Callable[[int, float], None] = lambda tokens, seconds: None,
) -> None:
    """Add conversations until the answers have `goal` tokens and one of them is held out.

    Args:
        answer: the most tokens of one.
        show: called with the number of tokens of answers so far, and the seconds left.

    Raises:
        KeyboardInterrupt: interrupted; every finished conversation is on disk.
        NumericalError: the target's logits are broken, or the prompts are unusable.
    """
    pending: list[Written] = []
    have = before = corpus.answer_tokens
    held_out = bool(corpus.part(held_out=True))
    if have >= goal and held_out:
        return
    writer = Writer(context, prompts, corpus.next_number, answer)
    started = perf_counter()
    try:
        for written in writer.run():
            pending.append(written)
            have += len(written.tokens) - written.prompt
            held_out = held_out or written.held_out
            if len(pending) == _SHARD:
                with held_interrupts():
                    corpus.add(pending)
                    pending = []
            done = have + writer.unfinished - before
            left = max(0, goal - have - writer.unfinished)
            show(have, left * (perf_counter() - started) / done)
            if have >= goal and held_out:
                return
    finally:
        corpus.add(pending)


def measure_writing(context: ParallelContext, prompts: Prompts, answer: int) -> float:
    """Measure tokens of answers per second in a short try; its text is discarded."""
    writer = Writer(context, prompts, _ELSEWHERE, answer)
    step = iter(writer.steps())
    next(step)
    before, started = writer.written, perf_counter()
    for _ in range(_PROBED):
        next(step)
    return _ANSWERED * (writer.written - before) / (perf_counter() - started)


@dataclass
class _Slot:
    """One conversation being written.

    Attributes:
        prompt: number of tokens before the answer; 0 while the target makes up the question.
        opening: number of tokens before the question.
        limit: the largest length.
        length: number of tokens so far; the last of them is not yet evaluated.
    """

    number: int
    history: Int32Array
    settings: DrawSettings
    limit: int
    opening: int = 0
    prompt: int = 0
    length: int = 0
    hidden: list[Float32Array] = field(default_factory=list)
    layers: list[Float32Array] = field(default_factory=list)
    top: list[int] = field(default_factory=list)
    normalizer: list[float] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether the target has written a token."""
        return self.length > max(self.opening, self.prompt)

    @property
    def loops(self) -> bool:
        """Whether the target only repeats itself: there is nothing to learn from that."""
        if self.length - max(self.opening, self.prompt) < _LOOP or self.length % 8:
            return False
        tail = self.history[self.length - _LOOP : self.length]
        same = np.flatnonzero(tail[-_LONGEST_PERIOD - 1 : -1] == tail[-1])
        periods = (_LONGEST_PERIOD - int(place) for place in same)
        return any(np.array_equal(tail[period:], tail[:-period]) for period in periods)


class Writer:
    """Writes one conversation after the other in every sequence of a context.

    Args:
        context: each of its sequences has a conversation at a time.
        prompts: what is asked.
        first: number of the first prompt.
        answer: the largest number of tokens of an answer.
    """

    def __init__(self, context: ParallelContext, prompts: Prompts, first: int, answer: int) -> None:
        self._context, self._prompts = context, prompts
        self._next, self._answer = first, answer
        self._refused = 0
        vocabulary = context.model.vocabulary
        self._vocabulary, self._ends = vocabulary, vocabulary.end_tokens
        self._width = context.model.embedding_length
        opening = prompts.opening(first)
        if opening is not None:
            context.share(opening[:-1])
        self._q = np.zeros(vocabulary.size, np.float32)
        self._workspace = make_workspace(vocabulary.size, context.longest)
        self._slots: list[_Slot] = []
        self.written = 0  # tokens, questions included

    @property
    def unfinished(self) -> int:
        """Number of tokens of answers that are being written."""
        return sum(slot.length - slot.prompt for slot in self._slots if slot.prompt)

    def run(self) -> Iterator[Written]:
        """Yield conversations as they are finished, without end.

        Raises:
            CancelledError: the context was cancelled.
            NumericalError: the target's logits are NaN or +inf, or no prompt is usable.
        """
        for finished in self.steps():
            yield from finished

    def steps(self) -> Iterator[list[Written]]:
        """Yield after every evaluation the conversations that it finished."""
        sequences = np.arange(self._context.sequences, dtype=np.int32)
        slots = self._slots = [self._ask(int(sequence)) for sequence in sequences]
        while True:
            last = np.array([slot.history[slot.length - 1] for slot in slots], np.int32)
            rows = self._context.step(sequences, last)
            for sequence, slot in enumerate(slots):
                self._keep(slot, rows, sequence)
            ended = [
                slot.begun and (int(token) in self._ends or slot.length >= slot.limit or slot.loops)
                for token, slot in zip(last, slots, strict=True)
            ]
            # Read everything from the rows before a new conversation overwrites them.
            for sequence, slot in enumerate(slots):
                if not ended[sequence]:
                    self._extend(slot, rows.logits[sequence])
            yield [
                self._finished(s)
                for s, end in zip(slots, ended, strict=True)
                if end and s.prompt and self._worth(s)
            ]
            for sequence, end in enumerate(ended):
                if end:
                    slots[sequence] = self._follow(slots[sequence], sequence)

    # -- beginnings -------------------------------------------------------------------------

    def _follow(self, slot: _Slot, sequence: int) -> _Slot:
        """Begin the answer to a question that was made up; else the next conversation."""
        if not slot.prompt:
            asked = slot.history[slot.opening : slot.length]
            prompt = self._prompts.prompt(slot.number, self._vocabulary.decode(asked))
            if prompt is not None and self._fits(prompt):
                self._refused = 0
                return self._begin(slot.number, prompt, sequence, answers=True)
            self._refuse()
        return self._ask(sequence)

    def _ask(self, sequence: int) -> _Slot:
        while True:
            number, self._next = self._next, self._next + 1
            opening = self._prompts.opening(number)
            if opening is not None:
                return self._begin(number, opening, sequence, answers=False)
            prompt = self._prompts.prompt(number, "")
            if prompt is not None and self._fits(prompt):
                return self._begin(number, prompt, sequence, answers=True)
            self._refuse()

    def _fits(self, prompt: Int32Array) -> bool:
        return 0 < len(prompt) <= self._context.longest - self._answer

    def _refuse(self) -> None:
        self._refused += 1
        if self._refused == _MOST_REFUSED:
            raise NumericalError(
                f"{_MOST_REFUSED} prompts in a row are empty, repeated or too long: "
                "give others with --data FILE"
            )

    def _begin(self, number: int, tokens: Int32Array, sequence: int, *, answers: bool) -> _Slot:
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        sampling = SamplingParameters(temperature=temperature, seed=number) if answers else _ASKING
        settings = draw_settings(sampling, "auto")._replace(seed=number)
        most = self._answer if answers else _LONGEST_QUESTION
        history = np.zeros(self._context.longest + 1, np.int32)
        history[: len(tokens)] = tokens
        slot = _Slot(number, history, settings, min(len(tokens) + most, self._context.longest))
        slot.length = len(tokens)
        if answers:
            slot.prompt = len(tokens)
        else:
            slot.opening = len(tokens)
        layers = self._context.begin(sequence, tokens[:-1])
        if answers:
            count = len(layers)
            slot.hidden.append(np.zeros((count, self._width), np.float32))
            slot.layers.append(layers)
            slot.top += [0] * count
            slot.normalizer += [0.0] * count
        return slot

    # -- continuations ----------------------------------------------------------------------

    def _extend(self, slot: _Slot, logits: Float32Array) -> None:
        token, _ = draft_token(
            logits, slot.history, slot.length, slot.settings, self._q, self._workspace
        )
        if token < 0:
            raise NumericalError(
                f"{self._context.model.path.name} produced NaN or infinite logits: "
                "the file may be damaged"
            )
        slot.history[slot.length] = token
        slot.length += 1
        self.written += 1

    def _keep(self, slot: _Slot, rows: Rows, row: int) -> None:
        if slot.prompt:
            slot.hidden.append(rows.hidden[row : row + 1].copy())
            slot.layers.append(rows.layers[row : row + 1].copy())
            self._summarize(slot, rows.logits[row])

    def _summarize(self, slot: _Slot, logits: Float32Array) -> None:
        top = int(np.argmax(logits))
        largest = float(logits[top])
        slot.top.append(top)
        slot.normalizer.append(largest + float(np.log(np.exp(logits - largest).sum())))

    def _worth(self, slot: _Slot) -> bool:
        answer = self._vocabulary.decode(slot.history[slot.prompt : slot.length])
        return self._prompts.answered(slot.number, answer)

    def _finished(self, slot: _Slot) -> Written:
        return Written(
            slot.number,
            self._prompts.held_out(slot.number),
            slot.prompt,
            slot.history[: slot.length].copy(),
            np.concatenate(slot.hidden),
            np.concatenate(slot.layers),
            np.array(slot.top, np.int32),
            np.array(slot.normalizer, np.float32),
        )
