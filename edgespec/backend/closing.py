"""What native handles have in common: they are closed once, by a `with` block or by hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

__all__ = ["Closing"]

Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """A context manager that calls `close`."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held; a second call does nothing."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
