"""Drafters made of others: prompt lookup and a model in one, and what a grammar forces around any.

Copying is free and goes first where it is good enough. What a grammar leaves no choice about
(braces, quotes and names of properties are known from the schema) is proposed before anything
else, and again behind the proposals of the other drafter. The target's p decides as always; a
grammar changes what is proposed, never what is accepted.
"""

from __future__ import annotations

from typing import Protocol

from edgespec._types import Float32Array, Int32Array
from edgespec.control.controller import DraftBudget, best_length
from edgespec.drafters.prompt_lookup import PromptLookupDrafter
from edgespec.drafters.protocol import Drafter, Learned, Proposal
from edgespec.grammars import Likely
from edgespec.speculation.acceptance import DrawSettings

__all__ = ["ComposedDrafter", "ForcedTokens", "Guiding", "RatedDrafter"]


class RatedDrafter(Drafter, Protocol):
    """A drafter that knows what it expects of itself."""

    def rate(self, budget: DraftBudget, length: int) -> float:
        """Return the expected tokens per second of a block that it begins; 0 for no proposals."""

    def grows(self, budget: DraftBudget) -> bool:
        """Whether `propose_beside` weighs what was copied against its own, branch by branch."""

    def propose_beside(
        self, history: Int32Array, length: int, budget: DraftBudget, given: int
    ) -> Proposal:
        """Propose behind the text, and beside or behind `given` copied tokens."""


class ComposedDrafter:
    """Copies where the text repeats itself, and drafts with a model elsewhere.

    Args:
        lookup: asked first; the model goes on behind its proposals where that pays.
        model: begins the block where more is expected of it.
    """

    speculates = True

    def __init__(self, lookup: PromptLookupDrafter, model: RatedDrafter) -> None:
        self.lookup, self.model = lookup, model
        self.name = model.name
        self._given = 0

    def begin(self, settings: DrawSettings) -> None:
        """Tell both."""
        self.lookup.begin(settings)
        self.model.begin(settings)

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose the better beginning, and what the model adds behind or beside it."""
        self._given = self._copied(history, length, budget)
        proposal = self.model.propose_beside(history, length, budget, self._given)
        return self._named(proposal)

    def _copied(self, history: Int32Array, length: int, budget: DraftBudget) -> int:
        """Copy if more is expected of that than of the model; how many tokens."""
        if self.model.grows(budget):
            return self.lookup.propose(history, length, budget).size
        if not budget.fixed:
            expected = self.model.rate(budget, length)
            copied = self.lookup.propose(history, length, budget).size
            reached = budget._replace(limit=copied)
            if copied and best_length(reached, 0, copied, copied, 0.0, 0.0)[1] >= expected:
                return copied
        return 0

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Copy behind what is given, and let the model go on."""
        if given == 0:
            self._given = self._copied(history, length, budget)
        else:
            self._given = self.lookup.extend(history, length, budget, given).size
        return self._named(self.model.extend(history, length, budget, self._given))

    def _named(self, proposal: Proposal) -> Proposal:
        self.name = self.model.name if proposal.size > self._given else self.lookup.name
        return proposal

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Let the model look; prompt lookup only copies."""
        self.model.observe(history, length, logits)

    def learn(self, accepted: int, judged: int) -> None:
        """Let the model learn from what it proposed."""
        self.model.learn(accepted, judged)

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Let the model learn from its tree."""
        self.model.learn_path(path, judged)

    def learned(self) -> Learned:
        """Return what each of them knows."""
        return Learned(self.lookup.learned().lookup, self.model.learned().model)

    def commit(self, history: Int32Array, length: int) -> None:
        """Tell both."""
        self.lookup.commit(history, length)
        self.model.commit(history, length)

    def rewind(self, length: int) -> None:
        """Tell both."""
        self.lookup.rewind(length)
        self.model.rewind(length)

    def cancel(self) -> None:
        """Stop the model; prompt lookup takes microseconds."""
        self.model.cancel()

    def resume(self) -> None:
        """Allow the model's proposals again."""
        self.model.resume()

    def close(self) -> None:
        """Close both."""
        self.lookup.close()
        self.model.close()


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
