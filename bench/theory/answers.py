"""What one side did with one task, cycle by cycle."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.control.controller import CycleTiming

__all__ = ["Answer", "Cycle", "Turn"]


class Cycle(namedtuple("Cycle", (*CycleTiming._fields, "drafted"), defaults=(False,))):
    """A `CycleTiming`, and whether a draft model made a proposal in it."""

    __slots__ = ()


@dataclass(frozen=True)
class Turn:
    """The answer to one message.

    Attributes:
        reused: tokens of the prompt that the cache held already.
        tokens: of the answer, an end token included. What a block emitted after the end token is
            dropped and does not count.
        seconds: from the end of the prompt to the last piece of text.
        cycles: in their order.
    """

    reused: int
    tokens: int
    seconds: float
    cycles: tuple[Cycle, ...]

    def kept(self) -> Iterator[tuple[Cycle, int]]:
        """Yield every cycle with how many of its tokens the answer has."""
        left = self.tokens
        for cycle in self.cycles:
            count = min(cycle.emitted, left)
            left -= count
            yield cycle, count


@dataclass(frozen=True)
class Answer:
    """All turns of a task.

    Attributes:
        digest: of the tokens, to compare texts.
    """

    turns: tuple[Turn, ...]
    digest: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def seconds(self) -> float:
        """Seconds of decoding."""
        return sum(turn.seconds for turn in self.turns)

    @property
    def cycles(self) -> list[Cycle]:
        """Cycles of all turns."""
        return [cycle for turn in self.turns for cycle in turn.cycles]

    def as_json(self) -> dict[str, Any]:
        """Return cycles as lists of their fields, in the order of `Cycle`."""
        turns = [{**vars(turn), "cycles": [list(c) for c in turn.cycles]} for turn in self.turns]
        return {"digest": self.digest, "turns": turns}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Answer:
        """Make an answer from `as_json`."""
        return cls(tuple(_turn(**turn) for turn in data["turns"]), data["digest"])


def _turn(reused: int, tokens: int, seconds: float, cycles: Sequence[Sequence[Any]]) -> Turn:
    return Turn(reused, tokens, seconds, tuple(Cycle(*cycle) for cycle in cycles))
