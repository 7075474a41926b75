"""Drafters: whatever proposes tokens cheaply, one file each, behind one small protocol."""

from edgespec.drafters.foreign import ForeignDrafter
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NgramDrafter
from edgespec.drafters.none import NoDrafter
from edgespec.drafters.protocol import DETERMINISTIC, Drafter, Proposal
from edgespec.drafters.shared_tokens import SharedTokens, share_tokens

__all__ = [
    "DETERMINISTIC",
    "Drafter",
    "ForeignDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "Proposal",
    "SharedTokens",
    "share_tokens",
]
