"""Models that other programs downloaded: found in their folders, used there, never changed.

Hugging Face's cache, LM Studio's folder and Ollama's store; each has a folder of its own form.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.files import read_at_most
from edgespec.registry.fetch import FILE, REPOSITORY, parts

__all__ = ["Found", "elsewhere", "hub_files", "ollama_model"]

_MOST_BYTES = 1 << 20
_MOST_FILES = 2000
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_WEIGHTS = "application/vnd.ollama.image.model"
_OLLAMA_HOST = "registry.ollama.ai/library"


@dataclass(frozen=True)
class Found:
    """A model of another program's: the name that finds it, its first file, and the owner."""

    name: str
    path: Path
    owner: str

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        files = [self.path.with_name(name) for name in parts(self.path.name)]
        return sum(file.stat().st_size for file in files if file.is_file())


def elsewhere() -> list[Found]:
    """Return all models of other programs that may be named, one name only once."""
    models: dict[str, Found] = {}
    for found in (*_hugging_face(), *_lm_studio(), *_ollama()):
        models.setdefault(found.name, found)
    return list(models.values())


def hub_files(repo: str) -> dict[str, Path]:
    """Return the GGUF files of a Hugging Face repository that other programs have, by name."""
    files: dict[str, Path] = {}
    for folder in (*_snapshots(_hub_cache() / f"models--{repo.replace('/', '--')}"), *_kept(repo)):
        for path in _ggufs(folder):
            files.setdefault(path.relative_to(folder).as_posix(), path)
    return files


def ollama_model(name: str) -> Path | None:
    """Return the file of a model in Ollama's store; *name* is NAME, NAME:TAG or HOST/.../NAME."""
    base, _, tag = name.partition(":")
    tag = tag or "latest"
    segments = base.split("/")
    if not all(_plain(segment) for segment in (*segments, tag)):
        return None
    hosted = {1: _OLLAMA_HOST, 2: "registry.ollama.ai"}.get(len(segments))
    inner = "/".join(filter(None, (hosted, base, tag)))
    for store in _ollama_stores():
        if (path := _weights(store, store / "manifests" / inner)) is not None:
            return path
    return None


def _hugging_face() -> Iterator[Found]:
    for folder in _folders(_hub_cache()):
        owner, _, name = folder.name.removeprefix("models--").partition("--")
        if not folder.name.startswith("models--") or not name:
            continue
        for snapshot in _snapshots(folder):
            yield from _named(f"hf:{owner}/{name}", snapshot, "Hugging Face")


def _lm_studio() -> Iterator[Found]:
    for root in _lm_studio_folders():
        for owner in _folders(root):
            for repo in _folders(owner):
                yield from _named(f"hf:{owner.name}/{repo.name}", repo, "LM Studio")


def _ollama() -> Iterator[Found]:
    for store in _ollama_stores():
        root = store / "manifests"
        for manifest in _inside(root, "*"):
            if (path := _weights(store, manifest)) is not None:
                base, _, tag = manifest.relative_to(root).as_posix().rpartition("/")
                base = base.removeprefix(f"{_OLLAMA_HOST}/").removeprefix("registry.ollama.ai/")
                yield Found(f"ollama:{base}:{tag}", path, "Ollama")


def _named(prefix: str, folder: Path, owner: str) -> Iterator[Found]:
    for path in _ggufs(folder):
        files = parts(path.name)
        if files[0] == path.name and all(path.with_name(name).is_file() for name in files):
            name = f"{prefix}/{path.relative_to(folder).as_posix()}"
            if re.fullmatch(f"hf:{REPOSITORY}/{FILE}", name, re.ASCII):  # it can be typed
                yield Found(name, path, owner)


def _hub_cache() -> Path:
    """Return Hugging Face's cache, without importing its package, which takes a while."""
    if named := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = os.environ.get("HF_HOME") or cache / "huggingface"
    return Path(home).expanduser() / "hub"


def _snapshots(folder: Path) -> list[Path]:
    """Return the snapshots of a cached repository: that of its branch first, then the newest."""
    try:
        main = read_at_most(folder / "refs" / "main", 100).decode("ascii").strip()
    except (OSError, ValueError):
        main = ""
    found = _folders(folder / "snapshots")
    return sorted(found, key=lambda one: (one.name != main, -one.stat().st_mtime))


def _kept(repo: str) -> Iterator[Path]:
    """Yield LM Studio's folders of a repository."""
    for root in _lm_studio_folders():
        if (root / repo).is_dir():
            yield root / repo


def _lm_studio_folders() -> tuple[Path, ...]:
    home = Path.home()
    return home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"


def _ollama_stores() -> tuple[Path, ...]:
    if named := os.environ.get("OLLAMA_MODELS"):
        return (Path(named).expanduser(),)
    return Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")


def _weights(store: Path, manifest: Path) -> Path | None:
    """Return the weights that one of Ollama's manifests names, if they are there."""
    try:
        layers: Any = json.loads(read_at_most(manifest, _MOST_BYTES))["layers"]
        digests = [one["digest"] for one in layers if one["mediaType"] == _WEIGHTS]
        match = _DIGEST.fullmatch(digests[0])
        path = store / "blobs" / f"sha256-{match[1]}" if match else None
        return path if path and path.is_file() else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _ggufs(folder: Path) -> Iterator[Path]:
    for path in _inside(folder, "*.gguf"):
        if "mmproj" not in path.name.lower():
            yield path


def _inside(folder: Path, pattern: str) -> list[Path]:
    """Return files in a folder, sorted; none if it cannot be read, and not more than many."""
    found: list[Path] = []
    try:
        for path in folder.rglob(pattern):
            if path.is_file() and str(path).isprintable():
                found.append(path)
            if len(found) >= _MOST_FILES:
                break
    except OSError:
        pass
    return sorted(found)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _plain(segment: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*", segment, re.ASCII) is not None
