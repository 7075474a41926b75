"""One generation: an iterator of text, with a result at its end."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.drafters import EarlierTexts
from edgespec.errors import CancelledError, EndedError, UsageError
from edgespec.interrupts import chunks_of
from edgespec.runtime.constraint import Constraint
from edgespec.runtime.cycle import (
    Cycle,
    GenerationTrace,
    LogprobReader,
    Origin,
    Statistics,
    TokenLogprobs,
)
from edgespec.runtime.decoder import Edit, PrefillProgress
from edgespec.speculation.acceptance import DrawSettings

__all__ = [
    "FinishReason",
    "GenerationLimits",
    "LoopDetector",
    "Result",
    "Stream",
    "TextAssembler",
    "TokenChunk",
]

_EVERY = 32
"""Tokens between two looks: where an answer ends depends on nothing but its tokens."""

_LONG = 400
"""Tokens that have to be one repetition, at least."""

_LONG_DATA = 1200
"""The same, where no letter is repeated."""

_TIMES = 5
"""How often, at least."""

_LONGEST = 256
"""The longest text, in tokens, that is repeated."""

_SEEN = max(_TIMES * _LONGEST, _LONG_DATA)


class LoopDetector:
    """Tells where an answer has become a loop.

    Args:
        prompt: int32 (n,), what the answer follows: repetitions in it may be copied.
        piece: returns a token's bytes.
    """

    def __init__(self, prompt: Int32Array, piece: Callable[[int], bytes]) -> None:
        self._prompt = prompt
        self._piece = piece

    def found(self, answer: Sequence[int], following: Sequence[int] = ()) -> bool:
        """Return whether an answer that has become so long ends as a loop.

        It says so at certain lengths only: it has to be asked at every length.

        Args:
            answer: tokens of the answer.
            following: more of them.
        """
        size = len(answer) + len(following)
        if size < _LONG or size % _EVERY:
            return False
        tail = np.array([*answer[-_SEEN:], *following][-_SEEN:], np.int32)
        return any(_run(tail, period) >= self._wanted(tail[-period:]) for period in _periods(tail))

    def _wanted(self, unit: Int32Array) -> int:
        """Return the tokens of a repetition of this text that are too many."""
        text = b"".join(map(self._piece, unit.tolist())).decode("utf-8", "ignore")
        least = _LONG if any(map(str.isalpha, text)) else _LONG_DATA
        return max(least, _TIMES * len(unit), _longest_run(self._prompt, unit) + _LONG)


def _periods(tail: Int32Array) -> Iterator[int]:
    """Yield the periods that the last tokens may have."""
    same = tail[-1 - _LONGEST : -1] == tail[-1]
    for period in np.flatnonzero(same[::-1]) + 1:
        if np.array_equal(tail[period - _LONG :], tail[-_LONG:-period]):
            yield int(period)


def _run(tail: Int32Array, period: int) -> int:
    """Return how many of the last tokens have this period."""
    differs = np.flatnonzero(tail[period:] != tail[:-period])
    return len(tail) - (int(differs[-1]) + 1 if len(differs) else 0)


def _longest_run(tokens: Int32Array, unit: Int32Array) -> int:
    """Return the tokens of the longest repetition of `unit`, beginning anywhere in it; or 0."""
    period = len(unit)
    if len(tokens) < 2 * period:
        return 0
    differs = np.flatnonzero(tokens[period:] != tokens[:-period])
    borders = np.concatenate(([-1], differs, [len(tokens) - period]))
    place = int(np.argmax(np.diff(borders)))
    start, size = int(borders[place]) + 1, int(np.diff(borders)[place]) - 1 + period
    turns = np.lib.stride_tricks.sliding_window_view(np.tile(unit, 2), period)
    return size if (turns == tokens[start : start + period]).all(axis=1).any() else 0


FinishReason = Literal["stop", "length", "loop", "context", "cancelled"]


@dataclass(frozen=True)
class GenerationLimits:
    """What ends a generation besides the model's own end token.

    Attributes:
        max_tokens: most tokens to emit; None for no limit but the context.
        stop: strings; the text ends before the first one.
        overflow: a full context ends the generation ("stop"), or half of the tokens behind the
            first `keep` are dropped and the rest is evaluated again ("shift").
        keep: tokens at the front that a shift leaves alone.
        allow_loops: go on where the answer has only repeated itself for hundreds of tokens.

    Raises:
        UsageError: a value is out of range.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    overflow: Literal["stop", "shift"] = "stop"
    keep: int = 0
    allow_loops: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max-tokens is {self.max_tokens}: it has to be 1 or more")
        if isinstance(self.stop, str) or not all(isinstance(one, str) for one in self.stop):
            raise UsageError(f"stop is {self.stop!r}: it has to be a tuple of strings")
        if not all(self.stop):
            raise UsageError("a stop string is empty: leave it out or give it a character")
        if self.overflow not in ("stop", "shift"):
            raise UsageError(f"overflow is {self.overflow!r}: it is stop or shift")
        if self.keep < 0:
            raise UsageError(f"keep is {self.keep}: it has to be 0 or more")


