"""Reads an answer piece by piece.

Models write calls in many forms, and do not always keep to the one they were trained on, so calls
are read in all of them. Anything that names no offered tool, or breaks off before its arguments,
is text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from edgespec.compat.openai.calls.answer import (
    Answer,
    Calls,
    Event,
    Text,
    Thought,
    ToolCall,
    merged,
    whole_answer,
)
from edgespec.compat.openai.calls.cursor import (
    CHANNEL,
    LOOSE,
    OPENING,
    PART,
    SPACED,
    THOUGHTS,
    MalformedError,
    Wait,
)
from edgespec.compat.openai.calls.forms import (
    JsonCall,
    name_comes,
    read_message,
    read_named,
    read_tags,
)

__all__ = ["CallReader", "read_answer", "read_calls"]

_FENCE = re.compile(r"```[\w-]*[ \t]*\n?")


class CallReader:
    """Reads an answer piece by piece; see `read_answer` for a whole one.

    Args:
        tools: names of those that were offered; a mapping has the schemas of their parameters.
        marks: more texts that a call follows, as learned from a chat template.
        closing: ends the reasoning that the prompt has begun; empty if it has begun none, None if
            reasoning stays in the text.
    """

    def __init__(
        self,
        tools: Collection[str] | Mapping[str, Any] = (),
        marks: Collection[str] = (),
        closing: str | None = "",
    ) -> None:
        self._tools = tools if isinstance(tools, Mapping) else dict.fromkeys(tools)
        opening = {*OPENING, *filter(None, marks)} if self._tools else set()
        parts = PART if self._tools else ()
        self._marks = tuple(sorted({*opening, *parts, *CHANNEL}, key=len, reverse=True))
        self._mark = re.compile("|".join(map(re.escape, self._marks)))
        marks_too = "".join("|" + re.escape(mark) for mark in sorted(opening))
        self._nested = re.compile(r"(?:\s|\[(?![A-Z_]+\])|```[\w-]*[ \t]*\n" + marks_too + ")*")
        self._found = Calls(self._tools)
        self._cursor = self._found.cursor
        self._closing = closing
        self._blank = ""  # white space that is only passed on before text
        self._line_start = True
        self._steps = self._read()

    def feed(self, text: str) -> list[Event]:
        """Take the next text; return what is certain now."""
        if self._closing is None and not self._tools:
            return [Text(text)] if text else []
        self._cursor.text += text
        next(self._steps, None)
        return self._taken()

    def finish(self) -> list[Event]:
        """End the answer; return what was held back."""
        if self._closing is None and not self._tools:
            return []
        self._cursor.ended = True
        for _ in self._steps:
            pass
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._found.events = self._found.events, []
        return merged(events)

    # -- the answer -------------------------------------------------------------------------

    def _read(self) -> Wait[None]:
        if self._closing:
            yield from self._thought(self._closing)
        while (yield from self._thought_begins()) or (yield from self._plain()):
            pass
        if not self._found.count:
            self._found.events.append(Text(self._blank))

    def _thought_begins(self) -> Wait[bool]:
        """Read reasoning if its mark comes, at the beginning of the answer or of a line."""
        cursor = self._cursor
        if not self._line_start or self._closing is None:
            return False
        start = cursor.at
        if not self._found.shown:
            yield from cursor.skip()
        for opening, closing in THOUGHTS.items():
            if (yield from cursor.starts_with(opening)):
                cursor.at += len(opening)
                yield from self._thought(closing)
                return True
        cursor.at = start
        return False

    def _thought(self, closing: str) -> Wait[None]:
        """Pass on reasoning, without white space around it; pass over its end."""
        cursor = self._cursor
        blanks: list[str] = []  # which are only passed on before text
        yield from cursor.skip()
        while True:
            end = cursor.text.find(closing, cursor.at)
            stop = end if end >= 0 else cursor.held_from((closing,))
            part = cursor.text[cursor.at : stop]
            if kept := part.rstrip():
                self._found.events.append(Thought("".join(blanks) + kept))
                blanks.clear()
            blanks.append(part[len(kept) :])
            cursor.at = stop
            if end >= 0 or cursor.ended:
                cursor.at += len(closing) if end >= 0 else 0
                yield from cursor.skip()
                return
            cursor.forget()
            yield

    def _plain(self) -> Wait[bool]:
        """Pass on text up to what may be a call, and read that; return whether more may come."""
        cursor = self._cursor
        cursor.forget()
        if self._line_start and (yield from self._may_be_call()):
            self._line_start = False
            return True
        while True:
            line = cursor.text.find("\n", cursor.at)
            end = line if line >= 0 else len(cursor.text)
            if mark := self._mark.search(cursor.text, cursor.at, end):
                self._show(mark.start())
                self._line_start = False
                yield from self._marked(mark[0])
                return True
            if line >= 0:
                self._show(line + 1)
                self._line_start = True
                return True
            self._show(len(cursor.text) if cursor.ended else cursor.held_from(self._marks))
            if cursor.ended:
                return False
            self._line_start = False
            cursor.forget()
            yield

    def _show(self, end: int) -> None:
        """Pass on the text up to an end, unless all of the answer is blank so far."""
        text = self._cursor.text[self._cursor.at : end]
        self._cursor.at = end
        if self._found.shown or text.strip():
            self._found.shown = True
            self._found.events.append(Text(self._blank + text))
            self._blank = ""
        else:
            self._blank += text

    # -- where a call may begin -------------------------------------------------------------

    def _marked(self, mark: str) -> Wait[None]:
        """Read the calls behind a mark; the mark is text if there are none."""
        cursor = self._cursor
        start = self._found.start = cursor.at
        if mark in CHANNEL:
            if not (yield from read_message(self._found)):
                self._show(start + len(mark))
            return
        if mark not in PART:
            cursor.at += len(mark)
        if not (yield from self._calls_in_a_row(marked=True)):
            cursor.at = start
            self._show(start + len(mark))

    def _calls_in_a_row(self, *, marked: bool) -> Wait[bool]:
        cursor, found = self._cursor, False
        while True:
            before = cursor.at
            self._found.start = before if found else self._found.start
            try:
                if marked:
                    yield from cursor.skip(self._nested)
                yield from self._call(marked=marked)
            except MalformedError:
                cursor.at = before
                return found
            if self._found.broken:
                self._found.broken = False
                return True
            found = True
            yield from cursor.skip(LOOSE if marked else SPACED)

    def _may_be_call(self) -> Wait[bool]:
        """Read calls without a mark, at the beginning of a line; return whether there were any."""
        if not self._tools:
            return False
        cursor = self._cursor
        start = self._found.start = cursor.at
        if not self._found.shown:
            yield from cursor.skip()
        char = yield from cursor.peek()
        found = False
        if char == "{":
            found = yield from self._calls_in_a_row(marked=False)
        elif char == "[":
            found = yield from self._bare_list()
        elif char == "`":
            found = yield from self._fenced()
        elif char and (yield from name_comes(self._found)):
            found = yield from self._calls_in_a_row(marked=False)
        if not found:
            cursor.at = start
        return found

    def _bare_list(self) -> Wait[bool]:
        cursor = self._cursor
        cursor.at += 1
        yield from cursor.skip()
        char = yield from cursor.peek()
        if char == "{" or (char and (yield from name_comes(self._found))):
            return (yield from self._calls_in_a_row(marked=True))
        return False

    def _fenced(self) -> Wait[bool]:
        cursor = self._cursor
        if not (yield from cursor.starts_with("```")):
            return False
        fence = yield from cursor.take(_FENCE)
        if not fence:
            return False
        yield from cursor.skip(self._nested)
        char = yield from cursor.peek()
        if char not in ("{", "<") and not (char and (yield from name_comes(self._found))):
            return False
        return (yield from self._calls_in_a_row(marked=True))

    # -- one call ---------------------------------------------------------------------------

    def _call(self, *, marked: bool) -> Wait[None]:
        """Read one call.

        Raises:
            MalformedError: there is none.
        """
        char = yield from self._cursor.peek()
        if char == "{":
            yield from JsonCall(self._found, marked=marked).read()
        elif char == "<":
            yield from read_tags(self._found)
        elif char == "[" and marked:
            yield from self._cursor.skip(self._nested)
            yield from self._call(marked=marked)
        else:
            yield from read_named(self._found, marked=marked)


def read_answer(text: str, reader: CallReader) -> Answer:
    """Read a whole answer; a call whose arguments are malformed or break off is text."""
    return whole_answer([*reader.feed(text), *reader.finish()])


def read_calls(text: str, names: Collection[str] | Mapping[str, Any]) -> tuple[str, list[ToolCall]]:
    """Return the text of a whole answer, without its reasoning, and the calls in it."""
    answer = read_answer(text, CallReader(names))
    return answer.text, answer.calls
