from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.chat.archive import Archive
from edgespec.chat.recorder import CacheShelf, Recorder, State
from edgespec.errors import EdgespecError
from edgespec.runtime.engine import Engine
from edgespec.runtime.stream import GenerationLimits

FACTS: dict[str, Any] = {"model": {"name": "test"}, "system": {"text": None}}


def _contents(archive: Archive, id: str | None) -> list[str]:
    return [entry.content for entry in archive.load(str(id)).entries]


def _types(archive: Archive, id: str | None) -> list[str]:
    lines = (archive.folder / f"{id}.jsonl").read_text("utf-8").splitlines()
    return [line.split('"')[3] for line in lines]


def _recorder(archive: Archive, **options: Any) -> tuple[Recorder, list[str]]:
    said: list[str] = []
    return Recorder(archive, keep=options.get("keep", True), warn=said.append), said


def test_nothing_is_stored_before_something_was_said(archive: Archive) -> None:
    recorder, _ = _recorder(archive)
    recorder.write(State([], FACTS))
    assert (recorder.id, archive.ids()) == (None, [])


def test_what_is_new_is_written_once(archive: Archive) -> None:
    recorder, said = _recorder(archive)
    recorder.write(State(["hi"], FACTS))
    recorder.write(State(["hi"], FACTS))
    recorder.write(State(["hi", "hello"], FACTS), details={"tokens": 1})
    changed = {**FACTS, "system": {"text": "Be brief."}}
    recorder.write(State(["hi", "hello"], changed))
    head, *types = _types(archive, recorder.id)
    assert head == "edgespec-conversation"
    assert types == ["model", "system", "message", "answer", "system"]
    assert archive.load(str(recorder.id)).entries[1].details == {"tokens": 1}
    assert said == []


def test_an_old_branch_stays_in_the_file(archive: Archive) -> None:
    recorder, _ = _recorder(archive)
    recorder.write(State(["a", "b", "c", "d"], FACTS))
    recorder.write(State(["a", "b"], FACTS))  # while something else is answered
    assert _contents(archive, recorder.id) == ["a", "b", "c", "d"]
    recorder.write(State(["a", "b", "x"], FACTS))
    read = archive.load(str(recorder.id))
    assert [entry.content for entry in read.entries] == ["a", "b", "x"]
    assert [entry.content for _, entry in read.replaced] == ["c", "d"]


def test_a_branch_has_a_file_of_its_own_with_times_and_details(archive: Archive) -> None:
    recorder, _ = _recorder(archive)
    recorder.write(State(["a"], FACTS), typed="x")
    recorder.write(State(["a", "b"], FACTS), details={"tokens": 1})
    recorder.write(State(["a", "b", "c"], FACTS))
    first = archive.load(str(recorder.id))
    recorder.branch(2)
    recorder.write(State(["a", "b"], FACTS))
    recorder.write(State(["a", "b", "y"], FACTS))
    second = archive.load(str(recorder.id))
    assert second.origin == first.id != second.id
    assert second.entries[:2] == first.entries[:2]
    assert _contents(archive, second.id) == ["a", "b", "y"]
    assert _contents(archive, first.id) == ["a", "b", "c"]
    recorder.leave()
    assert recorder.id is None


def test_going_on_adds_to_the_file(archive: Archive) -> None:
    recorder, _ = _recorder(archive)
    recorder.write(State(["a", "b"], FACTS))
    id = str(recorder.id)
    recorder.leave()
    again, _ = _recorder(archive)
    again.resume(*archive.open(id))
    again.write(State(["a", "b"], FACTS))
    again.write(State(["a", "b", "c"], FACTS))
    assert _types(archive, id)[1:] == ["model", "system", "message", "answer", "message"]


def test_without_storing_it_is_remembered_only(archive: Archive) -> None:
    recorder, said = _recorder(archive, keep=False)
    recorder.write(State(["a", "b"], FACTS), details={"tokens": 1})
    assert [entry.content for entry in recorder.entries] == ["a", "b"]
    assert (recorder.id, said, archive.folder.exists()) == (None, [], False)


def test_an_unusable_folder_is_said_once_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recorder, said = _recorder(Archive(tmp_path / "file" / "x"))
    recorder.write(State(["a"], FACTS))
    recorder.write(State(["a", "b"], FACTS))
    assert len(said) == 1
    assert "the conversation is not stored" in said[0]
    assert [entry.content for entry in recorder.entries] == ["a", "b"]


def test_a_disk_that_fills_later_is_said_once(archive: Archive, monkeypatch: Any) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    recorder, said = _recorder(archive)
    recorder.write(State(["a"], FACTS))
    id = recorder.id
    monkeypatch.setattr("os.fsync", full)
    for texts in (["a", "b"], ["a", "b", "c"]):
        recorder.write(State(texts, FACTS))
    assert [line.rpartition(": ")[2] for line in said] == ["No space left on device"]
    assert _contents(archive, id) == ["a"]
    assert len(recorder.entries) == 3


TOKENS = range(300)


class Sized:
    """Writes caches of a given size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def save_cache(self, path: Path, tokens: Sequence[int]) -> int:
        path.write_bytes(b"x" * self._size)
        return len(tokens)

    def load_cache(self, path: Path) -> int:
        return len(path.read_bytes())


def test_the_oldest_go_when_all_together_are_too_large(tmp_path: Path) -> None:
    shelf = CacheShelf(tmp_path, most_bytes=250)
    for age, id in enumerate(("a", "b")):
        assert shelf.save(Sized(100), id, TOKENS) == 300
        os.utime(tmp_path / f"{id}.kv", ns=(age, age))
    shelf.load(Sized(0), "a")  # now it is the newer one
    shelf.save(Sized(100), "c", TOKENS)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c"]
    shelf.save(Sized(300), "d", TOKENS)
    assert list(tmp_path.iterdir()) == []
    shelf.save(Sized(1), "e", TOKENS)
    shelf.remove("e")
    shelf.remove("e")
    assert list(tmp_path.iterdir()) == []


def test_a_short_one_is_not_worth_it(tmp_path: Path) -> None:
    assert CacheShelf(tmp_path / "x").save(Sized(1), "a", range(255)) == 0
    assert not (tmp_path / "x").exists()


def test_failing_to_keep_it_is_no_error(tmp_path: Path) -> None:
    class Full(Sized):
        def save_cache(self, path: Path, tokens: Sequence[int]) -> int:
            raise EdgespecError("No space left on device")

    (tmp_path / "file").touch()
    assert CacheShelf(tmp_path / "file").save(Sized(1), "a", TOKENS) == 0
    assert CacheShelf(tmp_path / "folder").save(Full(1), "a", TOKENS) == 0


def test_a_real_one_is_for_the_user_only(engine: Engine, tmp_path: Path) -> None:
    shelf = CacheShelf(tmp_path / "caches")
    stream = engine.generate("The sea. " * 120, limits=GenerationLimits(max_tokens=2))
    stream.result  # noqa: B018
    saved = shelf.save(engine, "a", stream.sequence)
    assert saved >= 256
    assert shelf.load(engine, "a") >= saved
    assert shelf.load(engine, "b") == 0
    (path,) = (tmp_path / "caches").iterdir()
    assert (tmp_path / "caches").stat().st_mode & 0o077 == path.stat().st_mode & 0o077 == 0
    path.write_bytes(path.read_bytes()[:-1])
    assert shelf.load(engine, "a") == 0
