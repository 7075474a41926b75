"""The compiled loop of the rejection check: many seeds at one prefix, with the real kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgespec._types import Float32Array, Int32Array, Int64Array
from edgespec.sampling.filters import Workspace
from edgespec.sampling.kernel import kernel
from edgespec.speculation.acceptance import verify_chain
from edgespec.speculation.draws import draw_proposal
from edgespec.speculation.settings import DrawSettings

__all__ = ["Tally", "tally_first_tokens"]


Tally = Callable[..., int]
"""`tally_first_tokens`, or what a test puts in its place: the same arguments."""


@kernel
def tally_first_tokens(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    source: Float32Array,
    source_tokens: Int32Array,
    q: Float32Array,
    settings: DrawSettings,
    first_seed: int,
    draws: int,
    p: Float32Array,
    workspace: Workspace,
    counts: Int64Array,
) -> int:
    """Propose one token and verify it, for each of `draws` seeds; count the first token emitted.

    Args:
        logits: float32 (2, n_vocab): the target's row at the prefix, and an unused one for the
            bonus token.
        history: int32 (> length), the prefix and room for a proposal.
        length: tokens of the prefix.
        source: float32 (n_vocab,), the distribution to draw proposals from.
        source_tokens: int32, the tokens with mass in it.
        q: float32 (1, n_vocab), what the rule is told the proposals come from; (0, 0) for one-hot.
        settings: rule and filters; its seed is replaced.
        first_seed: seeds first_seed, first_seed + 1, ... are used.
        draws: how many.
        p: float32 (n_vocab,), scratch.
        workspace: scratch.
        counts: int64 (n_vocab,), added to.

    Returns:
        How many proposals were accepted, or the negative status of `verify_chain`.
    """
    accepted = 0
    out = np.empty(2, np.int32)
    for seed in range(first_seed, first_seed + draws):
        own = DrawSettings(
            settings.rule, settings.arguments, seed, settings.stream_offset, settings.mu
        )
        history[length] = draw_proposal(
            source,
            source_tokens,
            len(source_tokens),
            own.rule,
            seed,
            length + own.stream_offset,
        )
        status = verify_chain(logits, history, length, 1, q, own, p, workspace, out)
        if status < 0:
            return status
        accepted += status
        counts[out[0]] += 1
    return accepted
