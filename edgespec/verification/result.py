"""The result of a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckResult", "Progress", "not_applicable", "silent"]

Progress = Callable[[str], None]
"""Called with a few words whenever a check begins its next part."""


def silent(words: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: one word.
        holds: False if the check failed. A check with nothing to do holds.
        summary: one line without a full stop: what was compared, and the outcome.
        figures: everything measured; goes into JSON as it is.
        details: further lines for a reader: what failed, and where.
        applies: False if there was nothing to check, for the reason in `summary`.
    """

    name: str
    holds: bool
    summary: str
    figures: dict[str, Any] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    applies: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the object of ``edgespec verify --json``."""
        return {
            "name": self.name,
            "holds": self.holds,
            "applies": self.applies,
            "summary": self.summary,
            "details": list(self.details),
            "figures": self.figures,
        }


def not_applicable(name: str, reason: str) -> CheckResult:
    """Return the result of a check that had nothing to do."""
    return CheckResult(name, holds=True, summary=reason, applies=False)
