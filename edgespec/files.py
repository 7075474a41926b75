"""Where edgespec keeps what it can make or fetch again, and how a file is written in one step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

__all__ = ["cache_root", "replace_file", "replacing"]


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