@dataclass(frozen=True)
class TokenChunk:
    """Text released by one token, and where that token came from.

    Attributes:
        text: whole characters.
        token: the one that released it.
        origin: of that token.
        logprobs: if they were asked for, of every token since the last chunk.
    """

    text: str
    token: int
    origin: Origin
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Result:
    """A finished generation.

    Attributes:
        text: what was shown; ends before a stop string.
        tokens: every emitted token, an end token included.
        finish_reason: "stop" for an end token or stop string, "length" for max_tokens,
            "loop" where it only repeated itself, "context" for a full context, "cancelled".
        logprobs: of every emitted token but those of a stop string, if they were asked for.
        complete: False where it was cut off before it was a whole text of its grammar.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    model: str
    drafter: str
    statistics: Statistics = field(repr=False)
    logprobs: tuple[TokenLogprobs, ...] = field(default=(), repr=False)
    complete: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``edgespec run --json`` prints."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "prompt_tokens": self.prompt_tokens,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "drafter": self.drafter,
            "timings": self.statistics.timings(),
            "speculation": self.statistics.speculation(),
        }


class Runner(Protocol):
    """What a stream needs of an engine."""

    model_name: str
    drafter_name: str
    vocabulary: Vocabulary

    def advance(self, stream: Stream, limit: int) -> Cycle | None:
        """Run one cycle for this stream; None when its context is full."""

    def retract(self, stream: Stream) -> None:
        """Note that the stream has ended; tokens of its last cycle may have been dropped."""

    def interrupt(self, stream: Stream) -> None:
        """Stop this stream's running evaluation, if it has one."""


