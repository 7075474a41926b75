"""Reading no more than is bearable, and writing whole or not at all."""

from __future__ import annotations

from pathlib import Path

from edgespec import files
from edgespec.errors import EdgespecError, UsageError

__all__ = ["read_at_most", "reason", "replace_file", "write_new_file"]


def read_at_most(path: Path, most: int) -> bytes:
    """The content of a regular file of up to `most` bytes.

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


def replace_file(path: Path, data: bytes) -> None:
    """Write a file; an older one is replaced in one step.

    Raises:
        EdgespecError: it cannot be written.
    """
    try:
        files.replace_file(path.expanduser().resolve(), data, durable=True, private=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise EdgespecError(f"cannot write {path}: {reason(error)}") from None


def write_new_file(path: Path, data: bytes, *, force: bool, hint: str) -> None:
    """Write a file that is not there yet, or replace it with `force`.

    Args:
        hint: how the user can force it.

    Raises:
        UsageError: it is there.
        EdgespecError: it cannot be written.
    """
    if not force and path.expanduser().exists():
        raise UsageError(f"{path} is there already: {hint} writes over it")
    replace_file(path, data)


def reason(error: Exception) -> str:
    """What was wrong, without the file's name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
