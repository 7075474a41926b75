from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgespec.chat.store.caches import CacheShelf
from edgespec.errors import EdgespecError
from edgespec.runtime.engine import Engine
from edgespec.runtime.stream import GenerationLimits

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
