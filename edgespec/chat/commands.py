"""Slash commands: what one is, those that steer the conversation, those about the last answer."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgespec.chat.conversation import Chat
from edgespec.chat.markdown import chosen_block, code_blocks, split_thought
from edgespec.chat.reader import Candidate
from edgespec.chat.screen import statistics_lines
from edgespec.chat.settings import (
    SETTING_NAMES,
    change_setting,
    setting_line,
    setting_lines,
    setting_values,
)
from edgespec.errors import UsageError
from edgespec.files import write_new_file
from edgespec.registry.manifest import load_manifest

__all__ = ["RUNNING", "Command", "complete_path", "copy_text", "file_of", "fitting"]


@dataclass(frozen=True)
class Command:
    """One slash command.

    Attributes:
        usage: its argument, for `/help`; empty if it takes none.
        help: what it does.
        run: does it, given the text after the name.
        complete: yields candidates for the text after the name.
        force: does it when an exclamation mark follows the name: writes over a file.
    """

    usage: str
    help: str
    run: Callable[[Chat, str], None]
    complete: Callable[[Chat, str], Iterator[Candidate]] | None = None
    force: Callable[[Chat, str], None] | None = None


def fitting(names: Iterable[str], typed: str) -> Iterator[Candidate]:
    """Return the names that begin with what was typed."""
    return (Candidate(name, len(typed), name) for name in names if name.startswith(typed))


def complete_path(chat: Chat, typed: str) -> Iterator[Candidate]:
    """Yield files and folders that begin with what was typed."""
    from prompt_toolkit.completion import CompleteEvent, PathCompleter
    from prompt_toolkit.document import Document

    found = PathCompleter(expanduser=True).get_completions(Document(typed), CompleteEvent())
    for one in found:
        slash = os.sep if one.display_text.endswith(os.sep) else ""
        yield Candidate(one.text + slash, -one.start_position, one.display_text)


def file_of(argument: str, command: str) -> Path:
    """Return the file that an argument names, also in the quotes that a terminal adds.

    Raises:
        UsageError: there is no argument.
    """
    if not argument:
        raise UsageError(f"give a file: /{command} FILE")
    quote = argument[0]
    if len(argument) > 2 and quote in "'\"" and argument.endswith(quote):
        argument = argument[1:-1]
    elif "\\ " in argument and not Path(argument).exists():
        argument = argument.replace("\\ ", " ")
    return Path(argument).expanduser()


_NO_SYSTEM = "none"
_NO_FILES = "none"
_DRAFTS = ("auto", "none", "ngram", "recycle", "mtp")


def _reset(chat: Chat, argument: str) -> None:
    stored = chat.recorder.id
    chat.leave()
    chat.session.reset()
    kept = ", except for the system prompt" if chat.session.system else ""
    chat.screen.note(f"forgotten{kept}" + (f"; /resume {stored} brings it back" if stored else ""))


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.session.system = None if argument == _NO_SYSTEM else argument
        chat.record()
    prompt = chat.session.system
    chat.screen.note(f"system prompt: {prompt}" if prompt else "there is no system prompt")


def _set(chat: Chat, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        for line in setting_lines(chat.session):
            chat.screen.note(line)
    elif value.strip():
        chat.screen.note(change_setting(chat.session, name, value.strip()))
        chat.record()
    else:
        chat.screen.note(setting_line(chat.session, name))


def _complete_set(chat: Chat, typed: str) -> Iterator[Candidate]:
    name, space, value = typed.partition(" ")
    return fitting(setting_values(name), value) if space else fitting(SETTING_NAMES, name)


def _retry(chat: Chat, argument: str) -> None:
    answered = chat.session.unanswered is None
    chat.answer(chat.session.retry)
    if answered and chat.session.sampling.greedy:
        chat.screen.note("at temperature 0 another seed changes nothing: see /set temperature")


def _edit(chat: Chat, argument: str) -> None:
    message = next((entry for entry in reversed(chat.entries) if entry.role == "user"), None)
    if message is None:
        raise UsageError("there is no message to edit")
    typed = chat.reader.revise(message.said)
    if typed is None or not typed.strip() or typed == message.said:
        chat.screen.note("nothing was changed")
        return
    files = message.content.removesuffix(message.said)
    chat.answer(lambda: chat.session.revise(files + typed), typed, message.details)


def _file(chat: Chat, argument: str) -> None:
    files = chat.attachments
    if argument == _NO_FILES:
        files.clear()
    elif argument:
        file = files.add(file_of(argument, "file"), chat.session.engine)
        chat.screen.note(f"{file.name}, {file.tokens:,} tokens, goes with the next message")
        return
    names = ", ".join(files.names)
    chat.screen.note(f"with the next message: {names}" if names else "no file is waiting")


def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.change_engine(lambda: chat.engines.change_model(argument))
    chat.screen.note(chat.summary)


def _draft(chat: Chat, argument: str) -> None:
    if argument:
        chat.change_engine(lambda: chat.engines.change_draft(argument))
    chat.screen.note(chat.summary)


def _complete_model(chat: Chat, typed: str) -> Iterator[Candidate]:
    yield from fitting(load_manifest().names, typed)
    yield from complete_path(chat, typed)


def _complete_draft(chat: Chat, typed: str) -> Iterator[Candidate]:
    yield from fitting(_DRAFTS, typed)
    yield from _complete_model(chat, typed)


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


RUNNING = {
    "reset": Command("", "begin another conversation, keep the system prompt", _reset),
    "system": Command(
        "[TEXT]", f"show or change the system prompt ({_NO_SYSTEM}: remove)", _system
    ),
    "set": Command("[NAME [VALUE]]", "show or change sampling and limits", _set, _complete_set),
    "retry": Command("", "answer the last message again, with another seed", _retry),
    "edit": Command("", "change the last message and answer it again", _edit),
    "file": Command(
        "[FILE]",
        f"put a file before the next message ({_NO_FILES}: take all back)",
        _file,
        complete_path,
    ),
    "model": Command("[MODEL]", "show the model, or switch to another", _model, _complete_model),
    "draft": Command("[MODEL]", "show the draft, or use another", _draft, _complete_draft),
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
"""Those about the running conversation, by name."""
