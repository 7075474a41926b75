"""Small models as drafters: of the target's vocabulary, or of a part of it."""

from __future__ import annotations

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.stepping import SteppingDrafter
from edgespec.gguf.draft_metadata import ReducedVocabulary

__all__ = ["ModelDrafter", "ReducedDrafter"]


class ModelDrafter(SteppingDrafter):
    """Drafts with a GGUF model whose vocabulary is the target's.

    Its cache holds the committed prefix but for the last token or, after a cycle that accepted
    everything, the last two; they are evaluated together at the next `propose`.

    Args:
        context: an open context of the draft; closed with the drafter.
        target_vocabulary: number of the target's tokens, the width of q.
        width: the first so many tokens mean the same in both; the rest is padding.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    def missing(self, length: int) -> int:
        """Tokens that its cache lacks, but for the last."""
        return length - 1 - self.context.length

    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """A padding token of the target's has no meaning in the draft: no way past it."""
        unread = history[self.context.length : length + given]
        return int(unread.max(initial=0)) < self._width

    def read(self, history: Int32Array, length: int, drafted: int) -> tuple[int, Float32Array]:
        """Evaluate what the cache lacks."""
        pending = history[self.context.length : length]
        return len(pending), self.context.evaluate(pending, 1)[0, : self._width]

    def rewind(self, length: int) -> None:
        """Roll the cache back to `length` tokens, if it holds more."""
        self.context.truncate(length)


class ReducedDrafter(SteppingDrafter):
    """Drafts with a GGUF model that has some of the target's tokens, in ids of its own.

    It reads its unknown token for the others and never proposes one of them: q is 0 there, and
    what it lacks comes from the residual.

    Args:
        context: an open context of the draft; closed with the drafter.
        target_vocabulary: number of the target's tokens, the width of q.
        reduced: which tokens of the target's it has.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    def __init__(
        self,
        context: Context,
        target_vocabulary: int,
        reduced: ReducedVocabulary,
        longest: int,
        stopping: DraftStopping,
    ) -> None:
        super().__init__(context, target_vocabulary, target_vocabulary, longest, stopping)
        self._proposed = np.flatnonzero(reduced.target_ids >= 0)
        self._target_ids = reduced.target_ids[self._proposed]
        self._draft_ids = np.full(target_vocabulary, reduced.unknown, np.int32)
        self._draft_ids[self._target_ids] = self._proposed
        self._logits: Float32Array = np.full(target_vocabulary, -np.inf, np.float32)

    def missing(self, length: int) -> int:
        """Tokens that its cache lacks, but for the last."""
        return length - 1 - self.context.length

    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """Always: whatever it does not know it reads as its unknown token."""
        return True

    def read(self, history: Int32Array, length: int, drafted: int) -> tuple[int, Float32Array]:
        """Evaluate what the cache lacks; its logits in the target's ids, -inf where it has none."""
        pending = self._draft_ids[history[self.context.length : length]]
        logits = self.context.evaluate(pending, 1)[0]
        self._logits[self._target_ids] = logits[self._proposed]
        return len(pending), self._logits

    def rewind(self, length: int) -> None:
        """Roll the cache back to `length` tokens, if it holds more."""
        self.context.truncate(length)
