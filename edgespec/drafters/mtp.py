"""Drafts with the layers for multi-token prediction (MTP) that a target's own file carries."""

from __future__ import annotations

from edgespec._types import Float32Array
from edgespec.backend import MTPContext, RecordedOutputs
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.model import StateDrafter

__all__ = ["MTPDrafter"]


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
