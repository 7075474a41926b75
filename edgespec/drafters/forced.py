"""What a grammar leaves no choice about: proposed before anything else, and behind it.

Braces, quotes and names of properties are known from the schema. The drafter goes on behind them,
and what the grammar forces behind its proposals is added. The target's p decides as always; a
grammar changes what is proposed, never what is accepted.
"""

from __future__ import annotations

from typing import Protocol

from edgespec._types import Int32Array
from edgespec.control.budget import DraftBudget, best_length
from edgespec.drafters.protocol import Drafter, Proposal
from edgespec.grammars import Likely

__all__ = ["ForcedTokens", "Guiding"]

_LEAST = 0.1  # probability of a whole block below which no longer one is looked at
_WORTH = 0.5  # of one token: where proposals have no cost, and before another drafter is asked


class Guiding(Protocol):
    """A grammar along a text."""

    def expect(self, proposals: Int32Array, last: int) -> Likely | None:
        """Return what is likely behind proposals, if anything is."""

    def walk(self, proposals: Int32Array) -> int:
        """Return how many of the proposals the grammar allows."""


class ForcedTokens:
    """Proposes what a grammar makes likely, and between it what a drafter proposes.

    Args:
        guiding: of the generation.
        drafter: asked to go on.

    Attributes:
        name: of what proposed the last block.
    """

    def __init__(self, guiding: Guiding, drafter: Drafter) -> None:
        self._guiding, self._drafter = guiding, drafter
        self.name = drafter.name

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose a chain of both, as long as it is worth its cost."""
        given = self._go_on(history, length, budget, 0)
        proposal = self._drafter.extend(history, length, budget, given)
        own = proposal.size > given
        self.name = self._drafter.name if own or not given else "grammar"
        if len(proposal.q):
            return proposal
        count = proposal.size
        if own:
            count = self._guiding.walk(history[length : length + count])
            count = self._go_on(history, length, budget, count)
        if budget.fixed:
            return Proposal(count)
        return Proposal(best_length(budget._replace(limit=count), 0, count, count, 0.0, 0.0)[0])

    def _go_on(self, history: Int32Array, length: int, budget: DraftBudget, count: int) -> int:
        """Add what the grammar makes likely behind `count` proposals; how many there are then."""
        chance = 1.0
        for position in range(count):
            chance *= budget.acceptance[position]
        while count < budget.limit:
            end = length + count
            likely = self._guiding.expect(history[length:end], int(history[end - 1]))
            if likely is None or likely.probability < _WORTH:
                break
            chance *= likely.probability
            if chance < _LEAST:
                break
            budget.acceptance[count] = likely.probability
            history[end] = likely.token
            count += 1
        return count
