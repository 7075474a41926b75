"""Find a model's file: a path, a name, a reference, nothing, or what other programs have."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import DownloadError, ModelFileError, RegistryError, UnknownModelError
from edgespec.files import read_at_most
from edgespec.registry.cache import ModelCache, default_cache, sha256_of
from edgespec.registry.fetch import FILE, REPOSITORY, Progress, choose, list_files, parts, whole
from edgespec.registry.manifest import HuggingFaceSource, ManifestEntry, load_manifest
from edgespec.registry.sources import Wanted, pull, pull_parts

__all__ = [
    "Found",
    "ResolvedModel",
    "cached_files",
    "elsewhere",
    "hub_files",
    "ollama_model",
    "present",
    "resolve",
]

_HUB = re.compile(
    rf"hf:(?P<repo>{REPOSITORY})(?:/(?P<file>{FILE})|:(?P<quantization>[A-Za-z0-9_-]{{1,32}}))?",
    re.ASCII,
)
_OLLAMA = "ollama:"
_FORMS = "hf:OWNER/REPO/FILE.gguf or hf:OWNER/REPO[:Q4_K_M]"
_CLOSE = 0.5


@dataclass(frozen=True)
class ResolvedModel:
    """A model's file, the name to show for it, and its entry in the manifest, if any."""

    path: Path
    name: str
    entry: ManifestEntry | None = None


def resolve(
    model: str | os.PathLike[str] | None,
    *,
    progress: Progress | None = None,
    offline: bool = False,
) -> ResolvedModel:
    """Find *model*'s file; download it if it has a name and is not on this machine.

    None is the manifest's default. A string is a manifest name, ``hf:OWNER/REPO/FILE.gguf``,
    ``hf:OWNER/REPO[:QUANTIZATION]``, ``ollama:NAME[:TAG]``, or a path: anything that has a
    separator, ends in ``.gguf``, or exists. What is in the cache, or in a folder of Hugging Face's,
    Ollama's or LM Studio's, needs no network; with *offline*, the network is never used.

    Raises ModelFileError for a path without a file, UnknownModelError for an unknown name,
    RegistryError if it has to be downloaded but *offline* is set, and whatever `pull` raises.
    """
    if isinstance(model, os.PathLike):
        return _at_path(Path(model))
    manifest = load_manifest()
    entry = manifest.default if model is None else manifest.find(model)
    if entry is not None:
        path = present(entry) or _pull_entry(entry, progress, offline)
        return ResolvedModel(path, entry.name, entry)
    assert model is not None
    if model.startswith("hf:"):
        return ResolvedModel(_from_hub(_Reference.parse(model), progress, offline), model)
    if model.startswith(_OLLAMA):
        return ResolvedModel(_from_ollama(model), model)
    if _looks_like_path(model):
        return _at_path(Path(model).expanduser())
    raise _unknown(model)


def present(entry: ManifestEntry) -> Path | None:
    """Return a named model's file if it is on this machine, in the cache or another program's."""
    cache = default_cache()
    if cache.holds(entry.file, entry.sha256):
        return cache.path(entry.file)
    for source in entry.sources:
        if isinstance(source, HuggingFaceSource):
            path = hub_files(source.repo).get(source.file)
            if path is not None and _is_right(path, entry):
                return path
    return None


def cached_files(name: str) -> tuple[str, ...]:
    """Return the files that edgespec has of a name or reference, relative to the cache folder.

    Raises UnknownModelError for any other text, RegistryError for a model of another program's.
    """
    entry = load_manifest().find(name)
    if entry is not None:
        return (entry.file,)
    if name.startswith(_OLLAMA):
        raise RegistryError(f"{name} is Ollama's: edgespec deletes only what it downloaded")
    if not name.startswith("hf:"):
        raise _unknown(name)
    reference = _Reference.parse(name)
    own = _own_files(reference.repo, default_cache())
    files = reference.files(own)
    if files is None and reference.files(hub_files(reference.repo)):
        raise RegistryError(f"{name} is another program's: edgespec deletes only its own downloads")
    if files is None and reference.file is None:
        raise RegistryError(f"{name} is not downloaded: there is nothing to remove")
    return tuple(reference.place(file) for file in files or parts(reference.file or ""))