class Stream:
    """An iterator of `TokenChunk`, also an asynchronous one; at its end there is a `result`.

    A cancelled stream ends like any other, with what was emitted until then. `cancel` may be
    called from any thread; one thread, or one task, reads the chunks.
    """

    def __init__(
        self,
        runner: Runner,
        prompt: Int32Array,
        settings: DrawSettings,
        limits: GenerationLimits,
        constraint: Constraint | None = None,
        logprobs: LogprobReader | None = None,
        progress: PrefillProgress | None = None,
        most: int | None = None,
        edit: Edit | None = None,
    ) -> None:
        self.constraint = constraint
        self.most, self.edit = most, edit
        self.logprobs = logprobs
        self.progress = progress
        self.shown: Mapping[int, bytes] = {}  # control tokens that are a part of the text
        self.recent: EarlierTexts | None = None
        self.trace: GenerationTrace | None = None
        self.settings = settings
        self.limits = limits
        self.statistics = Statistics()
        self.prompt_tokens = len(prompt)
        self.sequence: list[int] = prompt.tolist()  # prompt and answer, as the caches have them
        self.cancelled = False
        self.emitted: list[int] = []
        self._runner = runner
        self._assembler = TextAssembler(limits.stop)
        self._ends = runner.vocabulary.end_tokens
        vocabulary = runner.vocabulary
        self._loops = None if limits.allow_loops else LoopDetector(prompt, vocabulary.piece)
        self._complete = True
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._starts: list[int] = []  # the character of the answer that each of them begins at
        self._spelled = SpelledText()
        self._told = 0  # of those, in chunks
        self._shown = 0  # characters
        self._reason: FinishReason | None = None
        self._chunks = self._generate()

    def __iter__(self) -> Iterator[TokenChunk]:
        return self._chunks

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return chunks_of(self)

    async def wait(self) -> Result:
        """Wait for the result without blocking the event loop.

        Raises: as `result`.
        """
        async for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """End the stream; a running evaluation is stopped at its next operation."""
        self.cancelled = True
        self._runner.interrupt(self)

    def skip(self) -> None:
        """End it before its first token, as if that were one too many."""
        self._reason = "length"

    @property
    def result(self) -> Result:
        """Run to the end, if not there yet, and say how it went.

        Raises: what the generation raised.
        """
        for _ in self._chunks:
            pass
        if self._reason is None:
            raise UsageError("the stream was closed or failed before it ended: it has no result")
        return Result(
            text="".join(self._text),
            tokens=tuple(self.emitted),
            prompt_tokens=self.prompt_tokens,
            finish_reason=self._reason,
            model=self._runner.model_name,
            drafter=self._runner.drafter_name,
            statistics=self.statistics,
            logprobs=tuple(self._logprobs),
            complete=self._complete,
        )

    @property
    def text(self) -> str:
        """The text released so far."""
        return "".join(self._text)

    def kept(self, tokens: list[int], pieces: list[bytes]) -> int:
        """Return how many of the next tokens stand up to an end token, a stop string, or a loop."""
        assembler = self._assembler.copy() if self.limits.stop else None
        for size, (token, piece) in enumerate(zip(tokens, pieces, strict=True), 1):
            if token in self._ends:
                return size
            if assembler:
                assembler.feed(piece)
                if assembler.stopped:
                    return size
            if self._loops and self._loops.found(self.emitted, tokens[:size]):
                return size
        return len(tokens)

    def _generate(self) -> Iterator[TokenChunk]:
        try:
            yield from self._run()
        finally:
            if self.constraint:
                if self._reason not in (None, "stop"):  # None: it failed, or was left alone
                    self._complete = self.constraint.complete()
                self.constraint.close()
            if self.trace is not None:
                self.trace.end(self._reason, len(self.emitted), self.statistics)

    def _run(self) -> Iterator[TokenChunk]:
        last = Origin.PLAIN
        while self._reason is None:
            cycle = self._next_cycle()
            if cycle is None:
                break
            for index, (token, last) in enumerate(zip(cycle.tokens, cycle.origins, strict=True)):
                if cycle.logprobs:
                    self._starts.append(self._spelled.add(cycle.pieces[index]))
                    self._logprobs.append(cycle.logprobs[index])
                yield from self._take(token, cycle.pieces[index], last)
                if self._reason is not None:
                    break
        self._runner.retract(self)
        rest = self._assembler.finish()
        self._shown += len(rest)
        if self._assembler.stopped:
            del self._logprobs[bisect_left(self._starts, self._shown) :]
        if rest or self._told < len(self._logprobs):
            yield self._chunk(rest, self.emitted[-1] if self.emitted else -1, last)

    def _next_cycle(self) -> Cycle | None:
        limit = self.limits.max_tokens
        left = 2**31 if limit is None else limit - len(self.emitted)
        try:
            if self.cancelled:
                raise CancelledError("cancelled")
            cycle = self._runner.advance(self, left)
        except CancelledError as error:
            self._reason = "stop" if isinstance(error, EndedError) else "cancelled"
            return None
        if cycle is None:
            self._reason = "context"
        return cycle

    def _take(self, token: int, piece: bytes, origin: Origin) -> Iterator[TokenChunk]:
        """Account for one token; yields its text, sets the reason if it ends the generation."""
        self.emitted.append(token)
        self.sequence.append(token)
        if token in self._ends:
            self._reason = "stop"
            return
        text = self._assembler.feed(self.shown.get(token, piece))
        if self._assembler.stopped:
            self._reason = "stop"
        elif len(self.emitted) == self.limits.max_tokens:
            self._reason = "length"
        elif self._loops and self._loops.found(self.emitted):
            self._reason = "loop"
        if text:
            self._shown += len(text)
            told = bisect_left(self._starts, self._shown)  # what is behind may be a stop string's
            yield self._chunk(text, token, origin, told)

    def _chunk(self, text: str, token: int, origin: Origin, told: int | None = None) -> TokenChunk:
        self._text.append(text)
        logprobs = tuple(self._logprobs[self._told : told])
        self._told += len(logprobs)
        return TokenChunk(text, token, origin, logprobs)


class SpelledText:
    """Counts the characters that tokens spell."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def add(self, piece: bytes) -> int:
        """Return the character that a token's first byte belongs to."""
        start = self._length
        self._length += len(self._decoder.decode(piece))
        return start


class TextAssembler:
    """Feeds on the bytes of one token at a time and releases text that nothing later can take back.

    Bytes of an unfinished character wait for the next token; text that may be the beginning of a
    stop string waits until it is or is not one. A stop string is cut off.

    Args:
        stop: stop strings, none empty.

    Raises:
        UsageError: a stop string is empty.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if not all(stop):
            raise UsageError("a stop string is empty: leave it out or give it a character")
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def copy(self) -> TextAssembler:
        """Return another one in the same state."""
        other = TextAssembler(self._stop)
        other._decoder.setstate(self._decoder.getstate())
        other._held, other.stopped = self._held, self.stopped
        return other

    def feed(self, piece: bytes) -> str:
        """Return the text that a token releases; empty if it waits, or after a stop string."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(piece)
        return self._release()

    def finish(self) -> str:
        """Return what is still held: a half stop string is text, a half character is U+FFFD."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        text = self._release()
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self) -> str:
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
