import hashlib
import json
import os

import pytest

from edgespec.errors import RegistryError
from edgespec.registry import cache as cache_module
from edgespec.registry.cache import sha256_of

DATA = b"weights" * 1000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def filled(cache):
    cache.folder.mkdir(parents=True)
    cache.partial("m.gguf").write_bytes(DATA)
    cache.adopt("m.gguf", name="m", source="https", sha256=SHA)
    return cache


@pytest.fixture
def hashed(monkeypatch):
    """The paths that were hashed."""
    paths = []
    monkeypatch.setattr(
        cache_module, "sha256_of", lambda path: paths.append(path) or sha256_of(path)
    )
    return paths


def test_adopted_file_is_complete_and_listed(filled):
    assert filled.path("m.gguf").read_bytes() == DATA
    assert not filled.partial("m.gguf").exists()
    assert [(record.name, record.source) for record in filled.records()] == [("m", "https")]


def test_recorded_file_is_not_hashed_again(filled, hashed):
    assert filled.holds("m.gguf", SHA)
    assert not hashed


def test_touched_file_is_hashed_once(filled, hashed):
    os.utime(filled.path("m.gguf"), ns=(1, 1))
    assert filled.holds("m.gguf", SHA)
    assert filled.holds("m.gguf", SHA)
    assert len(hashed) == 1


def test_altered_file_is_noticed(filled, caplog):
    filled.path("m.gguf").write_bytes(DATA[:-1] + b"!")
    assert not filled.holds("m.gguf", SHA)
    assert not filled.holds("m.gguf")
    assert "altered" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": 1}', "\x00", "[" * 100_000])
def test_broken_record_means_hashing(filled, hashed, text, caplog):
    next(filled.folder.glob("*.json")).write_text(text)
    assert filled.holds("m.gguf", SHA)
    assert "is damaged: it is not used" in caplog.text
    assert len(hashed) == 1
    assert json.loads(next(filled.folder.glob("*.json")).read_text())["sha256"] == SHA


def test_other_published_checksum(filled):
    assert not filled.holds("m.gguf", "0" * 64)


def test_remove(filled):
    assert filled.remove("m.gguf") >= len(DATA)
    assert not filled.records()
    assert not filled.path("m.gguf").exists()
    with pytest.raises(RegistryError, match="not downloaded"):
        filled.remove("m.gguf")


def test_only_own_files_are_removed(filled):
    filled.path("mine.gguf").write_bytes(b"mine")
    with pytest.raises(RegistryError, match="not put there"):
        filled.remove("mine.gguf")
    assert filled.path("mine.gguf").exists()


def test_no_removal_during_a_pull(filled):
    with filled.lock("m.gguf"), pytest.raises(RegistryError, match="another process"):
        filled.remove("m.gguf")


def test_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file" / "cache"))
    cache = cache_module.default_cache()
    assert cache.records() == []
    assert not cache.holds("m.gguf", SHA)
    with pytest.raises(RegistryError, match="EDGESPEC_CACHE"), cache.lock("m.gguf"):
        pass
