"""What a peer is: a runtime that answers conversations and says how long decoding took."""

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
    """What a peer said; `decode_s` without the prompt, `first_token_s` from the question on."""

    text: str
    tokens: int
    decode_s: float
    first_token_s: float

    def __add__(self, other: Any) -> Answer:  # type: ignore[override]
        return Answer(*(a + b for a, b in zip(self, other, strict=True)))


class Peer(ABC):
    """A runtime in one setting; a context manager that opens and closes it.

    Attributes:
        name: unlike those of the others.
        flags: that make it different from the runtime's defaults.
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
        """Go on with a conversation; one message only begins a new one, from an empty cache."""
