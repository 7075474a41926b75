"""What speculation brings while an answer is written, over plain decoding as measured here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.control.controller import AdaptivePolicy

if TYPE_CHECKING:
    from edgespec.runtime.engine import Engine

__all__ = ["Gain"]

_ENOUGH_TOKENS = 8
"""For a speedup: fewer say nothing."""


class Gain:
    """Reads the totals of an engine's policy, which compares every cycle with its plain cost.

    Answers that take turns with this one count too.

    Args:
        engine: that writes the answer.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.begin()

    def begin(self) -> None:
        """The answer begins now."""
        self._before = self._totals()

    def plain_speed(self, tokens_per_second: float) -> float | None:
        """Tokens a second without proposals, for an answer that came at this speed.

        None if nothing is proposed, costs were not measured, or the answer is too short.
        """
        now = self._totals()
        tokens, seconds, plain_s = (a - b for a, b in zip(now, self._before, strict=True))
        return tokens_per_second * seconds / plain_s if tokens >= _ENOUGH_TOKENS else None

    def _totals(self) -> tuple[int, float, float]:
        policy = self._engine.policy
        if not isinstance(policy, AdaptivePolicy) or self._engine.decoder.k == 0:
            return 0, 0.0, 0.0
        return policy.achieved.tokens, policy.achieved.seconds, policy.achieved.plain_s
