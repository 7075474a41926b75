"""Prompt lookup: propose what followed the last time the text looked like this.

The longest suffix of the text that occurred before, in the text itself or in earlier ones, is
found in a suffix automaton; the tokens that followed it are proposed, as far as matches of that
length have lately been right. Every committed token scores the prediction that was made for it, so
the credibility of a match length is known whether or not anything was proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgespec._types import Float32Array, Int32Array
from edgespec.control.controller import DraftBudget, best_length
from edgespec.drafters.automaton import (
    EarlierTexts,
    Experience,
    SuffixAutomaton,
    believe,
    credibility,
    ending,
    extend,
    follow,
    forget,
    make_automaton,
    make_experience,
    match,
    note,
    reset,
)
from edgespec.drafters.protocol import Learned, Proposal
from edgespec.sampling.kernel import kernel
from edgespec.speculation.acceptance import DrawSettings

__all__ = ["PromptLookupDrafter"]

_LEVELS = 3  # match lengths considered: the longest suffix and two suffix links below it
_LEAST = 0.02  # credibility of a whole block below which no longer one is looked at


@kernel
def _score(
    automaton: SuffixAutomaton,
    tokens: Int32Array,
    state: int,
    matched: int,
    token: int,
    experience: Experience,
) -> None:
    """Compare the predictions for this token with it."""
    for level in range(_LEVELS):
        length, end = match(automaton, state, matched, level)
        if length == 0:
            break
        note(experience, length, tokens[end + 1] == token)


@kernel
def _index(
    automaton: SuffixAutomaton, history: Int32Array, start: int, stop: int, experience: Experience
) -> None:
    """Append ``history[start:stop]``, learning from each token how credible its match was."""
    for position in range(start, stop):
        state, matched = ending(automaton)
        _score(automaton, history, state, matched, history[position], experience)
        extend(automaton, history[position], position)


@kernel
def _read(
    automaton: SuffixAutomaton,
    tokens: Int32Array,
    state: int,
    matched: int,
    history: Int32Array,
    start: int,
    stop: int,
    experience: Experience,
) -> tuple[int, int]:
    """Follow ``history[start:stop]`` through the automaton of other tokens, learning the same."""
    for position in range(start, stop):
        _score(automaton, tokens, state, matched, history[position], experience)
        state, matched = follow(automaton, state, matched, history[position])
    return state, matched


@kernel
def _find(
    automaton: SuffixAutomaton,
    state: int,
    matched: int,
    history: Int32Array,
    start: int,
    stop: int,
    experience: Experience,
) -> tuple[float, int, int]:
    """Return the most credible match behind the proposals ``history[start:stop]``.

    Returns:
        Its credibility, its length, and where it ended before; -1 if there is none.
    """
    for position in range(start, stop):
        state, matched = follow(automaton, state, matched, history[position])
    best, longest, source = 0.0, 0, -1
    for level in range(_LEVELS):
        candidate, end = match(automaton, state, matched, level)
        if candidate == 0:
            break
        credible = credibility(experience, candidate)
        if credible > best:
            best, longest, source = credible, candidate, end
    return best, longest, source


@kernel
def _copy(
    tokens: Int32Array,
    source: int,
    longest: int,
    history: Int32Array,
    length: int,
    budget: DraftBudget,
    given: int,
    least: float,
    experience: Experience,
) -> int:
    """Copy what stands behind `source` in the tokens, which may be the history itself.

    Ends where it is less credible than `least`; the rest is cut off that does not pay. Returns
    the number of proposals, the given ones among them.
    """
    credible = 1.0
    for place in range(given):
        credible *= budget.acceptance[place]
    count = given
    while count < budget.limit and source >= 0:
        # Behind the end of the text stand the proposals themselves: repetition goes on.
        token = tokens[source + 1 + count - given]
        # A match that was right once more is one token longer.
        probability = credibility(experience, longest + count - given)
        credible *= probability
        if credible < least or token < 0:
            break
        budget.acceptance[count] = probability
        history[length + count] = token
        count += 1
    if budget.fixed:
        return count
    reached = DraftBudget(count, budget.cycle_s, budget.acceptance, False, budget.spare_s)
    return best_length(reached, given, count, count, 0.0, 0.0)[0]


class _Reader:
    """Where a text stands in earlier ones."""

    def __init__(self, texts: EarlierTexts) -> None:
        self.texts = texts
        self.back()

    def back(self) -> None:
        """Stand before the text."""
        self._state = self._matched = self._length = 0

    def read(self, history: Int32Array, length: int) -> None:
        """Stand behind ``history[:length]``."""
        texts = self.texts
        self._state, self._matched = _read(
            texts.automaton,
            texts.tokens,
            self._state,
            self._matched,
            history,
            self._length,
            length,
            texts.experience,
        )
        self._length = length

    def find(self, history: Int32Array, stop: int) -> tuple[float, int, int]:
        """Return the most credible match behind ``history[:stop]``, as `_find` does."""
        return _find(
            self.texts.automaton,
            self._state,
            self._matched,
            history,
            self._length,
            stop,
            self.texts.experience,
        )


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
        self._experience = make_experience()
        self._readers: list[_Reader] = []

    def consult(self, sources: Sequence[EarlierTexts]) -> None:
        """Copy from these from now on too, and from no others; the text's own is preferred."""
        changed = [texts.settle() for texts in sources]
        known = [reader.texts for reader in self._readers]
        if any(changed) or known != list(sources):
            self._readers = [_Reader(texts) for texts in sources]

    def begin(self, settings: DrawSettings) -> None:
        """Do nothing: proposals do not depend on the filters."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose the tokens that followed an earlier occurrence of the text's end."""
        return self.extend(history, length, budget, 0)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose behind `given` proposals what followed an earlier occurrence of their end."""
        if self._indexed < length:
            self.commit(history, length)
        stop = length + given
        state, matched = ending(self._automaton)
        best = _find(self._automaton, state, matched, history, length, stop, self._experience)
        tokens, experience = history, self._experience
        for reader in self._readers:
            found = reader.find(history, stop)
            if found[0] > best[0]:
                best, tokens, experience = found, reader.texts.tokens, reader.texts.experience
        _, longest, source = best
        least = self._threshold if budget.fixed else _LEAST
        return Proposal(
            _copy(tokens, source, longest, history, length, budget, given, least, experience)
        )

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Do nothing: it copies."""

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Do nothing: it proposes chains."""

    def learn(self, accepted: int, judged: int) -> None:
        """Do nothing: `commit` learns from every token, proposed or not."""

    def commit(self, history: Int32Array, length: int) -> None:
        """Index the new tokens."""
        _index(self._automaton, history, self._indexed, length, self._experience)
        self._indexed = length
        for reader in self._readers:
            reader.read(history, length)

    def credibility(self, length: int) -> float:
        """Return the probability that a match of this length predicts the next token."""
        return float(credibility(self._experience, length))

    def learned(self) -> Learned:
        """Return recent hits and trials by match length, in the text itself."""
        hits, trials = self._experience.hits.round(3), self._experience.trials.round(3)
        return Learned(lookup={"hits": hits.tolist(), "trials": trials.tolist()})

    def trust(self, experience: Any) -> None:
        """Start new texts from what `learned` returned for earlier ones."""
        believe(self._experience, experience)

    def rewind(self, length: int) -> None:
        """Start again from nothing: an automaton cannot be cut back, and indexing is fast."""
        if length < self._indexed:
            reset(self._automaton)
            self._indexed = 0
            # It is learned again from the same text; kept, it would count twice.
            forget(self._experience)
            for reader in self._readers:
                reader.back()

    def cancel(self) -> None:
        """Do nothing: proposals take microseconds."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
