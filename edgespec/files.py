"""Files: where edgespec keeps its own, how one is read up to a limit, and written in one step."""

from __future__ import annotations

import codecs
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from edgespec.errors import EdgespecError, UsageError

__all__ = [
    "cache_root",
    "decode_text",
    "read_at_most",
    "read_text",
    "reason",
    "replace_file",
    "replacing",
    "write_new_file",
    "write_user_file",
]


def cache_root() -> Path:
    """Return the folder that ``EDGESPEC_CACHE`` names, or the platform's cache folder."""
    named = os.environ.get("EDGESPEC_CACHE")
    return Path(named).expanduser() if named else user_cache_path("edgespec")


@contextmanager
def replacing(
    path: Path, *, durable: bool = False, private: bool = False, alone: bool = False
) -> Iterator[Path]:
    """Yield an empty file to fill; it takes the place of `path` if the block ends without an error.

    Readers see the old content or the new one, never a part.

    Args:
        path: in a folder that is there.
        durable: wait until the disk has the content, so that it survives a power cut too.
        private: readable for the user only.
        alone: no other process writes this file at the same time: a leftover of a process that
            was killed is then written over.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
    """
    unique = "partial" if alone else f"{secrets.token_hex(4)}.new"
    draft = path.with_name(f"{path.name}.{unique}")
    try:
        draft.touch(0o600 if private else 0o666, exist_ok=alone)
        yield draft
        if durable:
            with draft.open("rb+") as file:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def replace_file(
    path: Path, data: bytes, *, durable: bool = False, private: bool = False, alone: bool = False
) -> None:
    """Write a file in one step; arguments and errors as for `replacing`."""
    with replacing(path, durable=durable, private=private, alone=alone) as draft:
        draft.write_bytes(data)


def read_at_most(path: Path, most: int) -> bytes:
    """Return the content of a regular file of up to `most` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, or longer.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        raise ValueError(f"it has more than {size}")
    return data


def decode_text(data: bytes) -> str:
    """Return the text of a file: UTF-8, or UTF-16 that says so by its byte-order mark.

    Raises:
        ValueError: it is neither, in words that follow the file's name.
    """
    try:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16")
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        form = "UTF-16" if error.encoding.startswith("utf-16") else "UTF-8"
        raise ValueError(f"is not {form} ({wrong}): convert it first") from None


def read_text(path: Path, most: int, over: str) -> str:
    """Return the text of a file that the user named.

    Args:
        most: bytes that it may have.
        over: what to say of a longer one, behind its name.

    Raises:
        UsageError: it cannot be read, is longer, or is no text.
    """
    try:
        data = read_at_most(path, most)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from None
    except ValueError as error:
        raise UsageError(f"{path} {over}: {error}") from None
    try:
        text = decode_text(data)
    except ValueError as error:
        raise UsageError(f"{path} {error}") from None
    if "\0" in text:
        raise UsageError(f"{path} is not text: it has zero bytes")
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text


def write_new_file(path: Path, data: bytes, *, force: bool, hint: str) -> None:
    """Write a file that the user named, over another one only with `force`.

    Args:
        hint: how the user can force it.

    Raises:
        UsageError: there is such a file.
        EdgespecError: it cannot be written.
    """
    if not force and path.expanduser().exists():
        raise UsageError(f"{path} is there already: {hint} writes over it")
    write_user_file(path, data)


def write_user_file(path: Path, data: bytes) -> None:
    """Write a file that the user named, in one step, over another one too.

    Raises:
        EdgespecError: it cannot be written.
    """
    try:
        replace_file(path.expanduser().resolve(), data, durable=True, private=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise EdgespecError(f"cannot write {path}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Return what was wrong, without the file's name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
