"""Files of conversations: written at once, locked, and believed only after a check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from edgespec.chat import archive as archive_module
from edgespec.chat.archive import Archive, Journal, is_id
from edgespec.chat.events import Entry, header
from edgespec.errors import EdgespecError, UsageError


def _begun(archive: Archive, *texts: str) -> Journal:
    journal = archive.create()
    entries = [Entry(("user", "assistant")[at % 2], text, "t") for at, text in enumerate(texts)]
    events = [entry.event(at) for at, entry in enumerate(entries)]
    journal.append([header(journal.id, "t", None), *events])
    return journal


def _stored(archive: Archive, *texts: str) -> str:
    journal = _begun(archive, *texts)
    journal.close()
    return journal.id


def _path(archive: Archive, id: str) -> Path:
    return archive.folder / f"{id}.jsonl"


def test_every_line_is_in_the_file_at_once_and_for_the_user_only(archive: Archive) -> None:
    journal = _begun(archive, "hi")
    path = _path(archive, journal.id)
    assert path.stat().st_mode & 0o777 == 0o600
    assert archive.folder.stat().st_mode & 0o077 == 0
    assert [entry.content for entry in archive.load(journal.id).entries] == ["hi"]
    journal.append([Entry("assistant", "hello", "t").event(1)])
    assert [entry.content for entry in archive.load(journal.id).entries] == ["hi", "hello"]
    journal.close()


def test_ids_are_short_unique_and_in_order(archive: Archive) -> None:
    ids = [_stored(archive, str(number)) for number in range(5)]
    assert sorted(set(ids)) == ids
    assert all(is_id(id) for id in ids)
    assert not any(
        is_id(text) for text in ("", "../../a", "1ngtwr", "1ngtwrtt", "1NGTWRT", "1ngtwri")
    )


def test_the_one_used_last_is_first(archive: Archive) -> None:
    with pytest.raises(UsageError, match="no stored conversation yet"):
        archive.latest()
    first, second = _stored(archive, "one"), _stored(archive, "two")
    os.utime(_path(archive, first), ns=(2**62, 2**62))
    assert archive.ids() == [first, second]
    assert archive.latest() == archive.find("1") == first
    assert archive.find("2", [first, second]) == archive.find(second) == second
    for word in ("0", "3", "-1", "1.0", "²", "9" * 50, "0000000", "", "../x", f"{first}x"):
        with pytest.raises(UsageError, match="there is no conversation"):
            archive.find(word)


def test_two_chats_never_write_into_one_file(archive: Archive) -> None:
    journal = _begun(archive, "hi")
    with pytest.raises(UsageError, match=f"{journal.id} is open in another chat"):
        archive.open(journal.id)
    with pytest.raises(UsageError, match="is open in another chat"):
        archive.remove(journal.id)
    journal.close()
    again, conversation = archive.open(journal.id)
    assert conversation.title == "hi"
    again.close()


@pytest.mark.parametrize("torn", [b"x", b'{"type": "message", "at": 1, "cont', b"\0" * 5000])
def test_a_torn_last_line_is_ignored_and_then_cut_off(archive: Archive, torn: bytes) -> None:
    id = _stored(archive, "hi", "hello")
    with _path(archive, id).open("ab") as file:
        file.write(torn)
    assert archive.load(id).entries[-1].content == "hello"
    journal, conversation = archive.open(id)
    assert len(conversation.entries) == 2
    journal.append([Entry("user", "more", "t").event(2)])
    journal.close()
    assert [entry.content for entry in archive.load(id).entries] == ["hi", "hello", "more"]


def test_every_beginning_of_a_file_is_read_or_refused(archive: Archive) -> None:
    id = _stored(archive, "hi", "hello")
    whole = _path(archive, id).read_bytes()
    lengths = []
    for length in range(1, len(whole)):
        _path(archive, id).write_bytes(whole[:length])
        try:
            lengths.append(len(archive.load(id).entries))
        except UsageError as error:
            assert "no header" in str(error)
            assert not lengths
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 1}


def test_a_full_disk_leaves_whole_lines(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = _begun(archive, "hi")
    write = os.write

    def half(descriptor: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(EdgespecError, match="No space left on device"):
        journal.append([Entry("assistant", "hello", "t").event(1)])
    monkeypatch.undo()
    assert _path(archive, journal.id).read_bytes().endswith(b"\n")
    journal.append([Entry("assistant", "again", "t").event(1)])
    journal.close()
    assert archive.load(journal.id).entries[1].content == "again"


def test_nothing_is_written_that_would_not_be_read(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = _begun(archive, "hi")
    size = _path(archive, journal.id).stat().st_size
    monkeypatch.setattr(archive_module, "MOST_BYTES", size)
    with pytest.raises(EdgespecError, match="would have more than"):
        journal.append([Entry("assistant", "hello", "t").event(1)])
    journal.close()
    again, conversation = archive.open(journal.id)
    again.close()
    assert len(conversation.entries) == 1


def test_what_cannot_be_used_is_said_in_one_line(archive: Archive) -> None:
    id = _stored(archive, "hi")
    path = _path(archive, id)
    with path.open("ab") as file:
        file.truncate(17 << 20)
    for use in (archive.load, archive.open):
        with pytest.raises(UsageError, match="more than"):
            use(id)
    path.unlink()
    os.mkfifo(path)
    for use in (archive.load, archive.open):
        with pytest.raises(UsageError, match="not a regular file"):
            use(id)
    path.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        archive.load(id)
    path.write_bytes(b"foreign\n")
    said: list[str] = []
    other = _stored(archive, "two")
    assert [one.id for one in archive.conversations(said.append)] == [other]
    assert len(said) == 1
    assert "is not a stored conversation: line 1: it is not JSON" in said[0]
    archive.remove(id)
    assert archive.ids() == [other]


def test_other_files_are_left_alone(archive: Archive) -> None:
    id = _stored(archive, "hi")
    for name in ("notes.txt", "0000000.json", "UPPER00.jsonl", ".jsonl"):
        (archive.folder / name).write_text("x")
    (archive.folder / "0000000.jsonl").touch()  # before its first line was written
    assert archive.ids() == [id]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    archive = Archive(tmp_path / "file" / "conversations")
    assert archive.ids() == []
    assert "Not a directory" in str(archive.problem())
    with pytest.raises(EdgespecError, match="Not a directory"):
        archive.create()
