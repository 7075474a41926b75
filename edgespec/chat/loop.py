"""The conversation: read a message, show the answer, say how it went."""

from __future__ import annotations

import sys
from collections.abc import Callable

from edgespec.chat.commands import completions, restore, run_command
from edgespec.chat.keyboard import no_echo, on_interrupt
from edgespec.chat.reader import PipeReader, Reader, TerminalReader
from edgespec.chat.screen import Screen
from edgespec.chat.status import notices, status_line
from edgespec.chat.storage import Conversation
from edgespec.errors import EdgespecError
from edgespec.runtime.consume import consume
from edgespec.runtime.session import Session, Turn
from edgespec.runtime.stream import Result

__all__ = ["Chat", "converse"]


def converse(session: Session, *, show: bool = False, saved: Conversation | None = None) -> None:
    """Talk on standard input and output until the user leaves.

    Args:
        session: of an open engine. If it has a system prompt, that replaces the saved one.
        show: mark every token by its origin.
        saved: a conversation to go on with.

    Raises:
        UsageError: standard input is not a terminal and not UTF-8.
        KeyboardInterrupt: Ctrl-C, unless in a terminal.
    """
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    chat = Chat(session, Screen(interactive=interactive, show=show), interactive=interactive)
    if interactive:
        chat.screen.note(f"{chat.summary}. /help lists commands, Ctrl-D ends.")
    if saved:
        system = session.system
        restore(chat, saved)
        session.system = system or session.system
    chat.run(_terminal(chat) if interactive else PipeReader())


class Chat:
    """A running conversation.

    Attributes:
        session: what was said.
        screen: where it is printed.
        running: until the user wants to leave.
        last: the latest answer.
    """

    def __init__(self, session: Session, screen: Screen, *, interactive: bool) -> None:
        self.session = session
        self.screen = screen
        self.running = True
        self.last: Result | None = None
        self._interactive = interactive
        self._used = 0

    @property
    def summary(self) -> str:
        """Model, drafter and how full the context is, in a few words."""
        engine = self.session.engine
        used = f"{self._used}/{engine.decoder.capacity}"
        return f"{engine.model_name}, draft {engine.drafter_name}, context {used}"

    def run(self, reader: Reader) -> None:
        """Answer messages and carry out commands until there are no more.

        Raises: what `reader` raises, except for the end; KeyboardInterrupt unless interactive.
        """
        while self.running:
            try:
                line = reader.read()
            except EOFError:
                return
            try:
                self._take(line)
            except EdgespecError as error:
                self.screen.error(error)
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self.screen.note("interrupted")

    def answer(self, begin: Callable[[], Turn]) -> None:
        """Show the answer that `begin` starts, and how it went.

        Raises:
            EdgespecError: there is no answer, or only a part of one.
            KeyboardInterrupt: it was stopped, and nobody is there to go on.
        """
        before = self.session.dropped
        turn = begin()
        with no_echo(), on_interrupt(turn.cancel), self.screen.answer() as show:
            result = consume(turn, show)
        self.last, self._used = result, len(turn.stream.sequence)
        if result.finish_reason == "cancelled" and not self._interactive:
            raise KeyboardInterrupt
        dropped = self.session.dropped
        for notice in notices(result, dropped, dropped - before):
            self.screen.note(notice)
        if self._interactive:
            capacity = self.session.engine.decoder.capacity
            self.screen.note(status_line(result, self._used, capacity, self.screen.width))

    def _take(self, line: str) -> None:
        text = line.strip()
        if text.startswith("/") and not text.startswith("//"):
            run_command(self, text)
        elif text:
            message = text[1:] if text.startswith("/") else line
            self.answer(lambda: self.session.send(message))


def _terminal(chat: Chat) -> TerminalReader:
    from edgespec.chat.history import history_file

    return TerminalReader(history_file(), completions, lambda: chat.summary, chat.screen.note)
