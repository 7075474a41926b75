"""Tell reasoning, text and tool calls of an answer apart while it is written.

Models write calls in many forms, and do not always keep to the one they were trained on, so calls
are read in all of them. Anything that names no offered tool, or breaks off before its arguments,
is text.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from edgespec.compat.openai.tools import ToolCall
from edgespec.compat.openai.values import (
    Cursor,
    MalformedError,
    Wait,
    as_typed,
    copy_until,
    is_text,
    parameter_schema,
    read_arguments,
    read_key,
    read_value,
)

__all__ = [
    "MARKS",
    "Answer",
    "Arguments",
    "Broken",
    "CallBegin",
    "CallReader",
    "Event",
    "Text",
    "Thought",
    "opened_thought",
    "read_answer",
    "read_calls",
    "whole_answer",
]


class Text(NamedTuple):
    """A part of the answer that is text."""

    text: str


class Thought(NamedTuple):
    """A part of the reasoning in front of it."""

    text: str


class CallBegin(NamedTuple):
    """A call of an offered tool begins."""

    number: int
    name: str


class Arguments(NamedTuple):
    """A part of the JSON of a call's arguments."""

    number: int
    text: str


class Broken(NamedTuple):
    """The arguments of a call ended too early, or are malformed; `text` is all of what was read."""

    number: int
    text: str


Event = Text | Thought | CallBegin | Arguments | Broken


class Answer(NamedTuple):
    """A whole answer."""

    text: str
    reasoning: str
    calls: list[ToolCall]


_THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought\n": "<channel|>",
    "◁think▷": "◁/think▷",
}
# Marks that a call follows. Those of the second group are a part of it.
_OPENING = (
    *(
        "<tool_call>",
        "<tool_calls>",
        "<tools>",
        "<|tool_call|>",
        "<|tool_call>",
        "<seed:tool_call>",
    ),
    *("<|tool_call_start|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<TOOLCALL>"),
    *("[TOOL_CALLS]", "[TOOL_REQUEST]", "<|python_tag|>", "<start_function_call>", "functools["),
    *("<minimax:tool_call>", "<function_call>", "<function_calls>", "<|START_ACTION|>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜DSML｜function_calls>"),
    *("<|action_start|>", "<|tools_prefix|>", "<longcat_tool_call>"),
)
_PART = ("<function=", "<function name=", "<invoke name=", "<｜DSML｜invoke name=")
_CHANNEL = ("<|channel|>", "<|start|>")
_CLOSING = (
    *("</tool_call>", "<tool_call|>", "<|tool_call_end|>", "<end_function_call>", "<|/tool_call|>"),
    *(
        "<|tool_calls_section_end|>",
        "<|END_ACTION|>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<|action_end|>", "<|tools_suffix|>", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>"),
    *("[ARGS]", "[CALL_ID]", "<escape>", '<|"|>', "<|message|>", "<|constrain|>", "<|end|>"),
    *("<|plugin|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</seed:tool_call>"),
)
MARKS = frozenset((*_THOUGHTS, *_THOUGHTS.values(), *_OPENING, *_PART, *_CHANNEL, *_CLOSING))
"""Texts that tell parts of an answer apart; where they are control tokens they have to be shown."""

_NAME_KEYS = frozenset(("name", "function", "tool", "tool_name", "function_name", "action"))
_ARGUMENT_KEYS = frozenset(
    (
        *("arguments", "parameters", "args", "params", "input", "kwargs", "tool_input"),
        *("action_input", "tool_arguments", "function_arguments", "tool_parameters"),
    )
)
_OTHER_KEYS = frozenset(("id", "type", "call_id", "tool_call_id", "index", "thought", "reason"))
_FENCE = re.compile(r"```[\w-]*[ \t]*\n?\s*")
_LOOSE = re.compile(
    r"(?:[\s,;\]})]|```(?![\w-])|</[\w:|｜-]{1,40}>|<\|/?[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>"
    r"|<[\w]{1,40}\|>|<end_function_call>|\[/\w{1,40}\]|\[END_TOOL_REQUEST\])*"
)
_SPACED = re.compile(r"(?:[\s,;]|</[\w:|｜-]{1,40}>)*")
_FUNCTION = "function<｜tool▁sep｜>"
_HEAD = re.compile(r"(?:functions?[.:]|call:|tool:|<\|plugin\|>)?\s*([\w./:-]*)")
_BEFORE_ARGUMENTS = re.compile(
    r"(?:\s|\[ARGS\]|\[CALL_ID\]\s*[\w-]+|<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|```\w*\n)*"
)
_INVOKED = re.compile(
    r"<(?:｜DSML｜)?(?:function=|(?:function|invoke)\s+name=)[\"']?([\w./:-]+)[\"']?\s*>\s*"
)
_PARAMETER = re.compile(
    r"<(?:｜DSML｜)?(?:parameter=|param(?:eter)?\s+name=)[\"']?([^\"'>\n]+)[\"']?([^>\n]*)>\n?"
)
_PAIR = re.compile(r"<arg_key>\s*([^<\n]+?)\s*</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"\n?</(?:｜DSML｜)?param(?:eter)?>|</arg_value>")
_LONGEST_END = "\n</｜DSML｜parameter>"
_CHANNEL_HEAD = re.compile(r"(?:<\|(?:start|channel|constrain)\|>|[^<])*<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|call)\|>|(?=<\|start\|>)")
_CALLED = re.compile(r"to=(?:functions\.)?([\w./:-]+)")
_SCHEMA = re.compile(
    r'\s*\{\s*(?:"(?:type|\$schema)"\s*:\s*"(?:object"|http)|"properties"\s*:\s*\{)'
)
_FIRST_PAIR = re.compile(
    r'\s*(?:[^{\s]|\{\s*(?:[^"\s]|"(?!(?:type|\$schema|properties)")[^"]*"'
    r'|"[^"]*"\s*(?:[^:\s]|:\s*(?:"[^"]*"|[^"\s]))))'
)
_LONGEST_NAME = 200


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
        opening = {*_OPENING, *filter(None, marks)} if self._tools else set()
        parts = _PART if self._tools else ()
        self._marks = tuple(sorted({*opening, *parts, *_CHANNEL}, key=len, reverse=True))
        self._mark = re.compile("|".join(map(re.escape, self._marks)))
        marks_too = "".join("|" + re.escape(mark) for mark in sorted(opening))
        self._nested = re.compile(r"(?:\s|\[(?![A-Z_]+\])|```[\w-]*[ \t]*\n" + marks_too + ")*")
        self._cursor = Cursor()
        self._closing = closing
        self._events: list[Event] = []
        self._calls = 0
        self._began = False  # some text was passed on
        self._from = 0  # where the text begins that is shown if a call is none after all
        self._broken = False
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
        events, self._events = self._events, []
        return _merged(events)

    # -- the answer -------------------------------------------------------------------------

    def _read(self) -> Wait[None]:
        if self._closing:
            yield from self._thought(self._closing)
        while (yield from self._thought_begins()) or (yield from self._plain()):
            pass
        if not self._calls:
            self._events.append(Text(self._blank))

    def _thought_begins(self) -> Wait[bool]:
        """Read reasoning if its mark comes, at the beginning of the answer or of a line."""
        cursor = self._cursor
        if not self._line_start or self._closing is None:
            return False
        start = cursor.at
        if not self._began:
            yield from cursor.skip()
        for opening, closing in _THOUGHTS.items():
            if (yield from cursor.starts_with(opening)):
                cursor.at += len(opening)
                yield from self._thought(closing)
                return True
        cursor.at = start
        return False

    def _thought(self, closing: str) -> Wait[None]:
        """Pass on reasoning, without white space around it; pass over its end."""
        cursor = self._cursor
        yield from cursor.skip()
        while True:
            end = cursor.text.find(closing, cursor.at)
            stop = end if end >= 0 else _held_from(cursor, (closing,))
            part = cursor.text[cursor.at : stop]
            if end >= 0 or cursor.ended:
                self._events.append(Thought(part.rstrip()))
                cursor.at = end + len(closing) if end >= 0 else len(cursor.text)
                yield from cursor.skip()
                return
            self._events.append(Thought(part.rstrip()))
            cursor.at += len(part.rstrip())
            yield

    def _plain(self) -> Wait[bool]:
        """Pass on text up to what may be a call, and read that; return whether more may come."""
        cursor = self._cursor
        cursor.text, cursor.at = cursor.text[cursor.at :], 0
        if self._line_start and (yield from self._may_be_call()):
            self._line_start = False
            return True
        while True:
            mark = self._mark.search(cursor.text, cursor.at)
            line = cursor.text.find("\n", cursor.at)
            if mark and (line < 0 or mark.start() <= line):
                self._show(mark.start())
                self._line_start = False
                yield from self._marked(mark[0])
                return True
            if line >= 0:
                self._show(line + 1)
                self._line_start = True
                return True
            self._show(len(cursor.text) if cursor.ended else _held_from(cursor, self._marks))
            if cursor.ended:
                return False
            self._line_start = False
            cursor.text, cursor.at = cursor.text[cursor.at :], 0
            yield

    def _show(self, end: int) -> None:
        """Pass on the text up to an end, unless all of the answer is blank so far."""
        text = self._cursor.text[self._cursor.at : end]
        self._cursor.at = end
        if self._began or text.strip():
            self._began = True
            self._events.append(Text(self._blank + text))
            self._blank = ""
        else:
            self._blank += text

    # -- where a call may begin -------------------------------------------------------------

    def _marked(self, mark: str) -> Wait[None]:
        """Read the calls behind a mark; the mark is text if there are none."""
        cursor = self._cursor
        start = self._from = cursor.at
        if mark in _CHANNEL:
            yield from self._channel(mark)
            return
        if mark not in _PART:
            cursor.at += len(mark)
        if not (yield from self._calls_in_a_row(marked=True)):
            cursor.at = start
            self._show(start + len(mark))

    def _calls_in_a_row(self, *, marked: bool) -> Wait[bool]:
        cursor, found = self._cursor, False
        while True:
            before = cursor.at
            self._from = before if found else self._from
            try:
                if marked:
                    yield from cursor.skip(self._nested)
                yield from self._call(marked=marked)
            except MalformedError:
                cursor.at = before
                return found
            if self._broken:
                self._broken = False
                return True
            found = True
            yield from cursor.skip(_LOOSE if marked else _SPACED)

    def _may_be_call(self) -> Wait[bool]:
        """Read calls without a mark, at the beginning of a line; return whether there were any."""
        if not self._tools:
            return False
        cursor = self._cursor
        start = self._from = cursor.at
        if not self._began:
            yield from cursor.skip()
        char = yield from cursor.peek()
        found = False
        if char == "{":
            found = yield from self._calls_in_a_row(marked=False)
        elif char == "[":
            found = yield from self._bare_list()
        elif char == "`":
            found = yield from self._fenced()
        elif char and (yield from self._name_comes()):
            found = yield from self._calls_in_a_row(marked=False)
        if not found:
            cursor.at = start
        return found

    def _bare_list(self) -> Wait[bool]:
        cursor = self._cursor
        cursor.at += 1
        yield from cursor.skip()
        char = yield from cursor.peek()
        if char == "{" or (char and (yield from self._name_comes())):
            return (yield from self._calls_in_a_row(marked=True))
        return False

    def _fenced(self) -> Wait[bool]:
        cursor = self._cursor
        if not (yield from cursor.starts_with("```")):
            return False
        fence = yield from cursor.skip(_FENCE)
        if not fence:
            return False
        yield from cursor.skip(self._nested)
        char = yield from cursor.peek()
        if char not in ("{", "<") and not (char and (yield from self._name_comes())):
            return False
        return (yield from self._calls_in_a_row(marked=True))

    def _name_comes(self) -> Wait[bool]:
        """Return whether the name of a tool comes, and behind it a bracket."""
        cursor = self._cursor
        while True:
            there = cursor.text[cursor.at :]
            open_end = False
            for name in self._tools:
                if there.startswith(name):
                    behind = there[len(name) :].lstrip()
                    if behind[:1] in ("{", "(") and not (
                        behind[0] == "{" and behind[1:].lstrip()[:1] not in ('"', "}", "")
                    ):
                        return True
                    open_end = open_end or not behind
                open_end = open_end or name.startswith(there)
            if cursor.ended or not open_end:
                return False
            yield

    def _channel(self, mark: str) -> Wait[None]:
        """Read a message of the harmony form: reasoning, text, or a call."""
        cursor, start = self._cursor, self._cursor.at
        while not (found := _CHANNEL_HEAD.match(cursor.text, cursor.at)):
            if cursor.ended or len(cursor.text) - start > 2 * _LONGEST_NAME:
                self._show(start + len(mark))
                return
            yield
        head, cursor.at = found[0], found.end()
        called = _CALLED.search(head)
        if called and called[1] in self._tools:
            with contextlib.suppress(MalformedError):
                yield from self._begun(called[1], lambda write: _an_object(cursor, write))
        elif "analysis" in head or (called and not self._began):
            yield from self._message(Thought)
        else:
            yield from self._message(Text)
        yield from cursor.skip(_CHANNEL_END)

    def _message(self, kind: Callable[[str], Event]) -> Wait[None]:
        cursor = self._cursor
        ends = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
        while True:
            end = _CHANNEL_END.search(cursor.text, cursor.at)
            stop = end.start() if end else _held_from(cursor, ends)
            if stop > cursor.at:
                self._events.append(kind(cursor.text[cursor.at : stop]))
                self._began = self._began or kind is Text
            cursor.at = stop
            if end or cursor.ended:
                return
            yield

    # -- one call ---------------------------------------------------------------------------

    def _call(self, *, marked: bool) -> Wait[None]:
        """Read one call.

        Raises:
            MalformedError: there is none.
        """
        char = yield from self._cursor.peek()
        if char == "{":
            yield from _JsonCall(self, marked=marked).read()
        elif char == "<":
            yield from self._invoked()
        elif char == "[" and marked:
            yield from self._cursor.skip(self._nested)
            yield from self._call(marked=marked)
        else:
            yield from self._named(marked=marked)

    def _begun(self, name: str, read: Callable[[Callable[[str], None]], Wait[None]]) -> Wait[None]:
        """Begin a call, and read its arguments with a reader that passes on their JSON.

        Where they end too early, or are malformed, the call is reported as broken.
        """
        index = self._calls
        self._calls += 1
        self._events.append(CallBegin(index, name))
        try:
            yield from read(lambda text: self._events.append(Arguments(index, text)))
        except MalformedError:
            self._broken = True
            self._events.append(Broken(index, self._cursor.text[self._from : self._cursor.at]))

    def _named(self, *, marked: bool) -> Wait[None]:
        """Read a call that begins with its name: ``f{...}``, ``f(...)``, and what others write."""
        cursor = self._cursor
        if (yield from cursor.starts_with(_FUNCTION)):
            cursor.at += len(_FUNCTION)
        head = yield from cursor.match(_HEAD)
        name = self._tool_in(head[1]) if head else None
        if head is None or name is None or len(head[0]) > _LONGEST_NAME:
            raise MalformedError
        cursor.at = head.end()
        if marked:
            yield from cursor.skip(_BEFORE_ARGUMENTS)
        else:
            yield from cursor.skip()
        char = yield from cursor.peek()
        if char == "{":
            yield from self._begun(name, lambda write: _an_object(cursor, write))
        elif char == "(":
            properties = (self._tools[name] or {}).get("properties") or {}
            yield from self._begun(
                name, lambda write: read_arguments(cursor, write, tuple(properties))
            )
        elif marked and (yield from cursor.starts_with("<arg_key>")):
            yield from self._begun(name, lambda write: self._parameters(name, write, _PAIR))
        elif marked and (not char or (yield from cursor.starts_with("</"))):
            yield from self._begun(name, lambda write: _nothing(write))
        else:
            raise MalformedError

    def _tool_in(self, text: str) -> str | None:
        """Return the tool that a name means, without the number that some models add to it."""
        for name in (text, text.rsplit(":", 1)[0], text.rsplit(".", 1)[-1].rsplit(":", 1)[0]):
            if name in self._tools:
                return name
        return None

    def _invoked(self) -> Wait[None]:
        """Read a call in tags, ``<function=f>``, with its parameters in tags or as JSON."""
        cursor = self._cursor
        if not (yield from self._part_comes()):
            raise MalformedError
        while not (found := _INVOKED.match(cursor.text, cursor.at)):
            if cursor.ended or ">" in cursor.text[cursor.at :]:
                raise MalformedError
            yield
        name = self._tool_in(found[1])
        if name is None:
            raise MalformedError
        cursor.at = found.end()
        yield from cursor.skip()
        if (yield from cursor.peek()) == "{":
            yield from self._begun(name, lambda write: _an_object(cursor, write))
        else:
            yield from self._begun(name, lambda write: self._parameters(name, write, _PARAMETER))

    def _part_comes(self) -> Wait[bool]:
        for part in _PART:
            if (yield from self._cursor.starts_with(part)):
                return True
        return False

    def _parameters(
        self, name: str, write: Callable[[str], None], opening: re.Pattern[str]
    ) -> Wait[None]:
        cursor, count = self._cursor, 0
        write("{")
        while True:
            yield from cursor.skip()
            found = opening.match(cursor.text, cursor.at)
            if not found or (found.end() == len(cursor.text) and not cursor.ended):
                rest = cursor.text[cursor.at :]
                if rest.startswith("</") or (rest and rest[0] != "<"):
                    break
                if found is None and ">" in rest and opening is not _PAIR:
                    break
                if cursor.ended:
                    if not rest:
                        break
                    raise MalformedError
                yield
                continue
            cursor.at = found.end()
            write((", " if count else "") + json.dumps(found[1], ensure_ascii=False) + ": ")
            count += 1
            as_text = opening is _PARAMETER and 'string="true"' in found[2]
            yield from self._parameter(
                parameter_schema(self._tools[name], found[1]), write, as_text
            )
        write("}")

    def _parameter(
        self, schema: Mapping[str, Any], write: Callable[[str], None], as_text: bool
    ) -> Wait[None]:
        if as_text or is_text(schema):
            write('"')
            yield from copy_until(self._cursor, _VALUE_END, _LONGEST_END, write)
            write('"')
            return
        parts: list[str] = []
        yield from copy_until(self._cursor, _VALUE_END, _LONGEST_END, parts.append)
        text = json.loads('"' + "".join(parts) + '"')
        write(json.dumps(as_typed(text, schema), ensure_ascii=False))


class _JsonCall:
    """Reads a call that is an object with a name and arguments, in any order.

    Args:
        reader: of the answer.
        marked: whether a mark says that this is a call; then other keys may come first.
    """

    def __init__(self, reader: CallReader, *, marked: bool) -> None:
        self._reader, self._cursor, self._marked = reader, reader._cursor, marked
        self._name: str | None = None
        self._arguments: list[str] | None = None  # that came before the name
        self._done = False
        self._strange = False

    def read(self) -> Wait[None]:
        """Read it.

        Raises:
            MalformedError: it is none.
        """
        try:
            yield from self._object()
        except MalformedError:
            if not self._done:
                raise
            return
        if not self._done:
            yield from self._without_arguments()

    def _object(self) -> Wait[None]:
        cursor = self._cursor
        yield from cursor.expect("{")
        while True:
            yield from cursor.skip()
            char = yield from cursor.peek()
            if char == ",":
                cursor.at += 1
                continue
            if char == "}":
                cursor.at += 1
                return
            key: list[str] = []
            yield from read_key(cursor, key.append)
            yield from cursor.expect(":")
            yield from cursor.skip()
            yield from self._pair(json.loads("".join(key)))

    def _pair(self, key: str) -> Wait[None]:
        cursor = self._cursor
        char = yield from cursor.peek()
        if self._name is None and key in _NAME_KEYS and char == "{":
            yield from self._object()
        elif self._name is None and key in _NAME_KEYS:
            yield from self._named()
        elif not self._done and key in _ARGUMENT_KEYS:
            yield from self._argued()
        else:
            if key == "description" or not (
                self._done or self._marked or self._name is not None or key in _OTHER_KEYS
            ):
                raise MalformedError
            self._strange = self._strange or key not in _OTHER_KEYS
            yield from read_value(cursor, lambda text: None)

    def _named(self) -> Wait[None]:
        value: list[str] = []
        yield from read_value(self._cursor, value.append)
        name = json.loads("".join(value))
        self._name = self._reader._tool_in(name) if isinstance(name, str) else None
        if self._name is None:
            raise MalformedError
        if self._arguments is not None:
            arguments = "".join(self._arguments)
            self._done = True
            yield from self._reader._begun(self._name, lambda write: _written(arguments, write))

    def _argued(self) -> Wait[None]:
        """Read arguments: an object, an object's JSON in a text, or null."""
        cursor = self._cursor
        yield from self._check_schema()
        char = yield from cursor.peek()
        if char == "{" and self._name is not None:
            self._done = True
            yield from self._reader._begun(self._name, lambda write: read_value(cursor, write))
            if self._reader._broken:
                raise MalformedError
            return
        value: list[str] = []
        yield from read_value(cursor, value.append)
        arguments = _as_object("".join(value))
        if self._name is None:
            self._arguments = [arguments]
        else:
            self._done = True
            yield from self._reader._begun(self._name, lambda write: _written(arguments, write))

    def _check_schema(self) -> Wait[None]:
        """Refuse the description of a tool: its parameters are a schema."""
        cursor = self._cursor
        while not _FIRST_PAIR.match(cursor.text, cursor.at) and not cursor.ended:
            yield
        known = parameter_schema(self._reader._tools.get(self._name or ""), "type")
        known = known or parameter_schema(self._reader._tools.get(self._name or ""), "properties")
        if not known and _SCHEMA.match(cursor.text, cursor.at):
            raise MalformedError

    def _without_arguments(self) -> Wait[None]:
        if self._name is None or self._strange or self._arguments is not None:
            raise MalformedError
        if not self._marked:  # it has to stand alone in its line
            while not re.match(r"[ \t;,]*\S|[ \t;,]*\n", self._cursor.text[self._cursor.at :]):
                if self._cursor.ended:
                    break
                yield
            if re.match(r"[ \t]*[^\s;,{]", self._cursor.text[self._cursor.at :]):
                raise MalformedError
        yield from self._reader._begun(self._name, lambda write: _nothing(write))


def _an_object(cursor: Cursor, write: Callable[[str], None]) -> Wait[None]:
    yield from cursor.skip()
    if (yield from cursor.peek()) != "{":
        raise MalformedError
    yield from read_value(cursor, write)


def _written(text: str, write: Callable[[str], None]) -> Wait[None]:
    write(text)
    yield from ()


def _nothing(write: Callable[[str], None]) -> Wait[None]:
    yield from _written("{}", write)


def _as_object(value: str) -> str:
    """Return the object in a JSON text, or in the text that it holds.

    Raises:
        MalformedError: there is none.
    """
    found = json.loads(value)
    if isinstance(found, str):
        if not found.strip():
            return "{}"
        inner = Cursor()
        parts: list[str] = []
        inner.text, inner.ended = found, True
        for _ in read_value(inner, parts.append):
            pass
        found = json.loads("".join(parts))
    if found is None:
        return "{}"
    if not isinstance(found, dict):
        raise MalformedError
    return json.dumps(found, ensure_ascii=False)


def _held_from(cursor: Cursor, marks: Collection[str]) -> int:
    """Return where the longest end of the text begins that may become a mark."""
    text = cursor.text
    if cursor.ended:
        return len(text)
    longest = max(map(len, marks))
    for start in range(max(cursor.at, len(text) - longest + 1), len(text)):
        if any(mark.startswith(text[start:]) for mark in marks):
            return start
    return len(text)


def _merged(events: list[Event]) -> list[Event]:
    """Join events that continue each other; leave out empty ones."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, (Text, Thought)) and not event.text:
            continue
        if type(last) is type(event) and isinstance(event, (Text, Thought)):
            merged[-1] = event._replace(text=last.text + event.text)  # type: ignore[union-attr]
        elif (
            isinstance(event, Arguments)
            and isinstance(last, Arguments)
            and last.number == event.number
        ):
            merged[-1] = event._replace(text=last.text + event.text)
        else:
            merged.append(event)
    return merged


def opened_thought(prompt: str, begun: str = "") -> str:
    """Return what ends the reasoning that a prompt's end has begun; empty if it has begun none.

    Args:
        prompt: as the chat template rendered it.
        begun: the message that is continued, if one is.
    """
    for opening, closing in _THOUGHTS.items():
        inside = begun.rfind(opening) > begun.rfind(closing)
        if inside or (not begun and prompt.rstrip().endswith(opening.rstrip())):
            return closing
    return ""


def read_answer(text: str, reader: CallReader) -> Answer:
    """Read a whole answer; a call whose arguments are malformed or break off is text."""
    return whole_answer([*reader.feed(text), *reader.finish()])


def whole_answer(events: Iterable[Event]) -> Answer:
    """Put together all that a reader told of an answer."""
    shown: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, tuple[str, list[str]]] = {}
    for event in events:
        if isinstance(event, Text):
            shown.append(event.text)
        elif isinstance(event, Thought):
            reasoning.append(event.text)
        elif isinstance(event, CallBegin):
            calls[event.number] = event.name, []
        elif isinstance(event, Arguments):
            calls[event.number][1].append(event.text)
        else:
            del calls[event.number]
            shown.append(event.text)
    found = [ToolCall(name, "".join(parts)) for name, parts in calls.values()]
    answer = "".join(shown)
    return Answer(answer if answer.strip() or not found else "", "".join(reasoning), found)


def read_calls(text: str, names: Collection[str] | Mapping[str, Any]) -> tuple[str, list[ToolCall]]:
    """Return the text of a whole answer, without its reasoning, and the calls in it."""
    answer = read_answer(text, CallReader(names))
    return answer.text, answer.calls
