"""The drafter that fits a loaded draft: by its vocabulary, or because it is an EAGLE-3 head."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from edgespec.backend import (
    Context,
    ContextOptions,
    HeadContext,
    Model,
    RecordedInputs,
    can_tap,
    capabilities,
)
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import (
    CrossVocabularyDrafter,
    EagleDrafter,
    ModelDrafter,
    ReducedDrafter,
    SharedTokens,
)
from edgespec.errors import PairingError
from edgespec.gguf.header import GGUFHeader
from edgespec.registry.pairing import Pairing, check_pairing
from edgespec.tuning.drafting import HEAD_BATCH, measure_draft, measure_head

__all__ = ["HEAD_BATCH", "AnyModelDrafter", "draft_with", "pair", "why_no_heads"]

AnyModelDrafter = ModelDrafter | ReducedDrafter | CrossVocabularyDrafter | EagleDrafter


def pair(target: GGUFHeader, draft: GGUFHeader) -> Pairing:
    """As `check_pairing`, and an EAGLE-3 head must find its target's hidden states.

    Raises:
        PairingError: the draft does not fit.
    """
    pairing = check_pairing(target, draft)
    if draft.eagle and not can_tap(target.architecture):
        raise PairingError(
            "the EAGLE-3 head does not fit: llama.cpp hands out no hidden states of "
            f"{target.architecture} models"
        )
    return pairing


def why_no_heads() -> str | None:
    """Why this build cannot run EAGLE-3 heads, if so."""
    if capabilities().eagle:
        return None
    return (
        "this build of llama.cpp gives no access to hidden states, so that the EAGLE-3 head "
        "cannot be used: drafting by prompt lookup; install llama-cpp-python 0.3.36 or newer"
    )


def draft_with(
    model: Model,
    target: Context,
    found: Pairing | SharedTokens,
    options: ContextOptions,
    longest: int,
) -> AnyModelDrafter:
    """Open a context of the draft, measure it, and make the drafter, which owns both.

    Args:
        model: the draft's; left open if this fails.
        target: an open context.
        found: how its tokens relate to the target's.
        options: of the draft's context.
        longest: the longest block.
    """
    size = target.model.vocabulary.size
    with ExitStack() as undo:
        if model.header.eagle is not None:
            assert isinstance(found, Pairing)
            options = replace(options, batch=HEAD_BATCH, outputs=HEAD_BATCH)
            head = undo.enter_context(HeadContext(model, options, target))
            stopping = DraftStopping(*measure_head(head), longest)
            features = RecordedInputs(target, model.header.eagle.layers)
            undo.pop_all()
            return EagleDrafter(head, features, size, found.shared_vocabulary, longest, stopping)
        context = undo.enter_context(Context(model, options))
        stopping = DraftStopping(*measure_draft(context), longest)
        drafter: AnyModelDrafter
        if isinstance(found, SharedTokens):
            drafter = CrossVocabularyDrafter(
                context, target.model.vocabulary, found, longest, stopping
            )
        elif model.header.reduced is not None:
            drafter = ReducedDrafter(context, size, model.header.reduced, longest, stopping)
        else:
            drafter = ModelDrafter(context, size, found.shared_vocabulary, longest, stopping)
        undo.pop_all()
    return drafter
