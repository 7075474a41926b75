"""Files that are written in one step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.files import decode_text, replace_file, replacing
from edgespec.registry.cache import ModelCache
from edgespec.runtime.prefix_cache import read_cache
from edgespec.tuning.setting import load_measurement


@pytest.mark.parametrize("alone", [False, True])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, alone: bool) -> None:
    path = tmp_path / "facts.json"
    replace_file(path, b"old", alone=alone)
    with pytest.raises(ValueError, match="enough"), replacing(path, alone=alone) as draft:
        draft.write_bytes(b"half")
        assert path.read_bytes() == b"old"
        raise ValueError("enough")
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"old", [path])
    replace_file(path, b"new", durable=True, alone=alone)
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"new", [path])


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    (tmp_path / "latest.pt.partial").write_bytes(b"a longer text than the new one")
    replace_file(path, b"new", alone=True)
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"new", [path])


def test_a_private_file_is_the_users_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "chat", b"secret", private=True)
    assert (tmp_path / "chat").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("form", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_is_read_with_and_without_a_byte_order_mark(form: str) -> None:
    assert decode_text("Grüße, 🐱".encode(form)) == "Grüße, 🐱"


def test_text_of_another_form_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"is not UTF-8 \(byte 0xfc at offset 2\)"):
        decode_text("Grüße".encode("latin-1"))


def recorded(folder: Path) -> object:
    (folder / "model.gguf").write_bytes(b"x")
    return ModelCache(folder).record("model.gguf")


@pytest.mark.skipif(sys.platform == "win32", reason="has no such files")
@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("model.gguf.record.json", recorded),
        ("prefix", lambda folder: read_cache(folder / "prefix", "key")),
        ("measurements/key.json", lambda folder: load_measurement("key")),
    ],
)
def test_a_pipe_in_place_of_a_cache_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, read: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    assert read(tmp_path) is None
