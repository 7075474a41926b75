"""Drafters that are models: small ones, EAGLE-3 heads, and the MTP layers of a target's file."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import (
    MOST_NODES,
    Context,
    HeadContext,
    MTPContext,
    RecordedInputs,
    RecordedOutputs,
    RecordedStates,
    StateContext,
)
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.protocol import SteppingDrafter
from edgespec.drafters.trees import TreeDrafter
from edgespec.gguf.draft_metadata import ReducedVocabulary

__all__ = ["EagleDrafter", "MTPDrafter", "ModelDrafter", "ReducedDrafter", "StateDrafter"]


class ModelDrafter(TreeDrafter):
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
        """Return the tokens that its cache lacks, but for the last."""
        return length - 1 - self.context.length

    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """Refuse a padding token of the target's: it has no meaning in the draft."""
        unread = history[self.context.length : length + given]
        return int(unread.max(initial=0)) < self._width

    def read(self, history: Int32Array, length: int, drafted: int) -> tuple[int, Float32Array]:
        """Evaluate what the cache lacks."""
        pending = history[self.context.length : length]
        return len(pending), self.context.evaluate(pending, 1)[0, : self._width]

    def expand(self, base: int, tokens: Int32Array, parents: Int32Array) -> Float32Array:
        """Evaluate nodes of a tree."""
        return self.context.extend_tree(base, tokens, parents)

    def fold(self, length: int) -> None:
        """Drop the tree."""
        self.context.truncate(length)

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
        """Return the tokens that its cache lacks, but for the last."""
        return length - 1 - self.context.length

    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """Say yes: whatever it does not know it reads as its unknown token."""
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


class StateDrafter(TreeDrafter):
    """Drafts from hidden states of the target.

    Of the text t its cache has an entry for every token but the last: entry P is made of
    token t[P + 1] and the state at P, and gives q for position P + 2. States come from the
    target's features where the target has evaluated; behind that, while drafting, from the draft's
    own previous entry. Such entries are dropped when the block has been judged, and made anew of
    the features that its verification left.

    Args:
        context: an open context of the draft; closed with the drafter, like the recording.
        features: what the target's context evaluates.
        state_width: numbers of a state of the draft.
        target_vocabulary: number of the target's tokens, the width of q.
        shared_vocabulary: the first so many tokens mean the same in draft and target.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
        ids: int32, the tokens that it has logits of; None for the first `shared_vocabulary`.

    Attributes:
        features: as given.
    """

    context: StateContext

    def __init__(
        self,
        context: StateContext,
        features: RecordedStates,
        state_width: int,
        target_vocabulary: int,
        shared_vocabulary: int,
        longest: int,
        stopping: DraftStopping,
        ids: Int32Array | None = None,
    ) -> None:
        super().__init__(context, target_vocabulary, shared_vocabulary, longest, stopping, ids)
        self.features = features
        self._settled = 0  # where the entries end that are made of the target's features
        self._state: Float32Array = np.zeros((1, state_width), np.float32)
        self._states: Float32Array = np.zeros((MOST_NODES + 1, state_width), np.float32)

    @abstractmethod
    def fuse(self, features: Float32Array) -> Float32Array:
        """Return the states of tokens that the target has evaluated, float32 (n, state_width)."""

    def missing(self, length: int) -> int:
        """Return the entries that its cache lacks, but for the last."""
        return max(0, length - 2 - max(self.context.length, self.features.first))

    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """Refuse another drafter's proposals: the target has no features of them yet."""
        unread = history[self.context.length + 1 : length]
        known = int(unread.max(initial=0)) < self._width
        features = self.features
        return known and given == 0 and features.first + 2 <= length <= features.length + 1

    def read(self, history: Int32Array, length: int, drafted: int) -> tuple[int, Float32Array]:
        """Make the entries that the cache lacks."""
        if self.context.length < self.features.first:
            self.context.skip_to(self.features.first)
        start = self.context.length
        tokens = history[start + 1 : length]
        states = self._state
        if drafted == 0:
            states = self.fuse(self.features.rows[start : length - 1])
        logits, self._state = self.context.step(tokens, states)
        if drafted == 0:
            self._settled = self.context.length
        return len(tokens), logits[: self._width]

    def expand(self, base: int, tokens: Int32Array, parents: Int32Array) -> Float32Array:
        """Make entries of a tree, each of the state of the one above it."""
        before = len(parents) - len(tokens)
        self._states[-1] = self._state[0]  # where parents of -1 look
        above = self._states[parents[before:]]
        logits, states = self.context.extend_head_tree(self._settled, tokens, above, parents)
        self._states[before : len(parents)] = states
        return logits

    def fold(self, length: int) -> None:
        """Drop the tree."""
        self.context.truncate(self._settled)

    def rewind(self, length: int) -> None:
        """Drop what was drafted, and entries of tokens behind the first `length`."""
        self._settled = max(0, min(self._settled, length - 1))
        self.context.truncate(self._settled)

    def close(self) -> None:
        """Stop recording; close the draft's context and its model."""
        self.features.close()
        super().close()


class EagleDrafter(StateDrafter):
    """Drafts with a head that reads three layers of the target (Li et al. 2025, "EAGLE-3").

    q has mass on the head's own tokens only; what it lacks comes from the residual.

    Args: as of `StateDrafter`.
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
        head = context.model.header.eagle
        assert head is not None
        ids = None
        if head.target_ids is not None:
            ids = head.target_ids[head.target_ids < shared_vocabulary].astype(np.int32)
        width = context.model.embedding_length
        super().__init__(
            context, features, width, target_vocabulary, shared_vocabulary, longest, stopping, ids
        )

    def fuse(self, features: Float32Array) -> Float32Array:
        """Let the head make one state of three layers' inputs."""
        return self.context.fuse(features)


class MTPDrafter(StateDrafter):
    """Drafts with the first MTP layer, again and again.

    It was trained to predict the token behind the next one from the target's last hidden state and
    the next token's embedding. Further tokens are drafted from what it computed before.

    Args:
        context: an open context of the target's MTP layers; closed with the drafter. Their model
            is the target's, and stays open.
        features: what the target's context evaluates.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    name = "mtp"
    context: MTPContext

    def __init__(
        self,
        context: MTPContext,
        features: RecordedOutputs,
        longest: int,
        stopping: DraftStopping,
    ) -> None:
        size, width = context.model.vocabulary.size, features.rows.shape[1]
        super().__init__(context, features, width, size, size, longest, stopping)

    def fuse(self, features: Float32Array) -> Float32Array:
        """Return what the layer reads: the target's states as they are."""
        return features

    def close(self) -> None:
        """Stop recording, and close the context."""
        self.features.close()
        self.context.close()
