"""Commands about stored conversations, on the real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.chat.archive import Archive
from edgespec.chat.conversation import Chat, texts_of
from edgespec.chat.stored import open_stored, resume
from edgespec.errors import UsageError
from edgespec.runtime.session import Message

Say = Callable[..., list[str]]
NewChat = Callable[..., Chat]
LONG = "Tell me a story about the sea. " * 40


def _texts(archive: Archive, id: str | None) -> list[str]:
    return [entry.content for entry in archive.load(str(id)).entries]


def test_what_is_said_is_stored_with_its_circumstances(
    chat: Chat, say: Say, archive: Archive
) -> None:
    say("/system Be brief.", "Hello", "/set top-k 5", "And?")
    stored = archive.load(str(chat.recorder.id))
    assert [entry.content for entry in stored.entries] == texts_of(chat.session)
    assert (stored.title, stored.system, stored.messages) == ("Hello", "Be brief.", 2)
    assert stored.facts["settings"]["sampling"]["top_k"] == 5
    assert stored.facts["model"] == {
        "name": "smollm2-135m",
        "file": "smollm2-135m",
        "draft": "ngram",
        "context": 1024,
    }
    assert chat.last is not None
    answer, (result, _) = stored.entries[3].details, chat.last
    assert (answer["model"], answer["drafter"]) == ("smollm2-135m", "ngram")
    assert answer["finish_reason"] == result.finish_reason
    assert answer["tokens"] == len(result.tokens)


def test_a_message_is_in_the_file_before_it_is_answered(
    chat: Chat, say: Say, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def advance(*_: object) -> None:
        seen.append(_texts(archive, chat.recorder.id))
        raise UsageError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(chat.session.engine, "advance", advance)
        assert say("Hello") == ["error: broken"]
    assert seen == [["Hello"]]
    assert archive.load(str(chat.recorder.id)).unanswered
    say("/retry")
    assert len(_texts(archive, chat.recorder.id)) == 2


def test_reset_leaves_a_conversation_and_resume_goes_on(
    chat: Chat, say: Say, archive: Archive
) -> None:
    say("/system Be brief.", "/set temperature 0", "First one")
    first = str(chat.recorder.id)
    said = texts_of(chat.session)
    assert say("/reset") == [
        f"forgotten, except for the system prompt; /resume {first} brings it back"
    ]
    say("/system none", "/set temperature 1", "Second one")
    second = str(chat.recorder.id)
    lines = say("/list")
    assert [line[:13] for line in lines] == [f"  1* {second} ", f"  2  {first} "]
    assert lines[1].endswith("First one")
    assert say("/resume") == [*lines, "/resume NUMBER continues one of them"]
    assert say("/resume 2") == [f"1. 'First one' -> {said[1]!r}"]
    assert texts_of(chat.session) == said
    assert (chat.session.system, chat.session.sampling.temperature) == ("Be brief.", 0.0)
    assert say(f"/resume {first}") == ["error: this conversation is the running one"]
    say("More")
    assert _texts(archive, first) == texts_of(chat.session)
    assert len(_texts(archive, second)) == 2


def test_a_stored_conversation_says_the_same_as_one_that_was_never_left(
    new_chat: NewChat, tell: Say
) -> None:
    one = new_chat()
    tell(one, "/set temperature 0", "Name two rivers.", "And a lake.")
    one.leave()
    other = new_chat()
    resume(other, *open_stored(other, other.archive.latest()))
    tell(other, "/branch 1", "And a lake.")
    assert texts_of(other.session) == texts_of(one.session)


def test_retry_and_edit_keep_the_old_branch_in_the_file(
    chat: Chat, say: Say, archive: Archive
) -> None:
    say("One", "Two")
    one, answer, _, old = texts_of(chat.session)
    say("/edit", revision="OLD and three")
    assert texts_of(chat.session)[:3] == [one, answer, "Two and three"]
    say("/retry")
    stored = archive.load(str(chat.recorder.id))
    assert [entry.content for entry in stored.entries] == texts_of(chat.session)
    assert old in [entry.content for _, entry in stored.replaced]
    assert len(stored.replaced) >= 2  # another seed may give the same answer
    before = texts_of(chat.session)
    for revision in (None, "OLD", "  "):
        assert say("/edit", revision=revision) == ["nothing was changed"]
    assert texts_of(chat.session) == before


def test_branch(chat: Chat, say: Say, archive: Archive) -> None:
    say("One", "Two", "Three")
    first, said = str(chat.recorder.id), texts_of(chat.session)
    assert "/show has 1 to 3" in say("/branch 4")[0]
    assert say("/branch 2x")[0].startswith("error: there is no message '2x'")
    assert "continues after message 2" in say("/branch 2")[0]
    second = str(chat.recorder.id)
    assert (texts_of(chat.session), archive.load(second).origin) == (said[:4], first)
    assert [line.endswith("One -> Two") for line in say("/list")] == [True, False]
    say("Four", "/branch")
    assert _texts(archive, first) == said
    assert _texts(archive, second) == _texts(archive, chat.recorder.id)
    assert len(archive.ids()) == 3
    assert [line[:7] for line in say("/show")] == ["1. 'One", "2. 'Two", "3. 'Fou"]


def test_an_unanswered_message_is_marked_and_answered_on_request(
    chat: Chat, say: Say, new_chat: NewChat, tell: Say
) -> None:
    say("One", "Two")
    chat.session.unanswered = chat.session.messages[-2].content
    del chat.session.messages[-2:]
    say("/branch")
    id = chat.recorder.id
    chat.leave()
    other = new_chat()
    assert tell(other, "/list")[0].endswith("One -> Two (no answer)")
    lines = tell(other, f"/resume {id}")
    assert lines == [
        "2. 'Two' -> None",
        "the last message has no answer yet: /retry asks again",
    ]
    tell(other, "/retry")
    assert len(texts_of(other.session)) == 4


def test_search(chat: Chat, say: Say) -> None:
    say("Where is Samarkand?", "/reset", "Where is Timbuktu?", "/edit", revision="And Xanadu?")
    assert [line[-19:] for line in say("/list samarkand WHERE")] == ["Where is Samarkand?"]
    assert say("/list samarkand xanadu") == ["error: no conversation has these words"]
    title, hit = say("/search timbuktu where")  # it was replaced, and is found
    assert title.endswith("And Xanadu?")
    assert hit == "     message 1, you: Where is Timbuktu?"
    assert say("/search where xanadu") == ["error: no message has all these words"]
    say("/search samarkand", "/resume 1")
    assert texts_of(chat.session)[0] == "Where is Samarkand?"


def test_export_and_load(chat: Chat, say: Say, tmp_path: Path) -> None:
    say("/system Be brief.", "Hello")
    said = texts_of(chat.session)
    for name in ("a chat.json", "chat.md"):
        path = tmp_path / name
        assert say(f"/export '{path}'") == [f"written to {path}"]
        assert "/export! writes over it" in say(f"/export {path}")[0]
        assert say(f"/export! {path}") == [f"written to {path}"]
        assert path.stat().st_mode & 0o077 == 0
    assert json.loads((tmp_path / "a chat.json").read_text())["id"] == chat.recorder.id
    first = chat.recorder.id
    say("/reset", "/system none", f"/load {tmp_path}/a chat.json")
    assert (texts_of(chat.session), chat.session.system) == (said, "Be brief.")
    assert chat.recorder.id not in (None, first)  # it is another conversation


def test_delete(chat: Chat, say: Say, archive: Archive, tmp_path: Path) -> None:
    say("One")
    first = str(chat.recorder.id)
    assert "running one" in say(f"/delete {first}")[0]
    say("/reset", "Two")
    (tmp_path / "caches").mkdir(exist_ok=True)
    (tmp_path / "caches" / f"{first}.kv").touch()
    assert say(f"/delete {first}") == [f"{first} is deleted"]
    assert archive.ids() == [chat.recorder.id]
    assert list((tmp_path / "caches").iterdir()) == []


def test_two_chats_at_once(new_chat: NewChat, tell: Say, archive: Archive) -> None:
    one, other = new_chat(), new_chat()
    tell(one, "One")
    tell(other, "Two")
    assert one.recorder.id != other.recorder.id
    for line in (f"/resume {one.recorder.id}", f"/delete {one.recorder.id}"):
        assert "open in another chat" in tell(other, line)[0]
    assert texts_of(other.session)[0] == "Two"
    tell(one, "More")
    tell(other, "More")
    assert len(_texts(archive, one.recorder.id)) == len(_texts(archive, other.recorder.id)) == 4
    one.leave()
    tell(other, f"/resume {one.archive.ids()[1]}")
    assert texts_of(other.session)[0] == "One"


def test_without_storing_nothing_is_on_disk(
    new_chat: NewChat, tell: Say, archive: Archive, tmp_path: Path
) -> None:
    kept = new_chat()
    tell(kept, "Hello")
    kept.leave()
    before = sorted(tmp_path.rglob("*"))
    chat = new_chat(store=False)
    tell(
        chat, "One", "/branch", "Two", "/show", f"/resume {kept.archive.latest()}", "More", "/reset"
    )
    chat.end()
    assert sorted(tmp_path.rglob("*")) == before
    assert len(_texts(archive, archive.latest())) == 2


def test_a_damaged_file_costs_one_line_and_nothing_else(
    chat: Chat, say: Say, archive: Archive
) -> None:
    say("One")
    (archive.folder / "0000001.jsonl").write_text('{"format": "other"}\n')
    lines = say("/list", "/resume 0000001", "/list")
    assert sum("0000001.jsonl is not a stored conversation: line 1" in line for line in lines) == 3
    settings = {"type": "settings", "time": "t", "sampling": {"top_k": "many"}}
    whole = (archive.folder / f"{chat.recorder.id}.jsonl").read_text()
    (archive.folder / "0000002.jsonl").write_text(whole + json.dumps(settings) + "\n")
    assert "settings of 0000002 cannot be used" in say("/resume 0000002")[0]
    assert archive.open("0000002")[0].close() is None  # it is not locked
    say("Two")
    assert len(_texts(archive, chat.recorder.id)) == 4


@pytest.mark.slow
def test_a_long_conversation_goes_on_without_being_read_again(
    new_chat: NewChat, tell: Say, tmp_path: Path
) -> None:
    one = new_chat()
    tell(one, LONG)
    id = one.recorder.id
    one.end()
    cache = tmp_path / "caches" / f"{id}.kv"
    assert cache.stat().st_mode & 0o077 == 0
    other = new_chat()
    other.session.engine.decoder.prefix_cache._saved.clear()
    tell(other, "Something else")
    assert any(line.startswith("restored ") for line in tell(other, f"/resume {id}"))
    tell(other, "And?")
    assert other.last is not None
    assert other.last[0].statistics.reused_tokens > 300
    reused = f"{other.last[0].statistics.reused_tokens} of them from the cache"
    assert any(reused in line for line in tell(other, "/stats"))
    tell(other, "/reset", "Something else again")
    cache.write_bytes(b"damaged")
    other.session.engine.decoder.prefix_cache._saved.clear()
    assert not any("restored" in line for line in tell(other, f"/resume {id}"))
    tell(other, "And?")
    assert len(texts_of(other.session)) == 6  # and it was read again


@pytest.mark.slow
def test_one_that_outgrew_the_context_goes_on_at_once_too(new_chat: NewChat, tell: Say) -> None:
    one = new_chat(tokens=4)
    while not one.session.dropped:
        tell(one, LONG)
    dropped = one.session.dropped
    one.end()
    other = new_chat(tokens=4)
    tell(other, "Something else")
    other.session.engine.decoder.prefix_cache._saved.clear()
    lines = tell(other, f"/resume {other.archive.ids()[1]}")
    assert f"the model no longer sees the first {dropped} messages" in lines
    tell(other, "And?")
    assert other.session.dropped == dropped
    assert other.last is not None
    assert other.last[0].statistics.reused_tokens > 300


@pytest.mark.parametrize("dropped", [-2, 4, 3.0, True, "2", None, 10**30])
def test_a_wrong_count_of_what_was_dropped_is_not_believed(
    new_chat: NewChat, tell: Say, archive: Archive, dropped: object
) -> None:
    one = new_chat()
    tell(one, "One", "Two")
    id = str(one.recorder.id)
    one.end()
    path = archive.folder / f"{id}.jsonl"
    text = path.read_text("utf-8").replace('"dropped": 0', f'"dropped": {json.dumps(dropped)}')
    path.write_text(text, "utf-8")
    tell(one, f"/resume {id}", "Three")
    assert one.session.dropped == 0
    assert len(texts_of(one.session)) == 6


def test_messages_are_those_of_the_session(chat: Chat, say: Say) -> None:
    say("/system Be brief.", "Hello")
    assert [Message(e.role, e.content) for e in chat.entries] == chat.session.messages[1:]
