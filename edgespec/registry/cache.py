"""The cache folder: downloaded model files, each with a record of its checksum.

Beside ``NAME`` lies ``NAME.record.json`` with its sha256, and its size and modification time when
that was computed, so that later starts need not hash it again. ``NAME.partial`` is an unfinished
download; ``NAME.lock`` keeps two processes from fetching the same file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from edgespec.errors import RegistryError
from edgespec.files import cache_root, read_at_most, replace_file

__all__ = ["ModelCache", "Record", "default_cache", "sha256_of", "validator_path"]

_log = logging.getLogger("edgespec.registry")
_RECORD = ".record.json"
_CHUNK = 1 << 20
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Record:
    """What was known about a cached file when it was last hashed."""

    name: str
    file: str
    source: str
    sha256: str
    size: int
    mtime_ns: int


def default_cache() -> ModelCache:
    """Return the user's cache; the environment variable EDGESPEC_CACHE replaces its folder."""
    return ModelCache(cache_root() / "models")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal. Raises OSError if it is unreadable."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class ModelCache:
    """A folder of verified model files. *file* is always a path relative to that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, file: str) -> Path:
        """Return where *file* is, or would be."""
        return self.folder / file

    def partial(self, file: str) -> Path:
        """Return where an unfinished download of *file* is kept."""
        return self.folder / f"{file}.partial"

    def record(self, file: str) -> Record | None:
        """Return the record of a file; None if there is no file or no readable record."""
        if not self.path(file).is_file():
            return None
        path = self._record_path(file)
        try:
            return Record(**json.loads(read_at_most(path, _MOST_BYTES)))
        except OSError:
            return None
        except (ValueError, TypeError, RecursionError):
            _log.warning("%s is damaged: it is not used", path)
            return None

    def records(self) -> list[Record]:
        """Return the records of all files that this registry fetched and that still exist."""
        names = sorted(self.folder.rglob("*" + _RECORD)) if self.folder.is_dir() else []
        files = [path.relative_to(self.folder).as_posix()[: -len(_RECORD)] for path in names]
        return [record for file in files if (record := self.record(file))]

    def holds(self, file: str, sha256: str | None = None) -> bool:
        """Return whether *file* exists with the bytes it should have.

        *sha256* is the published checksum; without it, the recorded one counts. A file whose size
        and modification time are as recorded is not hashed again.

        Raises RegistryError if it exists and cannot be read.
        """
        path = self.path(file)
        record = self.record(file)
        expected = sha256 or (record.sha256 if record else None)
        if expected is None or not path.is_file():
            return False
        status = path.stat()
        if record and record.sha256 == expected and _unchanged(record, status):
            return True
        try:
            actual = sha256_of(path)
        except OSError as error:
            raise RegistryError(f"{path}: cannot be read: {error.strerror}") from None
        if actual != expected:
            _log.warning("%s was altered: its checksum is not the published one", path)
            return False
        name, source = (record.name, record.source) if record else (file, "found in the cache")
        # If the folder cannot be written, the file is hashed at every start; nothing else.
        with suppress(OSError):
            self._write(Record(name, file, source, actual, status.st_size, status.st_mtime_ns))
        return True

    def adopt(self, file: str, *, name: str, source: str, sha256: str) -> Path:
        """Give the verified partial download of *file* its final name.

        Raises OSError when the folder cannot be written.
        """
        partial, path = self.partial(file), self.path(file)
        _sync(partial)
        status = partial.stat()
        # The record comes first, so that a file with its final name always has one.
        self._write(Record(name, file, source, sha256, status.st_size, status.st_mtime_ns))
        partial.replace(path)
        return path

    def remove(self, file: str) -> int:
        """Delete a file that this registry fetched, and its record; return the bytes freed.

        Raises RegistryError if it does not exist, was not put there by this registry, is being
        fetched, or cannot be deleted.
        """
        path, partial = self.path(file), self.partial(file)
        if path.exists() and self.record(file) is None:
            raise RegistryError(f"{path} was not put there by edgespec: delete it yourself")
        if not path.exists() and not partial.exists():
            raise RegistryError(f"{file} is not downloaded: there is nothing to remove")
        with self.lock(file, wait=False):
            freed = 0
            for victim in (path, partial, validator_path(partial), self._record_path(file)):
                if victim.is_file():
                    freed += victim.stat().st_size
                    self._unlink(victim)
        return freed

    @contextmanager
    def lock(self, file: str, *, wait: bool = True) -> Iterator[None]:
        """Hold *file*'s lock, creating its folder; with *wait*, wait for another process.

        Raises RegistryError if the folder cannot be written or, without *wait*, if another process
        holds the lock.
        """
        path = self.path(file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            guard = FileLock(f"{path}.lock")
            try:
                guard.acquire(timeout=0)
            except Timeout:
                if not wait:
                    raise RegistryError(f"{file} is being fetched by another process") from None
                _log.warning("waiting for another process that is fetching %s", file)
                guard.acquire()
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise RegistryError(
                f"cache folder {self.folder} cannot be written ({reason}): "
                "set EDGESPEC_CACHE to one that can"
            ) from None
        try:
            yield
        finally:
            guard.release()

    def _record_path(self, file: str) -> Path:
        return self.folder / (file + _RECORD)

    def _write(self, record: Record) -> None:
        path = self._record_path(record.file)
        replace_file(path, (json.dumps(asdict(record), indent=1) + "\n").encode())

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink()
        except OSError as error:
            raise RegistryError(f"{path} cannot be deleted: {error.strerror}") from None


def validator_path(partial: Path) -> Path:
    """Return where the validator of a partial download is kept."""
    return partial.with_name(partial.name + ".validator")


def _unchanged(record: Record, status: os.stat_result) -> bool:
    return (record.size, record.mtime_ns) == (status.st_size, status.st_mtime_ns)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
