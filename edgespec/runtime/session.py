"""A conversation: messages, rendered through the chat template, with the caches reused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from edgespec._types import Int32Array
from edgespec.drafters import EarlierTexts
from edgespec.errors import ContextFullError, UsageError
from edgespec.interrupts import chunks_of
from edgespec.runtime.engine import Engine
from edgespec.runtime.stream import GenerationLimits, Result, Stream, TokenChunk
from edgespec.sampling.parameters import SamplingParameters
from edgespec.templates import ChatTemplate

__all__ = ["Message", "Session"]


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


class Session:
    """A multi-turn conversation on an engine.

    Each turn renders the whole conversation; what the caches still hold of it is not evaluated
    again. When it outgrows the context, the oldest turns behind the system prompt are left out
    of what the model sees; `messages` keeps them, and `dropped` counts them.

    Args:
        engine: stays open as long as the session is used; not closed here.
        system: system prompt, or None.
        sampling: filters and seed of every turn.
        limits: what ends an answer. Its `overflow` also says whether a conversation that is
            longer than the context loses its oldest turns ("shift") or raises ("stop").
        accept: acceptance rule.
        grammar: rules in GBNF that every answer obeys.
        recent: earlier answers that prompt lookup may copy from; every answer is added. Of this
            engine: `moved_to` another, a conversation has none.

    Raises:
        TemplateError: the model has no usable chat template.
    """

    def __init__(
        self,
        engine: Engine,
        system: str | None = None,
        sampling: SamplingParameters | None = None,
        limits: GenerationLimits | None = None,
        *,
        accept: str = "auto",
        grammar: str | None = None,
        recent: EarlierTexts | None = None,
    ) -> None:
        self.engine = engine
        self.sampling = sampling or SamplingParameters()
        self.limits = limits or GenerationLimits(overflow="shift")
        self.accept = accept
        self.grammar = grammar
        self.recent = recent
        self.messages: list[Message] = []
        self.dropped = 0
        self.unanswered: str | None = None
        self._template: ChatTemplate = engine.template
        if system:
            self.messages.append(Message("system", system))

    @property
    def system(self) -> str | None:
        """The system prompt, or None."""
        first = self.messages[0] if self.messages else None
        return first.content if first and first.role == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        turns = [m for m in self.messages if m.role != "system"]
        self.messages = ([Message("system", text)] if text else []) + turns

    def reset(self) -> None:
        """Forget every turn; the system prompt stays."""
        self.messages = self.messages[:1] if self.system else []
        self.dropped, self.unanswered = 0, None

    def send(self, text: str) -> Turn:
        """Say something; iterate over the turn for the answer.

        Raises:
            UsageError: the text is empty.
            ContextFullError: the message does not fit into the context at all.
            TemplateError: the template cannot render the conversation.
        """
        if not text.strip():
            raise UsageError("the message is empty")
        return self._answer([*self.messages, Message("user", text)], self.sampling, self.messages)

    def revise(self, text: str) -> Turn:
        """Say something else in place of the last user message, and of all that came after it.

        Raises: as `send`.
            UsageError: nothing was said yet.
        """
        if not text.strip():
            raise UsageError("the message is empty")
        before = self.messages
        if self.unanswered is None:
            before = before[: self._last_message()]
        return self._answer([*before, Message("user", text)], self.sampling, before)

    def retry(self) -> Turn:
        """Answer the last user message again, with the next seed.

        Raises:
            UsageError: nothing was said yet.
        """
        if self.unanswered is not None:
            messages = [*self.messages, Message("user", self.unanswered)]
        else:
            messages = self.messages[: self._last_message() + 1]
        sampling = replace(self.sampling, seed=(self.sampling.seed + 1) % 2**64)
        turn = self._answer(messages, sampling, self.messages)
        self.sampling = sampling
        return turn

    def moved_to(self, engine: Engine) -> Session:
        """Return the same conversation on another engine.

        Raises:
            TemplateError: its model has no usable chat template.
        """
        moved = Session(
            engine,
            None,
            self.sampling,
            self.limits,
            accept=self.accept,
            grammar=self.grammar,
        )
        moved.messages, moved.unanswered = [*self.messages], self.unanswered
        return moved

    def size(self) -> int:
        """Return how many tokens the model sees of the conversation.

        Raises:
            TemplateError: the template cannot render the conversation.
        """
        turns = any(message.role != "system" for message in self.messages)
        return len(self._fit(self.messages)[0]) if turns else 0

    def would_drop(self, tokens: int) -> int:
        """Return how many of the oldest messages would be left out for so many more tokens.

        Raises:
            TemplateError: the template cannot render the conversation.
        """
        turns = sum(message.role != "system" for message in self.messages)
        try:
            return self._fit(self.messages, tokens)[1] if turns else 0
        except ContextFullError:
            return turns

    def _last_message(self) -> int:
        """Return where the user's last message is."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index].role == "user":
                return index
        raise UsageError("there is no message to answer again")

    def _answer(
        self, messages: list[Message], sampling: SamplingParameters, before: list[Message]
    ) -> Turn:
        tokens, dropped = self._fit(messages)
        system = [m for m in messages[:1] if m.role == "system"]
        limits = replace(self.limits, keep=self._front(system, tokens))
        stream = self.engine.generate(
            tokens,
            sampling,
            limits,
            accept=self.accept,
            grammar=self.grammar,
            recent=self.recent,
        )
        # Only now: a message that was refused leaves the conversation as it was.
        self.messages = messages
        self.dropped, self.unanswered = dropped, None
        return Turn(self, stream, before)

    def _fit(self, messages: list[Message], more: int = 0) -> tuple[Int32Array, int]:
        """Return the tokens of the newest part that fits, and how many messages it leaves out.

        A part that has to be cut leaves at least a quarter of the context to the answer. What was
        left out once stays out: cutting anew with every message would leave nothing in the caches.

        Args:
            messages: what is to be seen, if possible.
            more: tokens that have to fit behind them.
        """
        capacity = self.engine.context_length
        start = 1 if messages and messages[0].role == "system" else 0
        allowed = capacity - 1
        first = self.dropped if self.dropped < len(messages) - start else 0
        for dropped in range(first, len(messages) - start, 2):
            tokens = self._tokens(messages[:start] + messages[start + dropped :])
            if len(tokens) + more <= allowed:
                return tokens, dropped
            if self.limits.overflow != "shift":
                break
            allowed = capacity * 3 // 4
        raise ContextFullError(
            f"the conversation has {len(tokens)} tokens, the context holds {capacity}: "
            "raise --ctx, shorten the message, or start anew"
        )

    def _tokens(self, messages: list[Message], *, prompt: bool = True) -> Int32Array:
        rendered = self._template.render(
            [{"role": m.role, "content": m.content} for m in messages],
            add_generation_prompt=prompt,
        )
        return self.engine.tokenize(rendered)

    def _front(self, system: list[Message], tokens: Int32Array) -> int:
        """Return how many tokens the system prompt takes, which stay when the context shifts."""
        if not system or self.limits.overflow != "shift":
            return 0
        alone = self._tokens(system, prompt=False)[: len(tokens)]
        differs = np.flatnonzero(alone != tokens[: len(alone)])
        return int(differs[0]) if len(differs) else len(alone)


