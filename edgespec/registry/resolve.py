"""Find a model's file from what the user typed: a path, a name, a reference, or nothing."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import DownloadError, ModelFileError, RegistryError, UnknownModelError
from edgespec.registry.cache import ModelCache, default_cache, sha256_of
from edgespec.registry.elsewhere import elsewhere, hub_files, ollama_model
from edgespec.registry.fetch import FILE, REPOSITORY, Progress, choose, list_files, parts, whole
from edgespec.registry.manifest import HuggingFaceSource, ManifestEntry, load_manifest
from edgespec.registry.sources import Wanted, pull, pull_parts

__all__ = ["ResolvedModel", "cached_files", "present", "resolve"]

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
