"""Commands about conversations in files: list, search, resume, branch, export, delete."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from edgespec.chat.commands import Command, complete_path, file_of
from edgespec.chat.conversation import Chat
from edgespec.chat.listing import hit_lines, hits, list_lines, matches
from edgespec.chat.reader import Candidate
from edgespec.chat.restore import branch, load_saved, open_stored, resume, save
from edgespec.chat.savefile import exporter, load_conversation
from edgespec.chat.store.archive import is_id
from edgespec.chat.store.events import Conversation
from edgespec.errors import UsageError
from edgespec.files import write_new_file

__all__ = ["COMMANDS"]

_MOST_LISTED = 15
_MOST_FOUND = 6


def _list(chat: Chat, argument: str) -> None:
    words = argument.split()
    found = (one for one in _all(chat) if not words or matches(one, words))
    listed = list(islice(found, _MOST_LISTED))
    if not listed:
        raise UsageError("no conversation has these words" if words else "none is stored yet")
    chat.listed = [one.id for one in listed]
    for line in list_lines(listed, chat.screen.width, chat.recorder.id):
        chat.screen.note(line)
    if next(found, None) is not None:
        chat.screen.note("     and older ones: /list WORDS finds them")


def _search(chat: Chat, argument: str) -> None:
    words = argument.split()
    if not words:
        raise UsageError("give words to look for: /search WORDS")
    found = (one for one in _all(chat) if next(hits(one, words), None))
    listed = list(islice(found, _MOST_FOUND))
    if not listed:
        raise UsageError("no message has all these words")
    chat.listed = [one.id for one in listed]
    width = chat.screen.width
    for one, line in zip(listed, list_lines(listed, width, chat.recorder.id), strict=True):
        chat.screen.note(line)
        for hit in hit_lines(one, words, width):
            chat.screen.note(hit)
    if next(found, None) is not None:
        chat.screen.note("     and older ones: more words find fewer")


def _all(chat: Chat) -> Iterator[Conversation]:
    return chat.archive.conversations(chat.screen.note)


def _resume(chat: Chat, argument: str) -> None:
    if not argument:
        _list(chat, "")
        chat.screen.note("/resume NUMBER continues one of them")
        return
    id = chat.archive.find(argument, chat.listed)
    if id == chat.recorder.id:
        raise UsageError("this conversation is the running one")
    resume(chat, *open_stored(chat, id))


def _branch(chat: Chat, argument: str) -> None:
    branch(chat, argument)


def _show(chat: Chat, argument: str) -> None:
    entries = chat.entries
    if not entries:
        raise UsageError("nothing was said yet")
    for at in range(0, len(entries), 2):
        answer = entries[at + 1].content if at + 1 < len(entries) else None
        chat.screen.exchange(at // 2 + 1, entries[at].said, answer)


def _export(chat: Chat, argument: str, *, force: bool = False) -> None:
    path = file_of(argument, "export")
    write = exporter(path)
    if not chat.entries:
        raise UsageError("nothing was said yet")
    text = write(chat.conversation())
    write_new_file(path, text.encode("utf-8"), force=force, hint="/export!")
    chat.screen.note(f"written to {path}")


def _delete(chat: Chat, argument: str) -> None:
    if not is_id(argument):
        raise UsageError("give the id, as /list shows it: /delete ID")
    id = chat.archive.find(argument)
    if id == chat.recorder.id:
        raise UsageError("this conversation is the running one: /reset leaves it")
    chat.archive.remove(id)
    chat.shelf.remove(id)
    chat.screen.note(f"{id} is deleted")


def _save(chat: Chat, argument: str, *, force: bool = False) -> None:
    path = file_of(argument, "save")
    save(chat, path, force=force)
    chat.screen.note(f"saved to {path}")


def _load(chat: Chat, argument: str) -> None:
    load_saved(chat, load_conversation(file_of(argument, "load")))


def _complete_id(chat: Chat, typed: str) -> Iterator[Candidate]:
    found = islice(_all_quietly(chat), _MOST_LISTED)
    return (
        Candidate(one.id, len(typed), f"{one.id} {one.title[:40]}")
        for one in found
        if one.id.startswith(typed)
    )


def _all_quietly(chat: Chat) -> Iterator[Conversation]:
    return chat.archive.conversations(lambda line: None)


COMMANDS = {
    "list": Command("[WORDS]", "recent conversations, or those with all the words", _list),
    "search": Command("WORDS", "messages with all the words, in all conversations", _search),
    "resume": Command("[ID]", "continue a stored one, by id or list number", _resume, _complete_id),
    "branch": Command("[N]", "continue from here or from message N as a new one", _branch),
    "show": Command("", "show this conversation, with the numbers of messages", _show),
    "export": Command(
        "FILE",
        "write this one as .json or .md (/export! over an old one)",
        _export,
        complete_path,
        partial(_export, force=True),
    ),
    "delete": Command("ID", "delete a stored one", _delete, _complete_id),
    "save": Command(
        "FILE",
        "write this one for /load (/save! over another file)",
        _save,
        complete_path,
        partial(_save, force=True),
    ),
    "load": Command("FILE", "continue one saved by /save", _load, complete_path),
}
