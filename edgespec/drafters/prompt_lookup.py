"""Prompt lookup: propose what followed the last time the text looked like this.

The longest suffix of the text that occurred before is found in a suffix automaton; the tokens
that followed it are proposed, as far as matches of that length have lately been right. Every
committed token scores the prediction that was made for it, so the credibility of a match length
is known whether or not anything was proposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array
from edgespec.control.budget import DraftBudget, best_length
from edgespec.drafters.automaton import (
    SuffixAutomaton,
    ending,
    extend,
    follow,
    make_automaton,
    match,
    reset,
)
from edgespec.drafters.protocol import Learned, Proposal
from edgespec.sampling.kernel import kernel
from edgespec.speculation.settings import DrawSettings

__all__ = ["PromptLookupDrafter"]

_LEVELS = 3  # match lengths considered: the longest suffix and two suffix links below it
_LENGTHS = 17  # match lengths told apart; longer ones count as the last
_PRIOR = 4.0  # weight of the prior, in observations
_LEAST = 0.02  # credibility of a whole block below which no longer one is looked at
_DECAY = 0.98  # of past observations, at each new one of the same length


@kernel
def _score(
    automaton: SuffixAutomaton,
    history: Int32Array,
    token: int,
    hits: Float64Array,
    trials: Float64Array,
) -> None:
    """Compare the predictions for this token with it."""
    state, matched = ending(automaton)
    for level in range(_LEVELS):
        length, end = match(automaton, state, matched, level)
        if length == 0:
            break
        index = min(length, _LENGTHS - 1)
        trials[index] = trials[index] * _DECAY + 1.0
        hits[index] = hits[index] * _DECAY + (history[end + 1] == token)


@kernel
def _index(
    automaton: SuffixAutomaton,
    history: Int32Array,
    start: int,
    stop: int,
    hits: Float64Array,
    trials: Float64Array,
) -> None:
    """Append ``history[start:stop]``, learning from each token how credible its match was."""
    for position in range(start, stop):
        _score(automaton, history, history[position], hits, trials)
        extend(automaton, history[position], position)


@kernel
def _credibility(
    length: int, prior: Float64Array, hits: Float64Array, trials: Float64Array
) -> float:
    """Posterior mean that a match of this length predicts the next token."""
    index = min(length, _LENGTHS - 1)
    return float((hits[index] + _PRIOR * prior[index]) / (trials[index] + _PRIOR))


@kernel
def _propose(
    automaton: SuffixAutomaton,
    history: Int32Array,
    length: int,
    budget: DraftBudget,
    given: int,
    least: float,
    prior: Float64Array,
    hits: Float64Array,
    trials: Float64Array,
) -> int:
    """Copy the continuation of the most credible match behind the text and `given` proposals.

    Ends where it is less credible than `least`; the rest is cut off that does not pay. Returns
    the number of proposals, the given ones among them.
    """
    state, matched = ending(automaton)
    credible = 1.0
    for place in range(given):
        state, matched = follow(automaton, state, matched, history[length + place])
        credible *= budget.acceptance[place]
    best, longest, source = 0.0, 0, -1
    for level in range(_LEVELS):
        candidate, end = match(automaton, state, matched, level)
        if candidate == 0:
            break
        credibility = _credibility(candidate, prior, hits, trials)
        if credibility > best:
            best, longest, source = credibility, candidate, end
    count = given
    while count < budget.limit and source >= 0:
        # A match that was right once more is one token longer.
        probability = _credibility(longest + count - given, prior, hits, trials)
        credible *= probability
        if credible < least:
            break
        budget.acceptance[count] = probability
        # Behind the end of the text stand the proposals themselves: repetition goes on.
        history[length + count] = history[source + 1 + count - given]
        count += 1
    if budget.fixed:
        return count
    reached = DraftBudget(count, budget.cycle_s, budget.acceptance, False, budget.spare_s)
    return best_length(reached, given, count, count, 0.0, 0.0)[0]


class PromptLookupDrafter:
    """Proposes continuations of repeated text; deterministic, without a model.

    Args:
        capacity: the longest history it will see, in tokens.
        threshold: when the number of proposals is fixed, propose a token only while the
            probability that it is accepted together with all before it is estimated at least
            this high. Otherwise costs decide.
    """

    name = "ngram"
    speculates = True

    def __init__(self, capacity: int, threshold: float = 0.6) -> None:
        self._automaton: SuffixAutomaton = make_automaton(capacity)
        self._threshold = threshold
        self._indexed = 0
        self._hits: Float64Array = np.zeros(_LENGTHS, np.float64)
        self._trials: Float64Array = np.zeros(_LENGTHS, np.float64)
        # A match of two tokens is right half the time, until experience says otherwise.
        length = np.arange(_LENGTHS, dtype=np.float64)
        self._prior: Float64Array = length / (length + 2.0)

    def begin(self, settings: DrawSettings) -> None:
        """Do nothing: proposals do not depend on the filters."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose the tokens that followed an earlier occurrence of the text's end."""
        return self.extend(history, length, budget, 0)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose behind `given` proposals what followed an earlier occurrence of their end."""
        if self._indexed < length:
            self.commit(history, length)
        least = self._threshold if budget.fixed else _LEAST
        count = _propose(
            self._automaton,
            history,
            length,
            budget,
            given,
            least,
            self._prior,
            self._hits,
            self._trials,
        )
        return Proposal(count)

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Do nothing: it copies."""

    def learn(self, accepted: int, judged: int) -> None:
        """Do nothing: `commit` learns from every token, proposed or not."""

    def commit(self, history: Int32Array, length: int) -> None:
        """Index the new tokens."""
        _index(self._automaton, history, self._indexed, length, self._hits, self._trials)
        self._indexed = length

    def credibility(self, length: int) -> float:
        """Return the probability that a match of this length predicts the next token."""
        return float(_credibility(length, self._prior, self._hits, self._trials))

    def learned(self) -> Learned:
        """Return recent hits and trials by match length."""
        hits, trials = self._hits.round(3).tolist(), self._trials.round(3).tolist()
        return Learned(lookup={"hits": hits, "trials": trials})

    def trust(self, experience: Any) -> None:
        """Start new texts from what `learned` returned for earlier ones."""
        try:
            hits = np.array(experience["hits"], np.float64)
            trials = np.array(experience["trials"], np.float64)
        except (KeyError, TypeError, ValueError):
            return
        sane = hits.shape == trials.shape == self._prior.shape
        if sane and bool((hits >= 0).all() and (hits <= trials).all() and trials.max() < 1e9):
            self._prior = (hits + _PRIOR * self._prior) / (trials + _PRIOR)

    def rewind(self, length: int) -> None:
        """Start again from nothing: an automaton cannot be cut back, and indexing is fast."""
        if length < self._indexed:
            reset(self._automaton)
            self._indexed = 0
            # They are learned again from the same text; kept, it would count twice.
            self._hits[:] = 0
            self._trials[:] = 0

    def cancel(self) -> None:
        """Do nothing: proposals take microseconds."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
