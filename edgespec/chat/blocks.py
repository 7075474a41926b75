"""Code blocks of an answer, by the numbers that they are shown with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgespec.chat.markdown import language_of, parse
from edgespec.errors import UsageError

__all__ = ["CodeBlock", "chosen_block", "code_blocks"]


class CodeBlock(NamedTuple):
    """What stands between two fences.

    Attributes:
        number: in its answer, from 1 on.
        language: as the fence says, or empty.
        text: ends with a line break.
    """

    number: int
    language: str
    text: str

    @property
    def lines(self) -> str:
        """How long it is."""
        count = self.text.count("\n")
        return f"{count} line{'' if count == 1 else 's'}"


def code_blocks(answer: str) -> list[CodeBlock]:
    """All fenced blocks."""
    fences = (token for token in parse(answer) if token.type == "fence")
    return [
        CodeBlock(number, language_of(fence), fence.content)
        for number, fence in enumerate(fences, 1)
    ]


def chosen_block(blocks: Sequence[CodeBlock], number: str) -> CodeBlock:
    """The block that a user means: by its number, or the last one.

    Raises:
        UsageError: there is none.
    """
    if not blocks:
        raise UsageError("the last answer has no code block")
    if not number:
        return blocks[-1]
    if number.isdecimal() and 1 <= int(number) <= len(blocks):
        return blocks[int(number) - 1]
    known = ", ".join(f"{b.number} ({b.language or 'text'}, {b.lines})" for b in blocks)
    raise UsageError(f"there is no code block {number[:20]!r}: there is {known}")
