"""What a check found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckResult", "Progress", "not_applicable", "silent"]

Progress = Callable[[str], None]
"""Called with a few words whenever a check goes on to its next part."""


def silent(words: str) -> None:
    """A `Progress` that nobody sees."""


@dataclass(frozen=True)
class CheckResult:
    """One check.

    Attributes:
        name: one word.
        holds: False if something was found that must not be. A check with nothing to do holds.
        summary: one line without a full stop: what was compared and how it went.
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
        """The object of ``edgespec verify --json``."""
        return {
            "name": self.name,
            "holds": self.holds,
            "applies": self.applies,
            "summary": self.summary,
            "details": list(self.details),
            "figures": self.figures,
        }


def not_applicable(name: str, reason: str) -> CheckResult:
    """A check that had nothing to do."""
    return CheckResult(name, holds=True, summary=reason, applies=False)
