"""What is measured of an answer, while it comes and afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgespec.control.achieved import SpeedupMeter
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Turn

__all__ = ["Figures", "Meter"]

_ENOUGH_TOKENS = 32
"""For a speedup: fewer say nothing."""


@dataclass(frozen=True)
class Figures:
    """An answer at a moment.

    Attributes:
        tokens: emitted.
        per_second: of decoding, prefill left out.
        speedup: over plain decoding as measured on this machine; None if that is not known.
        acceptance: share of the proposed tokens; None if none was proposed.
        used, capacity: tokens of the context.
    """

    tokens: int
    per_second: float
    speedup: float | None
    acceptance: float | None
    drafter: str
    used: int
    capacity: int

    @property
    def plain_per_second(self) -> float | None:
        """Return tokens per second that plain decoding would have reached."""
        return self.per_second / self.speedup if self.speedup else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a stored answer."""
        return {
            "tokens": self.tokens,
            "tokens_per_second": round(self.per_second, 2),
            "speedup": self.speedup and round(self.speedup, 3),
            "acceptance_rate": self.acceptance and round(self.acceptance, 4),
            "drafter": self.drafter,
            "context": self.used,
        }


class Meter:
    """Reads the figures of a turn, from any thread and at any time."""

    def __init__(self, turn: Turn, engine: Engine) -> None:
        self._stream = turn.stream
        self._engine = engine
        self._speedup = SpeedupMeter(engine.achieved, _ENOUGH_TOKENS)

    def read(self) -> Figures:
        """Return the figures now."""
        statistics = self._stream.statistics
        return Figures(
            tokens=len(self._stream.emitted),
            per_second=statistics.tokens_per_second,
            speedup=self._speedup.read(),
            acceptance=statistics.acceptance_rate,
            drafter=self._engine.drafter_name,
            used=len(self._stream.sequence),
            capacity=self._engine.context_length,
        )
