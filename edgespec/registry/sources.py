"""Fetch a model's file from the first of its sources that has it, verified, under a lock."""

from __future__ import annotations

import errno
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ChecksumError, DownloadError, RegistryError
from edgespec.registry.cache import ModelCache, sha256_of, validator_path
from edgespec.registry.fetch import Progress, fetch_huggingface, fetch_url, silent
from edgespec.registry.fetch_wheel import fetch_wheel
from edgespec.registry.manifest import (
    BundledSource,
    HttpsSource,
    HuggingFaceSource,
    ManifestEntry,
    Source,
    WheelSource,
    models_folder,
)

__all__ = ["Wanted", "pull"]

_log = logging.getLogger("edgespec.registry")


@dataclass(frozen=True)
class Wanted:
    """A file to fetch: its name for people, its place in the cache, and what it must be."""

    name: str
    file: str
    sources: tuple[Source, ...]
    size: int | None = None
    sha256: str | None = None

    @property
    def bundled(self) -> bool:
        """Whether it needs no network."""
        return any(isinstance(source, BundledSource) for source in self.sources)

    @classmethod
    def of(cls, entry: ManifestEntry) -> Wanted:
        """Return the file of a manifest's entry."""
        return cls(entry.name, entry.file, entry.sources, entry.size, entry.sha256)


def pull(wanted: Wanted, cache: ModelCache, *, progress: Progress | None = None) -> Path:
    """Return the path of *wanted* in *cache*; fetch it if it is not there.

    Sources are tried in order. A second process that wants the same file waits for the first, and
    then finds the file in the cache. An interruption leaves a partial file that a later call
    continues, and nothing under the final name.

    Raises RegistryError if the cache folder cannot be written, DownloadError if no source gave the
    file or the disk is full, ChecksumError if every source gave other bytes.
    """
    with cache.lock(wanted.file):
        if cache.holds(wanted.file, wanted.sha256):
            return cache.path(wanted.file)
        try:
            _require_space(wanted, cache)
            return _pull_from_any(wanted, cache, progress or silent)
        except OSError as error:
            raise _disk_error(error, cache.folder) from None


def _pull_from_any(wanted: Wanted, cache: ModelCache, progress: Progress) -> Path:
    failures: list[tuple[Source, DownloadError]] = []
    for source in wanted.sources:
        try:
            sha256 = _fetch_verified(source, wanted, cache, progress)
        except DownloadError as error:
            _log.info("%s: %s failed: %s", wanted.name, source.kind, error)
            failures.append((source, error))
        else:
            return cache.adopt(wanted.file, name=wanted.name, source=source.kind, sha256=sha256)
    altered = all(isinstance(error, ChecksumError) for _, error in failures)
    reasons = "; ".join(f"{source.kind}: {_one_line(error)}" for source, error in failures)
    raise (ChecksumError if altered else DownloadError)(
        f"{wanted.name} could not be downloaded: {reasons}"
    )


def _fetch_verified(source: Source, wanted: Wanted, cache: ModelCache, progress: Progress) -> str:
    """Fetch from one source into the partial file, verify it, and return its checksum."""
    partial = cache.partial(wanted.file)
    published = _fetch(source, wanted, partial, progress)
    try:
        actual = _checked(partial, wanted.size, wanted.sha256 or published)
    except ChecksumError:
        partial.unlink()  # it would never become right
        raise
    finally:
        validator_path(partial).unlink(missing_ok=True)
    return actual


def _checked(partial: Path, size: int | None, sha256: str | None) -> str:
    """Check length and checksum against what is published, if anything; return the checksum."""
    length = partial.stat().st_size
    if size is not None and length != size:
        raise ChecksumError(f"sent {length:,} bytes, not the published {size:,}")
    actual = sha256_of(partial)
    if sha256 is not None and actual != sha256:
        raise ChecksumError(f"sha256 is {actual[:12]}..., not the published {sha256[:12]}...")
    return actual


def _fetch(source: Source, wanted: Wanted, partial: Path, progress: Progress) -> str | None:
    size = wanted.size
    if isinstance(source, HuggingFaceSource):
        return fetch_huggingface(source, partial, size=size, progress=progress)
    if isinstance(source, HttpsSource):
        fetch_url(source.url, partial, size=size, progress=progress)
    elif isinstance(source, BundledSource):
        _copy(models_folder() / wanted.file, partial)
    elif isinstance(source, WheelSource):
        # The size of what comes out of an archive has to be bounded.
        if size is None:
            raise DownloadError("a wheel needs a published size")
        fetch_wheel(source, partial, size=size, progress=progress)
    return None


def _copy(file: Path, partial: Path) -> None:
    if not file.is_file():
        raise DownloadError(f"{file.name} did not come with this installation")
    shutil.copyfile(file, partial)


def _require_space(wanted: Wanted, cache: ModelCache) -> None:
    if wanted.size is None:
        return
    partial = cache.partial(wanted.file)
    missing = wanted.size - (partial.stat().st_size if partial.exists() else 0)
    free = shutil.disk_usage(cache.folder).free
    if free < missing:
        raise DownloadError(
            f"{wanted.name} needs {missing / 1e6:.0f} MB in {cache.folder}, where "
            f"{free / 1e6:.0f} MB are free: free some, or set EDGESPEC_CACHE to another folder"
        )


def _disk_error(error: OSError, folder: Path) -> RegistryError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full:
        return DownloadError(
            f"the disk is full or a limit was reached while writing to {folder} "
            f"({error.strerror}): free some space, or set EDGESPEC_CACHE to another folder"
        )
    return RegistryError(
        f"cache folder {folder} cannot be written ({error.strerror or error}): "
        "set EDGESPEC_CACHE to one that can"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
