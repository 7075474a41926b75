"""A running conversation: send a message and files, show the answer, measure it, store it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from edgespec._types import Int32Array
from edgespec.chat.archive import Archive
from edgespec.chat.engines import Engines
from edgespec.chat.events import Conversation, Entry
from edgespec.chat.reader import Reader
from edgespec.chat.recorder import CacheShelf, Recorder, State
from edgespec.chat.screen import Screen, show_answer
from edgespec.chat.settings import Settings, settings_as_json
from edgespec.chat.status import Figures, Forecast, Meter, notices, status_line, summary_line
from edgespec.drafters import EarlierTexts
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import read_text
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Session, Turn
from edgespec.runtime.stream import Result

__all__ = ["Attachment", "Attachments", "Chat", "texts_of"]

_SHARE = 0.75
"""Share of the context that files may take: the rest is for the message and its answer."""

_MOST_BYTES_PER_TOKEN = 64  # to refuse what cannot fit without counting its tokens


class Attachment(NamedTuple):
    """A file to send.

    Attributes:
        tokens: how many it takes, by the model's own count.
    """

    name: str
    text: str
    tokens: int


class Attachments:
    """Files that wait for the next message."""

    def __init__(self) -> None:
        self._files: list[Attachment] = []

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the files, in their order."""
        return [file.name for file in self._files]

    def add(self, path: Path, engine: Engine) -> Attachment:
        """Read a file and add it.

        Raises:
            UsageError: it cannot be read, is no text, or does not fit beside the others.
        """
        room = int(engine.context_length * _SHARE) - sum(file.tokens for file in self._files)
        most = engine.context_length * _MOST_BYTES_PER_TOKEN
        text = read_text(path, most, "does not fit into the context")
        file = Attachment(path.name, text, len(engine.tokenize(_fenced(path.name, text))))
        if file.tokens > room:
            beside = " beside the other files" if self._files else ""
            raise UsageError(
                f"{path} has {file.tokens:,} tokens and {max(0, room):,} fit{beside}: "
                "give a part of it, or start again with a larger --ctx"
            )
        self._files.append(file)
        return file

    def clear(self) -> None:
        """Take all files back."""
        self._files = []

    def before(self, text: str) -> str:
        """Return the message with the files before it."""
        return "".join(_fenced(file.name, file.text) for file in self._files) + text


