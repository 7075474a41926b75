"""Other conversations, stored or saved: commands that find them, and how one takes over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from edgespec.chat.archive import Journal, is_id
from edgespec.chat.commands import Command, complete_path, file_of
from edgespec.chat.conversation import Chat, texts_of
from edgespec.chat.events import ROLES, Conversation, hit_lines, hits, list_lines, matches
from edgespec.chat.reader import Candidate
from edgespec.chat.recorder import SavedConversation, exporter, load_conversation, save_conversation
from edgespec.chat.settings import Settings, read_settings
from edgespec.errors import UsageError
from edgespec.files import write_new_file
from edgespec.runtime.session import Message, Session

__all__ = ["STORED", "branch", "load_saved", "open_stored", "resume", "save", "stored_settings"]

_LINES_SHOWN = 12  # of the answer that the message that the user continues after


def open_stored(chat: Chat, id: str) -> tuple[Journal | None, Conversation]:
    """Open a stored conversation, with its journal if this chat is stored.

    Raises:
        UsageError: it cannot be used, or another chat has it open.
    """
    return chat.archive.open(id) if chat.recorder.keeps else (None, chat.archive.load(id))


def stored_settings(conversation: Conversation) -> Settings | None:
    """Return the settings that a conversation was held with, if it has any.

    Raises:
        UsageError: it says something that is not possible.
    """
    facts = conversation.facts.get("settings")
    try:
        return None if facts is None else read_settings(facts)
    except ValueError as error:
        raise UsageError(f"the settings of {conversation.id} cannot be used: {error}") from None


def resume(
    chat: Chat,
    journal: Journal | None,
    conversation: Conversation,
    settings: Settings | None = None,
) -> None:
    """Continue a stored conversation.

    Args:
        journal: of this conversation; closed here if this fails.
        settings: used instead of the stored ones.

    Raises:
        UsageError: its settings cannot be used; the running conversation continues.
    """
    try:
        settings = settings or stored_settings(conversation)
    except BaseException:
        if journal is not None:
            journal.close()
        raise
    chat.leave()
    if settings is not None:
        _use(chat.session, settings)
    chat.session.system = conversation.system
    _put(chat.session, [entry.content for entry in conversation.entries])
    chat.session.dropped = _dropped(conversation)
    chat.recorder.resume(journal, conversation)
    chat.measure()
    restored = chat.shelf.load(chat.session.engine, conversation.id)
    _show_last(chat)
    if conversation.damaged:
        lines = len(conversation.damaged)
        chat.screen.note(f"left out {lines} of its lines: {conversation.damaged[0]}")
    _say_state(chat, conversation.model)
    if restored:
        chat.screen.note(f"restored {restored:,} tokens from the cache")


def load_saved(chat: Chat, saved: SavedConversation) -> None:
    """Continue a conversation that /save wrote; it is stored as a new one."""
    chat.leave()
    messages = [*saved.messages]
    system = messages.pop(0).content if messages and messages[0].role == "system" else None
    chat.session.sampling = saved.sampling
    chat.session.system = system
    _put(chat.session, [message.content for message in messages])
    chat.measure()
    chat.record()
    count = chat.conversation().messages
    chat.screen.note(f"{count} message{'' if count == 1 else 's'} of yours, with the answers")
    _say_state(chat, saved.model)


def save(chat: Chat, path: Path, *, force: bool = False) -> None:
    """Write the conversation for /load, with `force` over any other file.

    Raises:
        EdgespecError: the file cannot be written, or is something else.
    """
    session = chat.session
    messages = [*session.messages]
    if session.unanswered is not None:
        messages.append(Message("user", session.unanswered))
    model = session.engine.model_name
    saved = SavedConversation(tuple(messages), model, session.sampling)
    save_conversation(path, saved, force=force)


def branch(chat: Chat, number: str) -> None:
    """Continue in a new conversation, after a message and its answer.

    Args:
        number: of the message; empty for the last one.

    Raises:
        UsageError: there is no such message.
    """
    texts = texts_of(chat.session)
    last = (len(texts) + 1) // 2
    if not texts:
        raise UsageError("nothing was said yet: there is nothing to branch from")
    if number and not (number.isdecimal() and 1 <= int(number) <= last):
        raise UsageError(f"there is no message {number[:20]!r}: /show has 1 to {last}")
    count = int(number or last)
    kept = texts[: 2 * count]
    chat.part(len(kept))
    _put(chat.session, kept)
    chat.measure()
    chat.record()
    name = f", {chat.recorder.id}," if chat.recorder.id else ""
    chat.screen.note(f"another conversation{name} continues after message {count}")


def _use(session: Session, settings: Settings) -> None:
    session.sampling, session.limits, session.accept = settings


def _put(session: Session, texts: Sequence[str]) -> None:
    """Make these texts what was said."""
    session.reset()
    messages = [Message(ROLES[at % 2], text) for at, text in enumerate(texts)]
    if len(messages) % 2:
        session.unanswered = messages.pop().content
    session.messages += messages


def _dropped(conversation: Conversation) -> int:
    """Return how many messages the model no longer saw; what the cache holds begins after them."""
    last = next((one for one in reversed(conversation.entries) if one.role == "assistant"), None)
    dropped = last.details.get("dropped", 0) if last else 0
    possible = type(dropped) is int and 0 <= dropped < len(conversation.entries) - 1
    return dropped // 2 * 2 if possible else 0


def _show_last(chat: Chat) -> None:
    entries = chat.entries
    if not entries:
        return
    at = (len(entries) - 1) // 2 * 2
    answer = entries[at + 1].content if at + 1 < len(entries) else None
    chat.screen.exchange(at // 2 + 1, entries[at].said, answer, _LINES_SHOWN)


def _say_state(chat: Chat, model: str) -> None:
    if chat.session.dropped:
        chat.screen.note(f"the model no longer sees the first {chat.session.dropped} messages")
    if chat.session.unanswered is not None:
        chat.screen.note("the last message has no answer yet: /retry asks again")
    if model and model != chat.session.engine.model_name:
        chat.screen.note(f"the answers are from another model, {model}")


# -- commands -----------------------------------------------------------------------------------

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


STORED = {
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
