import hashlib
import os
from pathlib import Path

import pytest

from edgespec.errors import ModelFileError, RegistryError, UnknownModelError
from edgespec.registry.manifest import load_manifest
from edgespec.registry.resolve import cached_files, resolve

HUB_FILE = "hf/owner/repo/sub/m.gguf"


@pytest.fixture
def in_cache(cache):
    def put(file, data=b"GGUF"):
        cache.path(file).parent.mkdir(parents=True, exist_ok=True)
        cache.partial(file).write_bytes(data)
        cache.adopt(file, name=file, source="test", sha256=hashlib.sha256(data).hexdigest())
        return cache.path(file)

    return put


@pytest.mark.parametrize("form", [str, Path])
def test_path(tmp_path, form, cache):
    file = tmp_path / "my model.gguf"
    file.write_bytes(b"")
    model = resolve(form(file))
    assert (model.path, model.name, model.entry) == (file, "my model", None)


def test_a_file_name_that_is_not_utf8(tmp_path, cache):
    file = tmp_path / os.fsdecode(b"caf\xe9.gguf")
    file.write_bytes(b"")
    model = resolve(file)
    assert (model.path, model.name) == (file, "caf\ufffd")


def test_existing_file_without_an_ending(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weights").write_bytes(b"")
    assert resolve("weights").path == Path("weights")


def test_home_folder(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"")
    assert resolve("~/m.gguf").path == tmp_path / "m.gguf"


@pytest.mark.parametrize("missing", ["no.gguf", "./no", "no/such", Path("no"), "x" * 5000 + "/y"])
def test_missing_path(missing, cache):
    with pytest.raises(ModelFileError, match="no such file"):
        resolve(missing)


def test_unknown_name_lists_close_ones(cache):
    close = r"did you mean smollm2-135m or smollm2-360m or smollm2-135m-eagle3\?"
    with pytest.raises(UnknownModelError, match=close):
        resolve("SmolLM-135")
    with pytest.raises(UnknownModelError, match="models list"):
        resolve("gpt\0")


def test_offline_without_the_file(cache):
    with pytest.raises(RegistryError, match="edgespec models pull smollm2-135m"):
        resolve(None, offline=True)


def test_altered_cached_file_is_not_used(cache, in_cache):
    in_cache(load_manifest().default.file, b"not the published bytes")
    with pytest.raises(RegistryError, match="not downloaded"):
        resolve(None, offline=True)


def test_cached_hub_file(cache, in_cache):
    path = in_cache(HUB_FILE)
    assert resolve("hf:owner/repo/sub/m.gguf", offline=True).path == path
    assert resolve("hf:owner/repo/sub/m.gguf").path == path  # nor is the network asked


@pytest.mark.parametrize(
    "reference",
    [
        "hf:",
        "hf:owner",
        "hf:owner/repo:",
        "hf:owner/repo:Q4/K",
        "hf:owner/repo/m.gguf:Q4_0",
        "hf:owner/m.gguf",
        "hf:owner/repo/m.bin",
        "hf:owner/repo/../m.gguf",
        "hf:owner/../repo/m.gguf",
        "hf:../repo/m.gguf",
        "hf:/owner/repo/m.gguf",
        "hf:owner/repo//m.gguf",
        "hf:owner/repo/.hidden/m.gguf",
        "hf:owner/repo/a\\b.gguf",
        "hf:owner/repo/m.gguf?x=1.gguf",
        "hf:owner/repo/m.gguf\n",
    ],
)
def test_malformed_reference(reference, cache):
    with pytest.raises(UnknownModelError, match="OWNER/REPO/FILE") as caught:
        resolve(reference)
    assert "\n" not in str(caught.value)


def test_cached_file_names():
    assert cached_files("hf:owner/repo/sub/m.gguf") == (HUB_FILE,)
    assert cached_files("smollm2-135m") == (load_manifest().default.file,)
    with pytest.raises(UnknownModelError):
        cached_files("m.gguf")


def test_default_cache_folder(monkeypatch):
    from edgespec.registry.cache import default_cache

    monkeypatch.delenv("EDGESPEC_CACHE", raising=False)
    folder = default_cache().folder
    assert folder.name == "models"
    assert "edgespec" in os.fspath(folder)