def _fenced(name: str, text: str) -> str:
    """Put a text between fences that are longer than any in it."""
    longest = max(map(len, re.findall(r"^ *(`{3,})", text, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    return f"{name}:\n\n{fence}\n{text.rstrip()}\n{fence}\n\n"


_LOOKED_UP = 1 << 16
"""Tokens of earlier conversations, where they are looked up."""


class Chat:
    """A running conversation.

    Args:
        store: keep the conversation on disk.
        lookup: let answers copy from stored conversations, and from this one after a reset.

    Attributes:
        session: holds what was said.
        screen: where it is printed.
        reader: where messages come from, while it runs.
        running: until the user wants to leave.
        failed: whether a message was not answered.
        last: the latest answer, and its figures.
        listed: ids of the conversations in the latest list.
    """

    reader: Reader

    def __init__(
        self,
        engines: Engines,
        session: Session,
        screen: Screen,
        *,
        store: bool = True,
        archive: Archive | None = None,
        shelf: CacheShelf | None = None,
        lookup: bool = False,
    ) -> None:
        self.engines = engines
        self.session = session
        self.screen = screen
        self.archive = archive or Archive()
        self.shelf = shelf or CacheShelf()
        self.recorder = Recorder(self.archive, keep=store, warn=screen.note)
        self.attachments = Attachments()
        self.running, self.failed = True, False
        self.last: tuple[Result, Figures] | None = None
        self.listed: Sequence[str] = ()
        self._forecast = Forecast()
        self._sequence: Sequence[int] = ()  # tokens in the context, since there was an answer
        self._size = 0  # in tokens, until then
        self._lookup = lookup
        self._look_up()

    @property
    def summary(self) -> str:
        """Return model, drafter and how full the context is, in a few words."""
        engine = self.session.engine
        return summary_line(
            engine.model_name,
            engine.drafter_name,
            len(self._sequence) or self._size,
            engine.context_length,
            self.attachments.names,
            self.screen.width,
        )

    @property
    def entries(self) -> Sequence[Entry]:
        """Return what was said, as it is stored."""
        return self.recorder.entries[: len(texts_of(self.session))]

    def conversation(self) -> Conversation:
        """Return the conversation as it stands now."""
        entries = [*self.entries]
        created = entries[0].time if entries else ""
        id = self.recorder.id or "not stored"
        return Conversation(id, created, facts=dict(self._state().facts), entries=entries)

    def say(self, message: str) -> None:
        """Send a message with the files that wait, and show the answer.

        Raises: as `answer`.
        """
        files = self.attachments
        whole, about = files.before(message), {"files": [*files.names]} if files.names else None

        def send() -> Turn:
            turn = self.session.send(whole)
            files.clear()  # now they are said
            return turn

        self.answer(send, message, about)

    def answer(
        self,
        begin: Callable[[], Turn],
        typed: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Show the answer that `begin` starts, and how it went.

        Args:
            typed: the part of the message that the user typed, if that is not all of it.
            about: the message, as it is stored.

        Raises:
            EdgespecError: there is no answer, or only a part of one.
            KeyboardInterrupt: it was stopped, and there is no terminal to continue in.
        """
        before = self.session.dropped
        turn = begin()
        self.record(typed, about)
        meter = Meter(turn, self.session.engine)
        ended = "failed"
        try:
            result = show_answer(turn, meter, self.session.engine, self.screen)
            ended = result.finish_reason
        finally:
            self._sequence = turn.stream.sequence
            figures = meter.read()
            about_it = {
                "model": self.session.engine.model_name,
                "finish_reason": ended,
                "dropped": self.session.dropped,
            }
            self.record(details={**about_it, **figures.as_json()})
        self.last = result, figures
        if result.finish_reason == "cancelled" and not self.screen.interactive:
            raise KeyboardInterrupt
        self._say_how_it_went(result, figures, before)

    def record(self, typed: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        """Store what is new."""
        self.recorder.write(self._state(), typed, details)

    def leave(self) -> None:
        """Close this conversation, which can be resumed later; a new one begins."""
        self._keep_cache()
        self.recorder.leave()
        self._forget()

    def part(self, texts: int) -> None:
        """Close this conversation; a new one begins with the first `texts` of it."""
        self._keep_cache()
        self.recorder.branch(texts)
        self._forget()

    def measure(self) -> None:
        """Count the tokens of a conversation that was just opened."""
        with suppress(EdgespecError):  # it is said when it is answered
            self._size = self.session.size()

    def end(self) -> None:
        """Close the conversation, and say how to resume it."""
        id = self.recorder.id
        self.leave()
        if id and self.screen.interactive:
            self.screen.note(f"stored: `edgespec chat --resume {id}` continues it")

    def change_engine(self, change: Callable[[], None]) -> None:
        """Continue with another engine, which `change` opens in place of this one.

        Raises: what `change` raises; the conversation is then as before.
        """
        id = self.recorder.id
        self._keep_cache()
        try:
            change()
        finally:
            if self.session.engine is not self.engines.engine:
                self.session = self.session.moved_to(self.engines.engine)
                self._look_up()
        if id:
            self.shelf.load(self.session.engine, id)
        self._forget()
        self.measure()
        self.record()

    def _look_up(self) -> None:
        """Index the latest stored conversations, as far as they fit."""
        if not self._lookup:
            return
        vocabulary = self.session.engine.vocabulary
        found: list[Int32Array] = []
        left = _LOOKED_UP // 2  # the rest is for what is said now
        for conversation in self.archive.conversations(lambda problem: None):
            for entry in reversed(conversation.entries):
                found.append(vocabulary.tokenize(entry.said, add_special=False))
                left -= len(found[-1]) + 1
            if left <= 0:
                break
        self.session.recent = earlier = EarlierTexts(_LOOKED_UP)
        for text in reversed(found):
            earlier.add(text)

    def _say_how_it_went(self, result: Result, figures: Figures, before: int) -> None:
        dropped = self.session.dropped
        shifted = result.prompt_tokens + len(result.tokens) - figures.used
        for notice in notices(result, dropped, dropped - before, shifted):
            self.screen.note(notice)
        if self.screen.interactive:
            self.screen.note(status_line(figures, self.screen.width))
        if forecast := self._forecast.after(self.session, figures.used):
            self.screen.note(forecast)

    def _state(self) -> State:
        session = self.session
        settings = Settings(session.sampling, session.limits, session.accept)
        facts = {
            "model": self.engines.as_json,
            "settings": settings_as_json(settings),
            "system": {"text": session.system},
        }
        return State(texts_of(session), facts)

    def _keep_cache(self) -> None:
        if self.recorder.id and self._sequence:
            self.shelf.save(self.session.engine, self.recorder.id, self._sequence)

    def _forget(self) -> None:
        self.last, self._forecast = None, Forecast()
        self._sequence, self._size = (), 0


def texts_of(session: Session) -> list[str]:
    """Return what user and model said, in turn; a message without an answer comes last."""
    texts = [message.content for message in session.messages if message.role != "system"]
    return texts if session.unanswered is None else [*texts, session.unanswered]
