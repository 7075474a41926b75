"""Find a model's file from what the user typed: a path, a name, a reference, or nothing."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ModelFileError, RegistryError, UnknownModelError
from edgespec.registry.cache import ModelCache, default_cache
from edgespec.registry.fetch import Progress
from edgespec.registry.manifest import HuggingFaceSource, ManifestEntry, load_manifest
from edgespec.registry.sources import Wanted, pull

__all__ = ["ResolvedModel", "cached_file", "resolve"]

_HUB = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})/"
    r"(?P<file>(?:[\w][\w.+ -]*/)*[\w][\w.+ -]*\.gguf)",
    re.ASCII,
)


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
    """Find *model*'s file; download it if it has a name and is not in the cache.

    None is the manifest's default. A string is a manifest name, ``hf:OWNER/REPO/FILE.gguf``, or a
    path: anything that has a separator, ends in ``.gguf``, or exists. A cached model needs no
    network; with *offline*, the network is never used.

    Raises ModelFileError for a path without a file, UnknownModelError for an unknown name,
    RegistryError if it has to be downloaded but *offline* is set, and whatever `pull` raises.
    """
    if isinstance(model, os.PathLike):
        return _at_path(Path(model))
    manifest = load_manifest()
    entry = manifest.default if model is None else manifest.find(model)
    cache = default_cache()
    if entry is not None:
        path = _cached_or_pulled(Wanted.of(entry), cache, progress, offline)
        return ResolvedModel(path, entry.name, entry)
    assert model is not None
    if model.startswith("hf:"):
        wanted = _from_hub(model)
        return ResolvedModel(_cached_or_pulled(wanted, cache, progress, offline), model)
    if _looks_like_path(model):
        return _at_path(Path(model).expanduser())
    raise _unknown(model)


def cached_file(name: str) -> str:
    """Return the file of a manifest name or Hugging Face reference, relative to the cache folder.

    Raises UnknownModelError for any other text.
    """
    entry = load_manifest().find(name)
    if entry is not None:
        return entry.file
    if name.startswith("hf:"):
        return _from_hub(name).file
    raise _unknown(name)


def _unknown(name: str) -> UnknownModelError:
    close = difflib.get_close_matches(name.lower(), load_manifest().names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "see `edgespec models list`"
    return UnknownModelError(f"unknown model {name!r}: {hint} (a file's path ends in .gguf)")


def _cached_or_pulled(
    wanted: Wanted, cache: ModelCache, progress: Progress | None, offline: bool
) -> Path:
    if cache.holds(wanted.file, wanted.sha256):
        return cache.path(wanted.file)
    if offline and not wanted.bundled:
        raise RegistryError(
            f"{wanted.name} is not downloaded: run `edgespec models pull {wanted.name}` first"
        )
    return pull(wanted, cache, progress=progress)


def _from_hub(reference: str) -> Wanted:
    match = _HUB.fullmatch(reference)
    if match is None:
        raise UnknownModelError(f"{reference!r} is not of the form hf:OWNER/REPO/FILE.gguf")
    repo, file = match["repo"], match["file"]
    source = HuggingFaceSource(repo, file, revision="main")
    return Wanted(reference, f"hf/{repo}/{file}", (source,))


def _looks_like_path(text: str) -> bool:
    separators = {os.sep, os.altsep or os.sep, "/"}
    return bool(separators & set(text)) or text.endswith(".gguf") or _exists(Path(text))


def _at_path(path: Path) -> ResolvedModel:
    if not _exists(path):
        raise ModelFileError(f"no such file: {path}")
    name = os.fsencode(path.stem).decode("utf-8", "replace")  # the name of a file is any bytes
    return ResolvedModel(path, name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, a NUL in it
        return False
