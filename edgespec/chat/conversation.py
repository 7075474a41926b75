"""A running conversation: send a message, show the answer, store it; and its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec._types import Int32Array
from edgespec.backend.lifetime import Closing
from edgespec.chat.archive import Archive
from edgespec.chat.events import Conversation, Entry
from edgespec.chat.reader import Attachments, Reader
from edgespec.chat.recorder import CacheShelf, Recorder, State
from edgespec.chat.screen import (
    Figures,
    Forecast,
    Meter,
    Screen,
    notices,
    show_answer,
    status_line,
    summary_line,
)
from edgespec.chat.settings import Settings, settings_as_json
from edgespec.drafters import EarlierTexts
from edgespec.errors import EdgespecError, InsufficientMemoryError
from edgespec.registry.manifest import load_manifest
from edgespec.runtime.engine import Engine
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.session import Session, Turn
from edgespec.runtime.stream import Result

__all__ = ["Chat", "Engines", "texts_of"]

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


# -- the engine ---------------------------------------------------------------------------------

Open = Callable[[str | None, EngineOptions], Engine]

_KINDS = ("auto", "none", "ngram", "recycle", "mtp")


class Engines(Closing):
    """Keeps one engine open.

    Args:
        open: opens an engine.
        model: as `Engine` takes it.
        options: of this engine and of those that follow it.

    Raises: what `open` raises.
    """

    def __init__(self, open: Open, model: str | None, options: EngineOptions) -> None:
        self._open = open
        self._model, self._options = model, options
        self.engine = open(model, options)

    def close(self) -> None:
        """Close the engine that is open."""
        self.engine.close()

    @property
    def model(self) -> str:
        """Return what opens this model again from any folder."""
        model = self._model
        named = model is None or model.startswith("hf:") or load_manifest().find(model) is not None
        return self.engine.model_name if named else str(self.engine.target.model.path.absolute())

    @property
    def draft(self) -> str:
        """Return what opens this draft again."""
        path = Path(self._options.draft).expanduser()
        return str(path.absolute()) if path.is_file() else self._options.draft

    @property
    def as_json(self) -> dict[str, Any]:
        """Return what to open to continue like this, for a stored conversation."""
        return {
            "name": self.engine.model_name,
            "file": self.model,
            "draft": self.draft,
            "context": self._options.context,
        }

    def change_model(self, model: str) -> None:
        """Open another model; a draft that was made for the old one is not kept.

        Raises: what opening it raises; the engine is then as before, if memory allows for that.
        """
        draft = self._options.draft
        kept = draft if draft in _KINDS else "auto"
        self._change(model, replace(self._options, draft=kept))

    def change_draft(self, draft: str) -> None:
        """Open the same model with another draft.

        Raises: as `change_model`.
        """
        self._change(self._model, replace(self._options, draft=draft))

    def _change(self, model: str | None, options: EngineOptions) -> None:
        try:
            engine = self._opened(model, options)
        except InsufficientMemoryError:
            self._change_in_place(model, options)
            return
        self.engine.close()
        self.engine, self._model, self._options = engine, model, options

    def _change_in_place(self, model: str | None, options: EngineOptions) -> None:
        """Close the old engine first, because both do not fit into memory."""
        self.engine.close()
        try:
            self.engine = self._opened(model, options)
        except BaseException:
            self.engine = self._open(self._model, self._options)
            raise
        self._model, self._options = model, options

    def _opened(self, model: str | None, options: EngineOptions) -> Engine:
        """Open an engine, and check that it has a chat template."""
        engine = self._open(model, options)
        try:
            _ = engine.template
        except BaseException:
            engine.close()
            raise
        return engine
