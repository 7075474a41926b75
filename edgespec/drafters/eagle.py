"""An EAGLE-3 head as drafter: it continues from the target's own hidden states."""

from __future__ import annotations

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import HeadContext, RecordedInputs
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.stepping import SteppingDrafter

__all__ = ["EagleDrafter"]


class EagleDrafter(SteppingDrafter):
    """Drafts with a head that reads three layers of the target (Li et al. 2025, "EAGLE-3").

    Of the text t its cache has an entry for every token but the last: entry P is made of
    token t[P + 1] and the state at P, and gives q for position P + 2. States come from the
    target's features where the target has evaluated; behind that, while drafting, from the head's
    own previous entry. Such entries are dropped when the block has been judged, and made anew of
    the features that its verification left.

    q has mass on the head's own tokens only; what it lacks comes from the residual.

    Args:
        context: an open context of the head; closed with the drafter, like the recording.
        features: what the target's context evaluates, recorded from its first token on.
        target_vocabulary: number of the target's tokens, the width of q.
        shared_vocabulary: the first so many tokens mean the same in head and target.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    name = "eagle"
    context: HeadContext

    def __init__(
        self,
        context: HeadContext,
        features: RecordedInputs,
        target_vocabulary: int,
        shared_vocabulary: int,
        longest: int,
        stopping: DraftStopping,
    ) -> None:
        super().__init__(context, target_vocabulary, shared_vocabulary, longest, stopping)
        self._features = features
        self._settled = 0  # entries made of the target's features
        self._state: Float32Array = np.zeros((1, context.model.embedding_length), np.float32)

    def missing(self, length: int) -> int:
        """Entries that its cache lacks, but for the last."""
        return max(0, length - 2 - self.context.length)

    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """Not behind another drafter's proposals: the target has no features of them yet."""
        unread = history[self.context.length + 1 : length]
        known = int(unread.max(initial=0)) < self._width
        return known and given == 0 and 2 <= length <= self._features.length + 1

    def read(self, history: Int32Array, length: int, drafted: int) -> tuple[int, Float32Array]:
        """Make the entries that the cache lacks."""
        start = self.context.length
        tokens = history[start + 1 : length]
        states = self._state
        if drafted == 0:
            states = self.context.fuse(self._features.rows[start : length - 1])
        logits, self._state = self.context.step(tokens, states)
        if drafted == 0:
            self._settled = self.context.length
        return len(tokens), logits[: self._width]

    def rewind(self, length: int) -> None:
        """Drop what was drafted, and entries of tokens behind the first `length`."""
        self._settled = max(0, min(self._settled, length - 1))
        self.context.truncate(self._settled)

    def close(self) -> None:
        """Stop recording; close the head's context and its model."""
        self._features.close()
        super().close()
