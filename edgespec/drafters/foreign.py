"""A model of another tokenizer family as drafter."""

from __future__ import annotations

import numpy as np

from edgespec.backend import Context, Vocabulary
from edgespec.drafters.model import draft_token
from edgespec.drafters.protocol import DETERMINISTIC, Float32Array, Int32Array, Proposal
from edgespec.drafters.retokenized import RetokenizedText
from edgespec.drafters.running import ContextDrafter
from edgespec.drafters.shared_tokens import SharedTokens
from edgespec.errors import NumericalError
from edgespec.sampling.filters import make_workspace
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.settings import DrawSettings

__all__ = ["ForeignDrafter"]


class ForeignDrafter(ContextDrafter):
    """Drafts with a GGUF model whose vocabulary is not the target's.

    The draft reads the committed text in its own tokens. What it says of tokens that both
    vocabularies have, by their bytes, becomes a row of logits in the target's ids, with -inf for
    all others; filters and draws are then those of any draft, and q is what they leave of that
    row: really the distribution of the proposal, so that verification is exact.

    Its cache holds a prefix of the committed text's tokens; what retokenizing changed is cut off.

    Args:
        context: an open context of the draft; closed with the drafter.
        target: the target's vocabulary.
        shared: the tokens that both have.
        budget: the most tokens one `propose` may be asked for.
    """

    name = "model"

    def __init__(
        self, context: Context, target: Vocabulary, shared: SharedTokens, budget: int
    ) -> None:
        self.context = context
        self._target, self._shared = target, shared
        self._text = RetokenizedText(target, context.model.vocabulary)
        self._cached: list[int] = []  # the draft's tokens in its cache
        self._draft_token = np.full(target.size, -1, np.int32)
        self._draft_token[shared.target] = shared.draft
        self._logits: Float32Array = np.full(target.size, -np.inf, np.float32)
        self._q: Float32Array = np.zeros((budget, target.size), np.float32)
        self._workspace = make_workspace(target.size, context.capacity + budget)
        self._settings: DrawSettings | None = None

    def begin(self, settings: DrawSettings) -> None:
        """Take over the target's filters."""
        self._settings = settings

    def propose(self, history: Int32Array, length: int, budget: int) -> Proposal:
        """Draw up to `budget` tokens one after the other; none inside a character.

        Raises:
            CancelledError: `cancel` was called.
            NumericalError: the draft's logits are NaN or +inf.
        """
        assert self._settings is not None, "begin was not called"
        self._follow(history, length)
        tokens = self._text.tokens
        budget = min(budget, self.context.capacity - len(tokens))
        if budget <= 0 or not tokens or not self._text.whole:
            return Proposal(0)
        pending = tokens[self.context.length :]
        for count in range(budget):
            self._evaluate(pending)
            token = draft_token(
                self._logits,
                history,
                length + count,
                self._settings,
                self._q[count],
                self._workspace,
            )
            if token < 0:
                return self._proposal(count)  # a bias forbids all that the two share
            history[length + count] = token
            pending = [int(self._draft_token[token])]
        return self._proposal(budget)

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
            raise NumericalError(
                f"the draft {self.context.model.path.name} produced NaN or infinite logits: "
                "the file may be damaged; use another --draft"
            )
        self._logits[self._shared.target] = logits[self._shared.draft]

    def _proposal(self, count: int) -> Proposal:
        assert self._settings is not None
        greedy = is_greedy(self._settings.arguments)
        return Proposal(count, DETERMINISTIC if greedy else self._q)
