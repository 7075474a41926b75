"""A peer: a runtime that answers conversations and reports how long decoding took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Answer", "Peer", "Setup"]

Messages = Sequence[dict[str, str]]


class Setup(NamedTuple):
    """What all peers have in common."""

    model: Path
    threads: int
    context: int


class Answer(NamedTuple):
    """A peer's answer; `decode_s` excludes the prompt, `first_token_s` starts at the question."""

    text: str
    tokens: int
    decode_s: float
    first_token_s: float

    def __add__(self, other: Any) -> Answer:  # type: ignore[override]
        return Answer(*(a + b for a, b in zip(self, other, strict=True)))


class Peer(ABC):
    """A runtime in one setting; a context manager that opens and closes it.

    Attributes:
        name: unique.
        flags: what differs from the runtime's defaults.
        version: of the runtime.
    """

    def __init__(self, setup: Setup, name: str, flags: Sequence[str], version: str) -> None:
        self.setup, self.name, self.flags, self.version = setup, name, list(flags), version

    @abstractmethod
    def __enter__(self) -> Peer:
        """Load the model."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Free it."""

    @abstractmethod
    def answer(self, messages: Messages, temperature: float, seed: int, tokens: int) -> Answer:
        """Continue a conversation; a single message begins a new one, from an empty cache."""
