"""The decoding loop on a known text: what a drafter would propose, and what would be accepted.

Prompt lookup is the real `PromptLookupDrafter`, run over the recorded tokens; a draft model is what
is known of its agreement with the text, position by position, under the real `DraftStopping`.
Greedy and coupled text is the same for every policy, so that this is exact. Under the rejection
rule it is one of the possible texts: a proposal of prompt lookup is accepted as often as it is the
target's own draw, which is as often as it is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.replay.recorded import Costs, Generation
from edgespec.control.controller import CycleTiming, DraftBudget, Policy
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import Drafter, Proposal
from edgespec.speculation.acceptance import DrawSettings

__all__ = ["KnownDraft", "Outcome", "ReplayedDraft", "replay"]

_UNBOUNDED = 2**31
_WRONG = -1  # no token of any text
_FEW = 2  # tokens that a draft reads in one step's time


@dataclass(frozen=True)
class KnownDraft:
    """What is known of a draft model over one text.

    Attributes:
        right: bool (n,), whether it would propose the text's token at this position.
        sure: float64 (n,), its confidence there.
        known: share of the answer's positions where both were recorded, not guessed.
        step_s, reading_s: seconds of drafting a token, of reading one.
        learned: what its `DraftStopping` had learned at the start, or None.
    """

    right: np.ndarray
    sure: np.ndarray
    known: float
    step_s: float
    reading_s: float
    learned: dict[str, Any] | None


class ReplayedDraft:
    """A draft model whose agreement with the text is all that is known."""

    name = "model"
    speculates = True

    def __init__(self, draft: KnownDraft, text: np.ndarray, most: int) -> None:
        self.stopping = DraftStopping(draft.step_s, draft.reading_s, most)
        self.stopping.restore(draft.learned)
        self.spent_s = 0.0
        self._draft, self._text, self._cached = draft, text, 0

    def rate(self, budget: DraftBudget, length: int) -> float:
        return self.stopping.rate(budget, length - 1 - self._cached)

    def propose(self, history: np.ndarray, length: int, budget: DraftBudget) -> Proposal:
        return self.extend(history, length, budget, 0)

    def extend(self, history: np.ndarray, length: int, budget: DraftBudget, given: int) -> Proposal:
        self.stopping.begin(budget, length - 1 - self._cached, given)
        end, stop = len(self._text), length + given
        right = bool(np.array_equal(history[length:stop], self._text[length:stop]))
        position = stop
        while self.stopping.another():
            self._read(position)
            # After a mistake, and after the end, it continues a text of its own.
            here = min(position, end - 1)
            self.stopping.add(float(self._draft.sure[here]))
            right = right and position < end and bool(self._draft.right[here])
            history[position] = self._text[here] if right else _WRONG
            position += 1
        return Proposal(self.stopping.size)

    def _read(self, length: int) -> None:
        missing, self._cached = length - self._cached, length
        reading_s = self._draft.reading_s * missing if missing > _FEW else 0.0
        seconds = max(self._draft.step_s, reading_s)
        self.spent_s += seconds
        self.stopping.timed(missing, seconds)

    def learn(self, accepted: int, judged: int) -> None:
        self.stopping.learn(accepted, judged)

    def commit(self, history: np.ndarray, length: int) -> None:
        self._cached = min(self._cached, length - 1)

    def begin(self, settings: DrawSettings) -> None: ...

    def rewind(self, length: int) -> None: ...

    def cancel(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Outcome:
    """What a policy did with a generation, and how long it would have taken."""

    tokens: int = 0
    seconds: float = 0.0
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


def replay(
    generation: Generation, costs: Costs, policy: Policy, drafter: Drafter, k: int
) -> Outcome:
    """Run the cycles of `edgespec.runtime.decoder` with recorded costs in place of evaluations.

    Args:
        generation: every cycle's proposals are compared with its text.
        policy, drafter: in their initial state.
        k: the most proposals of a cycle.
    """
    start, text = generation.start, generation.text
    end, length = len(text), len(start["prompt"])
    most, context = start["max_tokens"] or _UNBOUNDED, start["context"]
    history = np.zeros(end + k + 1, np.int32)
    history[:length] = text[:length]
    outcome, last = Outcome(tokens=generation.kept), 1
    goal = length + generation.kept
    while length < goal:
        emitted = length - len(start["prompt"])
        limit = max(0, min(k, most - emitted - 1, context - length - 1))
        budget = policy.budget(length - 1, limit)
        before_s = _model_s(drafter)
        count = drafter.propose(history, length, budget).size
        draft_s = _model_s(drafter) - before_s
        if drafter.speculates:
            draft_s += costs.lookup_s
        verify_s = costs.evaluation_s(length - 1, count + 1, last)
        # The last token is the target's own, also where it was proposed.
        accepted = min(_matching(history, text, length, count), end - length - 1)
        drafter.learn(accepted, count)
        after = min(length + accepted + 1, end)
        history[length:after] = text[length:after]
        drafter.commit(history, after)
        policy.observe(CycleTiming(length - 1, count + 1, count, accepted + 1, draft_s, verify_s))
        outcome.seconds += draft_s + verify_s + costs.token_s * (accepted + 1)
        outcome.proposed.append(count)
        outcome.accepted.append(accepted)
        length, last = after, count + 1
    return outcome


def _model_s(drafter: Drafter) -> float:
    """Return the seconds that its draft model, if it has one, has taken."""
    return getattr(getattr(drafter, "model", drafter), "spent_s", 0.0)


def _matching(history: np.ndarray, text: np.ndarray, length: int, count: int) -> int:
    """Return how many proposals in a row, from the first, are the text's tokens."""
    known = min(count, len(text) - length)
    wrong = np.flatnonzero(history[length : length + known] != text[length : length + known])
    return int(wrong[0]) if len(wrong) else known
