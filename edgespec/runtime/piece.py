"""What a generation hands out while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.runtime.decoder import Origin
from edgespec.runtime.logprobs import TokenLogprobs

__all__ = ["Piece"]


@dataclass(frozen=True)
class Piece:
    """Text released by one token, and where that token came from.

    Attributes:
        text: whole characters.
        token: the one that released it.
        origin: of that token.
        logprobs: if they were asked for, of every token since the last piece.
    """

    text: str
    token: int
    origin: Origin
    logprobs: tuple[TokenLogprobs, ...] = ()
