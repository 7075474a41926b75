"""Commands about the last answer: copy it, write it, show its reasoning and its figures."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

from edgespec.chat.commands import Command, complete_path, file_of, fitting
from edgespec.chat.conversation import Chat
from edgespec.chat.markdown import chosen_block, code_blocks
from edgespec.chat.reader import Candidate
from edgespec.chat.reasoning import split_thought
from edgespec.chat.status import statistics_lines
from edgespec.errors import UsageError
from edgespec.files import write_new_file

__all__ = ["COMMANDS", "copy_text"]

_MOST_BYTES = 74_994
"""In one escape sequence: terminals take up to 100,000 bytes of Base64."""

_PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    (None, ("pbcopy",)),
)
_PATIENCE_S = 5.0


def copy_text(text: str, send: Callable[[str], None] | None) -> str:
    """Copy a text in every way that is possible, and return which ways those were.

    Args:
        send: sends a control sequence to the terminal; None if it accepts none.

    Raises:
        UsageError: there is no way.
    """
    data = text.encode("utf-8", "replace")
    ways = []
    program = _program()
    if program is not None and _run(program, data):
        ways.append(program[0])
    if send is not None and len(data) <= _MOST_BYTES:
        send(f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\a")
        ways.append("the terminal")
    if not ways:
        why = "no clipboard is known here" if send is None else "it is too long for the terminal"
        raise UsageError(f"{why}: /write FILE writes a file")
    return " and ".join(ways)


def _program() -> tuple[str, ...] | None:
    for variable, command in _PROGRAMS:
        if (variable is None or os.environ.get(variable)) and shutil.which(command[0]):
            return command
    return None


def _run(command: tuple[str, ...], data: bytes) -> bool:
    try:
        done = subprocess.run(
            command,
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


_ALL = "all"


def _copy(chat: Chat, argument: str) -> None:
    _, answer = _last_answer(chat)
    if argument == _ALL:
        what, text = "the answer", answer
    else:
        block = chosen_block(code_blocks(answer), argument)
        what, text = f"block {block.number}, {block.lines}", block.text
    ways = copy_text(text, None if chat.screen.dumb else chat.screen.send)
    chat.screen.note(f"copied {what}, by {ways}")


def _complete_copy(chat: Chat, typed: str) -> Iterator[Candidate]:
    return fitting([*_numbers(chat), _ALL], typed)


def _write(chat: Chat, argument: str, *, force: bool = False) -> None:
    name, _, number = argument.rpartition(" ")
    if not name or not number.isdecimal():
        name, number = argument, ""
    path = file_of(name.strip(), "write")
    block = chosen_block(code_blocks(_last_answer(chat)[1]), number)
    write_new_file(path, block.text.encode("utf-8"), force=force, hint="/write!")
    chat.screen.note(f"block {block.number}, {block.lines}, is in {path}")


def _think(chat: Chat, argument: str) -> None:
    thought, _ = _last_answer(chat)
    if not thought:
        raise UsageError("there is no reasoning in the last answer")
    chat.screen.note(thought)


def _stats(chat: Chat, argument: str) -> None:
    if chat.last is None:
        raise UsageError("there is no answer yet")
    for line in statistics_lines(*chat.last):
        chat.screen.note(line)


def _last_answer(chat: Chat) -> tuple[str, str]:
    """Return its reasoning, and the answer itself."""
    for entry in reversed(chat.entries):
        if entry.role == "assistant":
            return split_thought(entry.content)
    raise UsageError("there is no answer yet")


def _numbers(chat: Chat) -> list[str]:
    try:
        return [str(block.number) for block in code_blocks(_last_answer(chat)[1])]
    except UsageError:
        return []


COMMANDS = {
    "copy": Command(
        "[N|all]", "copy a code block, the last one without N, or all", _copy, _complete_copy
    ),
    "write": Command(
        "FILE [N]",
        "write a code block to a file (/write! over an old one)",
        _write,
        complete_path,
        partial(_write, force=True),
    ),
    "think": Command("", "show the reasoning of the last answer", _think),
    "stats": Command("", "show what was measured for the last answer", _stats),
}
