"""A text that comes in pieces, a position in it, and the marks that tell its parts apart."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from typing import TypeVar

__all__ = [
    "CHANNEL",
    "LONGEST_NAME",
    "LOOSE",
    "MARKS",
    "OPENING",
    "PART",
    "SPACE",
    "SPACED",
    "THOUGHTS",
    "Cursor",
    "MalformedError",
    "Wait",
    "opened_thought",
]

THOUGHTS = {
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
OPENING = (
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
PART = ("<function=", "<function name=", "<invoke name=", "<｜DSML｜invoke name=")
CHANNEL = ("<|channel|>", "<|start|>")
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
MARKS = frozenset((*THOUGHTS, *THOUGHTS.values(), *OPENING, *PART, *CHANNEL, *_CLOSING))
"""Texts that tell parts of an answer apart; where they are control tokens they have to be shown."""

LOOSE = re.compile(
    r"(?:[\s,;\]})]|```(?![\w-])|</[\w:|｜-]{1,40}>|<\|/?[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>"
    r"|<[\w]{1,40}\|>|<end_function_call>|\[/\w{1,40}\]|\[END_TOOL_REQUEST\])*"
)
SPACED = re.compile(r"(?:[\s,;]|</[\w:|｜-]{1,40}>)*")
LONGEST_NAME = 200


def opened_thought(prompt: str, begun: str = "") -> str:
    """Return what ends the reasoning that a prompt's end has begun; empty if it has begun none.

    Args:
        prompt: as the chat template rendered it.
        begun: the message that is continued, if one is.
    """
    for opening, closing in THOUGHTS.items():
        inside = begun.rfind(opening) > begun.rfind(closing)
        if inside or (not begun and prompt.rstrip().endswith(opening.rstrip())):
            return closing
    return ""


T = TypeVar("T")
Wait = Generator[None, None, T]
"""A reader that yields whenever it needs more text, and returns what it has read."""

SPACE = re.compile(r"\s*")
_UNFINISHED = re.compile(r"(?:<[^<>\n]{0,42}|`{1,2}|```[\w-]*[ \t]*|\[/?\w{0,40}\]?\s*)$")
_MAY_GO_ON = re.compile(r"[\w`\[-]")


class MalformedError(Exception):
    """The text is not what its beginning promised."""


class Cursor:
    """A text that comes in pieces, and a position in it.

    Attributes:
        text: what has come and may still be needed.
        at: the position.
        ended: whether nothing more comes.
    """

    def __init__(self) -> None:
        self.text, self.at, self.ended = "", 0, False

    def forget(self) -> None:
        """Drop the text before the position, once that is more than the rest."""
        if self.at > len(self.text) // 2:
            self.text, self.at = self.text[self.at :], 0

    def peek(self, count: int = 1) -> Wait[str]:
        """Return the next characters: so many, or fewer at the end."""
        while len(self.text) - self.at < count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def starts_with(self, literal: str) -> Wait[bool]:
        """Return whether a literal comes next; wait only while that is open."""
        while True:
            there = self.text[self.at : self.at + len(literal)]
            if there == literal or self.ended or not literal.startswith(there):
                return there == literal
            yield

    def match(self, pattern: re.Pattern[str]) -> Wait[re.Match[str] | None]:
        """Match a pattern whose match ends before the last character there is, or at the end."""
        while True:
            found = pattern.match(self.text, self.at)
            if self.ended or (found and found.end() < len(self.text)):
                return found
            if not found and self.at < len(self.text):
                return None
            yield

    def skip(self, pattern: re.Pattern[str] = SPACE) -> Wait[None]:
        """Pass over a repeated pattern, white space by default.

        Behind a pattern of marks, wait while another mark may be on its way. What is complete is
        passed over at once, so that it is not looked at again with every piece.
        """
        while True:
            found = pattern.match(self.text, self.at)
            end = found.end() if found else self.at
            if self.ended:
                break
            if end == len(self.text):
                if end > self.at and not _MAY_GO_ON.match(self.text[-1]):
                    self.at = end
            elif pattern is SPACE or not _UNFINISHED.match(self.text, end):
                break
            yield
        self.at = end

    def take(self, pattern: re.Pattern[str]) -> Wait[str]:
        """Pass over a pattern, and return its text; empty if something else comes."""
        found = yield from self.match(pattern)
        text = found[0] if found else ""
        self.at += len(text)
        return text

    def expect(self, literal: str) -> Wait[None]:
        """Pass over white space and a literal.

        Raises:
            MalformedError: something else comes.
        """
        yield from self.skip()
        if not (yield from self.starts_with(literal)):
            raise MalformedError
        self.at += len(literal)

    def held_from(self, marks: Collection[str]) -> int:
        """Return where the longest end of the text begins that may become a mark."""
        if self.ended:
            return len(self.text)
        longest = max(map(len, marks))
        for start in range(max(self.at, len(self.text) - longest + 1), len(self.text)):
            if any(mark.startswith(self.text[start:]) for mark in marks):
                return start
        return len(self.text)
