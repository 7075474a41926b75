"""The type of progress callbacks of all downloads."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[int, "int | None"], None]
"""Called with the number of bytes so far, and the total if it is known."""


def silent(done: int, total: int | None) -> None:
    """Report nothing."""
