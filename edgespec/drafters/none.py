"""No drafter: plain decoding through the same loop."""

from __future__ import annotations

from edgespec._types import Int32Array
from edgespec.control.budget import DraftBudget
from edgespec.drafters.protocol import Proposal
from edgespec.speculation.settings import DrawSettings

__all__ = ["NoDrafter"]


class NoDrafter:
    """Proposes nothing, so that every cycle evaluates one token."""

    name = "none"

    def begin(self, settings: DrawSettings) -> None:
        """Nothing to set up."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Always empty."""
        return Proposal(0)

    def learn(self, accepted: int, judged: int) -> None:
        """Nothing was proposed."""

    def commit(self, history: Int32Array, length: int) -> None:
        """Nothing to keep."""

    def rewind(self, length: int) -> None:
        """Nothing to drop."""

    def cancel(self) -> None:
        """Nothing to stop."""

    def resume(self) -> None:
        """Nothing was stopped."""

    def close(self) -> None:
        """Nothing to free."""
