"""The shape of a progress callback, shared by everything that fetches."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

Progress = Callable[[int, "int | None"], None]
"""Called with the bytes that are there, and how many there will be if that is known."""


def silent(done: int, total: int | None) -> None:
    """Report nothing."""
