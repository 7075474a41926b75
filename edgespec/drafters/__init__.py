"""Drafters: whatever proposes tokens cheaply, behind one small protocol.

Read `protocol` first. `prompt_lookup` copies from the text (its index is `automaton`) and from
`earlier` ones; `recycle` follows what the target found likely before; `model` (EAGLE-3 heads too),
`mtp` (the target's own layers) and `cross_vocabulary` draft with a model, `medusa` with heads that
each look one token further;
`trees` lets them propose trees, which are `growing` as far as they pay; `composed` joins prompt
lookup with one of them, and adds what a grammar makes likely.
"""

import importlib
import warnings
from typing import Any

from edgespec.drafters.automaton import EarlierTexts
from edgespec.drafters.composed import ComposedDrafter, ForcedTokens
from edgespec.drafters.cross_vocabulary import CrossVocabularyDrafter, SharedTokens, share_tokens
from edgespec.drafters.medusa import MedusaDrafter
from edgespec.drafters.model import (
    EagleDrafter,
    ModelDrafter,
    MTPDrafter,
    ReducedDrafter,
    StateDrafter,
)
from edgespec.drafters.prompt_lookup import PromptLookupDrafter
from edgespec.drafters.protocol import (
    DETERMINISTIC,
    ContextDrafter,
    Drafter,
    Learned,
    NoDrafter,
    Proposal,
)
from edgespec.drafters.recycle import RecycleDrafter

__all__ = [
    "DETERMINISTIC",
    "ComposedDrafter",
    "ContextDrafter",
    "CrossVocabularyDrafter",
    "Drafter",
    "EagleDrafter",
    "EarlierTexts",
    "ForcedTokens",
    "Learned",
    "MTPDrafter",
    "MedusaDrafter",
    "ModelDrafter",
    "NoDrafter",
    "PromptLookupDrafter",
    "Proposal",
    "RecycleDrafter",
    "ReducedDrafter",
    "SharedTokens",
    "StateDrafter",
    "share_tokens",
]

_RENAMED = {
    "Allowance": ("edgespec.control.controller", "DraftBudget"),
    "ForeignDrafter": ("edgespec.drafters.cross_vocabulary", "CrossVocabularyDrafter"),
    "NgramDrafter": ("edgespec.drafters.prompt_lookup", "PromptLookupDrafter"),
    "Pace": ("edgespec.control.stopping", "DraftStopping"),
    "fixed_allowance": ("edgespec.control.controller", "fixed_budget"),
}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, new = _RENAMED[name]
    warnings.warn(f"{__name__}.{name} is now {home}.{new}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(home), new)
