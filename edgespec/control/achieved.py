"""What decoding really took, beside what plain decoding would have taken."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Achieved", "SpeedupMeter"]

_LONGEST = 64


@dataclass
class Achieved:
    """Totals over all cycles whose costs were known.

    Attributes:
        tokens: emitted.
        seconds: of drafting and verifying.
        plain_s: seconds that as many single tokens would have taken.
        sizes: tokens of an evaluation -> cycles.
    """

    tokens: int = 0
    seconds: float = 0.0
    plain_s: float = 0.0
    sizes: Counter[int] = field(default_factory=Counter)

    @property
    def cycles(self) -> int:
        """How many there were."""
        return sum(self.sizes.values())

    @property
    def speedup(self) -> float:
        """Return the speedup over plain decoding; 1 before anything was decoded."""
        return self.plain_s / self.seconds if self.seconds > 0 else 1.0

    def add(self, evaluated: int, emitted: int, seconds: float, plain_s: float) -> None:
        """Add a cycle."""
        self.tokens += emitted
        self.seconds += seconds
        self.plain_s += plain_s
        self.sizes[evaluated] += 1

    def __add__(self, other: Achieved) -> Achieved:
        return Achieved(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.plain_s + other.plain_s,
            self.sizes + other.sizes,
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for `from_json`."""
        sizes = {str(n): count for n, count in sorted(self.sizes.items())}
        return {**vars(self), "sizes": sizes}

    @classmethod
    def from_json(cls, data: Any) -> Achieved:
        """Read it from `as_json`; anything else counts as nothing achieved."""
        if not isinstance(data, Mapping):
            return cls()
        try:
            sizes = Counter({int(n): int(count) for n, count in data["sizes"].items()})
            read = cls(int(data["tokens"]), float(data["seconds"]), float(data["plain_s"]), sizes)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return cls()
        known = all(1 <= n <= _LONGEST and count > 0 for n, count in sizes.items())
        sane = read.tokens > 0 and all(
            math.isfinite(seconds) and seconds > 0 for seconds in (read.seconds, read.plain_s)
        )
        return read if known and sane else cls()


class SpeedupMeter:
    """The speedup over plain decoding since a moment, while an answer is written.

    Plain decoding is not run beside it: what it would have taken comes from the costs that were
    measured on this machine, corrected with every evaluation. Answers that take turns count too.

    Args:
        achieved: totals that go on growing; None where nothing is proposed.
        enough: tokens; fewer say nothing of a speedup.
    """

    def __init__(self, achieved: Achieved | None, enough: int) -> None:
        self._achieved, self._enough = achieved or Achieved(), enough
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._before = self._totals()

    def read(self) -> float | None:
        """The speedup; None while it is not known."""
        now = self._totals()
        tokens, seconds, plain_s = (a - b for a, b in zip(now, self._before, strict=True))
        return plain_s / seconds if tokens >= self._enough and seconds > 0 else None

    def _totals(self) -> tuple[int, float, float]:
        return self._achieved.tokens, self._achieved.seconds, self._achieved.plain_s