class Turn:
    """The answer to one message: an iterator of `TokenChunk`.

    However it ends (normally, cancelled, by an error), what was said until then is in the
    session's messages. If nothing was said, they are what they were before; a new message of the
    user's is then in `Session.unanswered`, and `Session.retry` sends it again.
    """

    def __init__(self, session: Session, stream: Stream, before: list[Message]) -> None:
        self.stream = stream
        self._session = session
        self._before = before
        self._chunks = self._run()

    def __iter__(self) -> Iterator[TokenChunk]:
        return self._chunks

    def __aiter__(self) -> AsyncIterator[TokenChunk]:
        return chunks_of(self)

    async def wait(self) -> Result:
        """Wait for the finished answer without blocking the event loop."""
        async for _ in self:
            pass
        return self.stream.result

    def _run(self) -> Iterator[TokenChunk]:
        session = self._session
        try:
            yield from self.stream
        finally:
            if self.stream.text:
                session.messages.append(Message("assistant", self.stream.text))
            else:
                if session.messages[:-1] == self._before:
                    session.unanswered = session.messages[-1].content
                session.messages = self._before

    def cancel(self) -> None:
        """End the answer, from any thread."""
        self.stream.cancel()

    @property
    def result(self) -> Result:
        """The finished answer; runs to the end if the turn was not there yet."""
        for _ in self._chunks:
            pass
        return self.stream.result
