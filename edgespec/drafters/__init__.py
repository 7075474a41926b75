"""Drafters: whatever proposes tokens cheaply, one file each, behind one small protocol."""

from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.ngram import NgramDrafter
from edgespec.drafters.none import NoDrafter
from edgespec.drafters.protocol import DETERMINISTIC, Drafter, Proposal

__all__ = ["DETERMINISTIC", "Drafter", "ModelDrafter", "NgramDrafter", "NoDrafter", "Proposal"]
