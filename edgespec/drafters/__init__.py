"""Drafters: whatever proposes tokens cheaply, one file each, behind one small protocol."""

from edgespec.control.budget import Allowance, fixed_allowance
from edgespec.control.stopping import Pace
from edgespec.drafters.composed import ComposedDrafter
from edgespec.drafters.eagle import EagleDrafter
from edgespec.drafters.foreign import ForeignDrafter
from edgespec.drafters.model import ModelDrafter, ReducedDrafter
from edgespec.drafters.ngram import NgramDrafter
from edgespec.drafters.none import NoDrafter
from edgespec.drafters.protocol import DETERMINISTIC, Drafter, Proposal
from edgespec.drafters.running import ContextDrafter
from edgespec.drafters.shared_tokens import SharedTokens, share_tokens

__all__ = [
    "DETERMINISTIC",
    "Allowance",
    "ComposedDrafter",
    "ContextDrafter",
    "Drafter",
    "EagleDrafter",
    "ForeignDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "Pace",
    "Proposal",
    "ReducedDrafter",
    "SharedTokens",
    "fixed_allowance",
    "share_tokens",
]
