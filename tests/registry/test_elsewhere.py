"""Models that other programs downloaded are used where they are."""

import hashlib
import json
from pathlib import Path

import pytest

from edgespec.errors import RegistryError, UnknownModelError
from edgespec.registry import manifest, resolve
from edgespec.registry.resolve import cached_files, elsewhere

REPO = "owner/model-GGUF"


@pytest.fixture
def home(tmp_path, monkeypatch, cache):
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def put_hub(
    folder: Path, file: str, data: bytes, commit: str = "c" * 40, main: bool = True
) -> Path:
    repo = folder / f"models--{REPO.replace('/', '--')}"
    blob = repo / "blobs" / hashlib.sha256(data).hexdigest()
    path = repo / "snapshots" / commit / file
    for each in (blob, path, repo / "refs" / "main"):
        each.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    path.symlink_to(blob)
    (repo / "refs" / "main").write_text(commit)
    return path


def put_ollama(store: Path, place: str, data: bytes, **changes: object) -> Path:
    sha256 = hashlib.sha256(data).hexdigest()
    blob, entry = store / "blobs" / f"sha256-{sha256}", store / "manifests" / place
    for each in (blob, entry):
        each.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{sha256}"}
    entry.write_text(json.dumps({"layers": [{"mediaType": "x", "digest": "y"}, layer | changes]}))
    return blob


@pytest.mark.parametrize("variable", [None, "HF_HOME", "HF_HUB_CACHE"])
def test_hugging_face(home, monkeypatch, variable):
    place = {None: ".cache/huggingface/hub", "HF_HOME": "hf/hub", "HF_HUB_CACHE": "hub"}[variable]
    if variable:
        root = home / place
        monkeypatch.setenv(variable, str(root.parent if variable == "HF_HOME" else root))
    old = put_hub(home / place, "m-Q4_K_M.gguf", b"old", "a" * 40)
    path = put_hub(home / place, "m-Q4_K_M.gguf", b"new")
    assert [(each.name, each.path, each.owner) for each in elsewhere()] == [
        (f"hf:{REPO}/m-Q4_K_M.gguf", path, "Hugging Face")
    ]
    for reference in (f"hf:{REPO}/m-Q4_K_M.gguf", f"hf:{REPO}", f"hf:{REPO}:Q4_K_M"):
        assert resolve.resolve(reference, offline=True).path == path
        with pytest.raises(RegistryError, match="another program's"):
            cached_files(reference)
    assert old.exists()


@pytest.mark.parametrize("place", [".lmstudio/models", ".cache/lm-studio/models"])
def test_lm_studio(home, place):
    folder = home / place / REPO
    folder.mkdir(parents=True)
    names = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "mmproj-m.gguf"]
    for name in names:
        (folder / name).write_bytes(b"four")
    (found,) = elsewhere()
    assert (found.name, found.owner, found.size) == (f"hf:{REPO}/{names[0]}", "LM Studio", 8)
    assert resolve.resolve(f"hf:{REPO}:Q8_0", offline=True).path == folder / names[0]
    (folder / names[1]).unlink()
    assert elsewhere() == []


@pytest.mark.parametrize("variable", [False, True])
def test_ollama(home, monkeypatch, variable):
    store = home / ("store" if variable else ".ollama/models")
    if variable:
        monkeypatch.setenv("OLLAMA_MODELS", str(store))
    small = put_ollama(store, "registry.ollama.ai/library/qwen3/0.6b", b"small")
    latest = put_ollama(store, "registry.ollama.ai/library/qwen3/latest", b"latest")
    hosted = put_ollama(store, "hf.co/owner/repo/Q4_K_M", b"hosted")
    names = {each.name: each.path for each in elsewhere()}
    assert names == {
        "ollama:qwen3:0.6b": small,
        "ollama:qwen3:latest": latest,
        "ollama:hf.co/owner/repo:Q4_K_M": hosted,
    }
    for name, path in (*names.items(), ("ollama:qwen3", latest)):
        assert resolve.resolve(name, offline=True).path == path
    with pytest.raises(UnknownModelError, match=r"did you mean ollama:qwen3:0\.6b"):
        resolve.resolve("ollama:qwen3:0.5b")
    with pytest.raises(UnknownModelError, match=r"ollama:qwen3:0\.6b"):
        resolve.resolve("qwen3:0.6b")
    with pytest.raises(RegistryError, match="Ollama's"):
        cached_files("ollama:qwen3:0.6b")


@pytest.mark.parametrize(
    "name", ["ollama:", "ollama:../x", "ollama:a/../../b", "ollama:a:../b", "ollama:a:b:c"]
)
def test_ollama_names_stay_in_the_store(home, name):
    with pytest.raises(UnknownModelError):
        resolve.resolve(name)


@pytest.mark.parametrize("digest", ["sha256:../../../etc/passwd", 7, "sha256:" + "0" * 64])
def test_damaged_ollama_manifests(home, digest):
    store = home / ".ollama/models"
    put_ollama(store, "registry.ollama.ai/library/a/latest", b"a", digest=digest)
    (store / "manifests/registry.ollama.ai/library/a/broken").write_text("[" * 100_000)
    assert elsewhere() == []


@pytest.mark.parametrize("right", [True, False])
def test_a_named_model_of_another_program(home, monkeypatch, right):
    data = b"published"
    sha256 = hashlib.sha256(data if right else b"different").hexdigest()
    text = f"""
[[models]]
name = "a"
default = true
title = "A"
file = "a.gguf"
sha256 = "{sha256}"
size = {len(data)}
licence = "MIT"
architecture = "llama"
quantization = "Q4_0"
context_length = 128
chat = ""
drafts = []

[[models.sources]]
kind = "huggingface"
repo = "{REPO}"
file = "a.gguf"
revision = "main"
"""
    monkeypatch.setattr(resolve, "load_manifest", lambda: manifest.parse_manifest(text))
    path = put_hub(home / ".cache/huggingface/hub", "a.gguf", data)
    if right:
        assert resolve.resolve("a", offline=True).path == path
    else:
        with pytest.raises(RegistryError, match="not downloaded"):
            resolve.resolve("a", offline=True)
