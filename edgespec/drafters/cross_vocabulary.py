"""A model of another tokenizer family as drafter."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context, Vocabulary
from edgespec.control.budget import DraftBudget
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.protocol import DETERMINISTIC, Proposal
from edgespec.drafters.stepping import ContextDrafter, draft_token
from edgespec.drafters.vocabulary_bridge import RetokenizedText, SharedTokens
from edgespec.sampling.filters import make_workspace
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.settings import DrawSettings

__all__ = ["CrossVocabularyDrafter"]


class CrossVocabularyDrafter(ContextDrafter):
    """Drafts with a GGUF model whose vocabulary is not the target's.

    The draft reads the committed text in its own tokens. What it says of tokens that both
    vocabularies have, by their bytes, becomes a row of logits in the target's ids, with -inf for
    all others. Filters and draws are then those of any draft, and q is what they leave of that
    row: the distribution that really produced the proposal, so that verification is exact.

    Its cache holds a prefix of the committed text's tokens; what retokenizing changed is cut off.

    Args:
        context: an open context of the draft; closed with the drafter.
        target: the target's vocabulary.
        shared: the tokens that both have.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    name = "model"

    def __init__(
        self,
        context: Context,
        target: Vocabulary,
        shared: SharedTokens,
        longest: int,
        stopping: DraftStopping,
    ) -> None:
        self.context = context
        self.stopping = stopping
        self._target, self._shared = target, shared
        self._text = RetokenizedText(target, context.model.vocabulary)
        self._cached: list[int] = []  # the draft's tokens in its cache
        self._draft_token = np.full(target.size, -1, np.int32)
        self._draft_token[shared.target] = shared.draft
        self._logits: Float32Array = np.full(target.size, -np.inf, np.float32)
        self._q: Float32Array = np.zeros((longest, target.size), np.float32)
        self._workspace = make_workspace(target.size, context.capacity + longest)
        self._settings: DrawSettings | None = None

    def begin(self, settings: DrawSettings) -> None:
        """Take over the target's filters."""
        self._settings = settings

    def rate(self, budget: DraftBudget, length: int) -> float:
        """Return the expected tokens per second of a block begun behind `length` tokens."""
        # What it has not read is known in the target's tokens only: about as many.
        return self.stopping.rate(budget, max(0, length - 1 - self._text.length))

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Draw tokens one after the other, while that pays; none inside a character.

        Raises:
            CancelledError: `cancel` was called.
            NumericalError: the draft's logits are NaN or +inf.
        """
        return self.extend(history, length, budget, 0)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose behind `given` one-hot proposals that already stand in the history."""
        assert self._settings is not None, "begin was not called"
        if given:  # they have not been read as text
            self.stopping.begin(budget._replace(limit=given), 0, given)
            return Proposal(given)
        self._follow(history, length)
        tokens = self._text.tokens
        room = self.context.capacity - len(tokens)
        usable = bool(tokens) and self._text.whole
        limit = max(0, min(budget.limit, room)) if usable else 0
        self.stopping.begin(budget._replace(limit=limit), len(tokens) - 1 - self.context.length, 0)
        pending = tokens[self.context.length :]
        count = 0
        while self.stopping.another():
            token = self._draw(pending, history, length + count, count)
            if token < 0:
                break  # a bias forbids all that the two share
            history[length + count] = token
            count += 1
            pending = [int(self._draft_token[token])]
        greedy = is_greedy(self._settings.arguments)
        return Proposal(self.stopping.size, DETERMINISTIC if greedy else self._q)

    def _draw(self, pending: list[int], history: Int32Array, length: int, row: int) -> int:
        """Draw one token behind ``history[:length]``; leave its q in this row; -1 for none."""
        assert self._settings is not None
        started = perf_counter()
        self._evaluate(pending)
        self.stopping.timed(len(pending), perf_counter() - started)
        token, confidence = draft_token(
            self._logits, history, length, self._settings, self._q[row], self._workspace
        )
        if token >= 0:
            self.stopping.add(confidence)
        return token

    def commit(self, history: Int32Array, length: int) -> None:
        """Follow the committed text and cut the cache back to what still holds of it."""
        self._follow(history, length)

    def rewind(self, length: int) -> None:
        """Drop the text behind the first `length` tokens of the target's."""
        self._text.rewind(length)

    def _follow(self, history: Int32Array, length: int) -> None:
        self._text.rewind(length)
        self._text.follow(history, length)
        tokens = self._text.tokens
        # One token at least has to be evaluated, for its logits.
        limit = min(len(self._cached), len(tokens) - 1)
        same = min(self._text.unchanged, limit)
        while same < limit and self._cached[same] == tokens[same]:
            same += 1
        self.context.truncate(max(same, 0))
        del self._cached[self.context.length :]

    def _evaluate(self, pending: list[int]) -> None:
        """Append to the draft's cache, and write its logits in the target's ids."""
        self._cached += pending  # before the call: what it leaves in the cache is a prefix of it
        logits = self.context.evaluate(np.array(pending, np.int32), 1)[0]
        if not np.isfinite(logits.max()):
            raise self.broken()
        self._logits[self._shared.target] = logits[self._shared.draft]