@dataclass(frozen=True)
class _Reference:
    """A model on Hugging Face: a file, or the file of a quantization."""

    text: str
    repo: str
    file: str | None
    quantization: str | None

    @classmethod
    def parse(cls, text: str) -> _Reference:
        match = _HUB.fullmatch(text)
        if match is None or (not match["file"] and match["repo"].lower().endswith(".gguf")):
            raise UnknownModelError(f"{text!r} is not of the form {_FORMS}")
        return cls(text, match["repo"], match["file"], match["quantization"])

    def place(self, file: str) -> str:
        """Return where a file of the repository lies, relative to the cache folder."""
        return f"hf/{self.repo}/{file}"

    def files(self, names: Iterable[str]) -> tuple[str, ...] | None:
        """Return which of some files are meant, all parts; None if they are not there."""
        names = list(names)
        if self.file is not None:
            return parts(self.file) if whole(self.file, names) else None
        try:
            return choose(names, self.quantization)
        except DownloadError:
            return None

    def wanted(
        self,
        file: str,
        revision: str = "main",
        size: int | None = None,
        sha256: str | None = None,
    ) -> Wanted:
        """Return a file of the repository as one to fetch."""
        source = HuggingFaceSource(self.repo, file, revision)
        return Wanted(f"hf:{self.repo}/{file}", self.place(file), (source,), size, sha256)


def _from_hub(reference: _Reference, progress: Progress | None, offline: bool) -> Path:
    cache = default_cache()
    for folder in (_own_files(reference.repo, cache), hub_files(reference.repo)):
        if (files := reference.files(folder)) is not None:
            return folder[files[0]]
    if offline:
        raise _not_here(reference.text)
    if reference.file is not None:
        if parts(reference.file)[0] != reference.file:
            raise UnknownModelError(f"{reference.text}: give the first part of the model")
        wanted = [reference.wanted(file) for file in parts(reference.file)]
    else:
        wanted = _listed(reference)
    return pull_parts(wanted, cache, progress=progress)


def _listed(reference: _Reference) -> list[Wanted]:
    """Ask the hub for the files of a quantization, and what each has to be."""
    listing = list_files(reference.repo)
    try:
        names = choose(listing.files, reference.quantization)
    except DownloadError as error:
        raise DownloadError(f"{reference.repo}: {error}") from None
    found = [listing.files[name] for name in names]
    return [reference.wanted(one.name, listing.commit, one.size, one.sha256) for one in found]


def _own_files(repo: str, cache: ModelCache) -> dict[str, Path]:
    """Return the verified files of a repository that edgespec downloaded."""
    place = f"hf/{repo}/"
    files = [each.file for each in cache.records() if each.file.startswith(place)]
    return {file[len(place) :]: cache.path(file) for file in files if cache.holds(file)}


def _from_ollama(name: str) -> Path:
    path = ollama_model(name.removeprefix(_OLLAMA))
    if path is None:
        raise _unknown(name)
    return path


def _is_right(path: Path, entry: ManifestEntry) -> bool:
    """Return whether another program's file has the published bytes, where they are known."""
    if entry.sha256 is None:
        return True
    try:
        if path.stat().st_size != entry.size:
            return False
        return path.resolve().name == entry.sha256 or sha256_of(path) == entry.sha256
    except OSError:
        return False


def _pull_entry(entry: ManifestEntry, progress: Progress | None, offline: bool) -> Path:
    wanted = Wanted.of(entry)
    if offline and not wanted.bundled:
        raise _not_here(entry.name)
    return pull(wanted, default_cache(), progress=progress)


def _not_here(name: str) -> RegistryError:
    return RegistryError(f"{name} is not downloaded: run `edgespec models pull {name}` first")


def _unknown(name: str) -> UnknownModelError:
    """Say which names are like the one that was typed."""
    known = [*load_manifest().names, *(model.name for model in elsewhere())]
    found = {each.lower(): each for each in known}
    # What was typed may lack the owner's name, or have Ollama's colon.
    for each in known:
        found.setdefault(re.split("[:/]", each, maxsplit=1)[-1].lower(), each)
    typed = name.lower().replace(":", "-")
    close = [found[key] for key in difflib.get_close_matches(typed, found, n=3, cutoff=_CLOSE)]
    close = list(dict.fromkeys(close))
    hint = f"did you mean {' or '.join(close)}?" if close else "see `edgespec models list`"
    return UnknownModelError(f"unknown model {name!r}: {hint} (a file's path ends in .gguf)")


def _looks_like_path(text: str) -> bool:
    separators = {os.sep, os.altsep or os.sep, "/"}
    return bool(separators & set(text)) or text.endswith(".gguf") or _exists(Path(text))


def _at_path(path: Path) -> ResolvedModel:
    if not _exists(path):
        raise ModelFileError(f"no such file: {path}{_neighbours(path)}")
    name = os.fsencode(path.stem).decode("utf-8", "replace")  # the name of a file is any bytes
    return ResolvedModel(path, name)


def _neighbours(path: Path) -> str:
    """Say which files beside a missing one have a name like it."""
    try:
        names = [each.name for each in path.parent.glob("*.gguf")]
    except (OSError, ValueError):
        return ""
    close = [name for name in difflib.get_close_matches(path.name, names) if name.isprintable()]
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, a NUL in it
        return False


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
