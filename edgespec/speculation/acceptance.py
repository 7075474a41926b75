"""Verify a chain: walk the proposals, keep a prefix, add one token of the target's own."""

from __future__ import annotations

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.filters import Workspace, advance_mu, distribution
from edgespec.sampling.kernel import kernel
from edgespec.sampling.selection import PURPOSE_ACCEPT, PURPOSE_TARGET, uniform
from edgespec.speculation.draws import (
    ACCEPT_REJECTION,
    ACCEPT_TYPICAL,
    DrawSettings,
    choose,
    current_mu,
    draw_residual,
)

__all__ = [
    "BROKEN_LOGITS",
    "NOTHING_ALLOWED",
    "TYPICAL_DELTA",
    "TYPICAL_EPSILON",
    "typical_threshold",
    "verify_chain",
]

BROKEN_LOGITS = -1
NOTHING_ALLOWED = -2

TYPICAL_EPSILON = 0.09
TYPICAL_DELTA = 0.3
"""Those of Medusa's own code; they make the threshold of typical acceptance."""


@kernel
def typical_threshold(p: Float32Array, tokens: Int32Array, count: int) -> float:
    """Return the probability that is enough for typical acceptance: min(epsilon, delta e^-H(p)).

    Where the target is sure, a proposal has to be likely; where it hesitates between many tokens,
    less is enough (Cai et al. 2024, "Medusa", section 2.3.1). Whatever passes is emitted, so that
    the text is not distributed as p any more.
    """
    entropy = 0.0
    for i in range(count):
        share = float(p[tokens[i]])
        if share > 0.0:
            entropy -= share * np.log(share)
    return float(min(TYPICAL_EPSILON, TYPICAL_DELTA * np.exp(-entropy)))


@kernel
def _typical_step(
    p: Float32Array, proposal: int, tokens: Int32Array, count: int, seed: int, position: int
) -> int:
    """Return the proposal if p gives it enough, otherwise a token drawn from p."""
    if p[proposal] >= typical_threshold(p, tokens, count):
        return proposal
    return choose(p, tokens, count, ACCEPT_TYPICAL, seed, position, PURPOSE_TARGET)


@kernel
def _rejection_step(
    p: Float32Array,
    q: Float32Array,
    proposal: int,
    tokens: Int32Array,
    count: int,
    seed: int,
    position: int,
) -> int:
    """Return the token to emit for a proposal: the proposal itself or its replacement.

    Accept with min(1, p/q); otherwise draw from the residual (Leviathan et al. 2023, section 2.3;
    Chen et al. 2023, algorithm 2).
    """
    if uniform(seed, position, PURPOSE_ACCEPT) * q[proposal] < p[proposal]:
        return proposal
    replacement = draw_residual(p, q, proposal, tokens, count, seed, position)
    if replacement >= 0:
        return replacement
    if p[proposal] > 0.0:
        return proposal
    # Rounding left no residual mass, but a token that the filters forbid must not be emitted.
    return choose(p, tokens, count, ACCEPT_REJECTION, seed, position, PURPOSE_TARGET)


@kernel
def verify_chain(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    k: int,
    q: Float32Array,
    settings: DrawSettings,
    p: Float32Array,
    workspace: Workspace,
    out: Int32Array,
) -> int:
    """Accept a prefix of k proposals and draw the token after it.

    The proposals are ``history[length:length + k]``. Position i has its own prefix
    ``history[:length + i]``, so penalties see what was proposed before it in the same block.
    A proposal that was not drawn (one-hot q) is accepted if p's own draw is the same token. That
    is as probable as under the rejection rule, and gives the text of plain decoding with that seed.
    By the typical rule a proposal stays if p gives it enough, which is lossy.
    Mirostat's mu advances over the emitted tokens, each with the p it was drawn from, and is
    committed with them, so that it is what plain decoding would have.

    Args:
        logits: float32 (k + 1, n_vocab); row i follows the prefix of position i. With k rows
            nothing is drawn behind the last proposal, which is emitted or replaced.
        history: int32, committed tokens followed by the proposals.
        length: number of committed tokens.
        k: number of proposals, 0 for plain decoding.
        q: float32 (k, n_vocab), the distribution each proposal was drawn from; shape (0, 0) for
            one-hot (deterministic) proposals.
        settings: `DrawSettings`. At temperature 0 p is one-hot and every rule reduces to greedy
            verification.
        p: float32 (n_vocab,), scratch for one distribution.
        workspace: `Workspace`.
        out: int32 (k + 1,), receives the emitted tokens.

    Returns:
        The number of accepted proposals a: ``out[:a + 1]`` was emitted. Its last token is the
        correction if a < k, the bonus token otherwise. BROKEN_LOGITS if a row holds NaN or +inf,
        NOTHING_ALLOWED if the filters and bias leave no token.
    """
    rule, seed, arguments = settings.rule, settings.seed, settings.arguments
    mu = current_mu(settings)
    for i in range(k + 1):
        position = length + i + settings.stream_offset
        count = distribution(
            logits[i], history, length + i, arguments, p, workspace, seed, position, mu
        )
        if count <= 0:
            return BROKEN_LOGITS if count < 0 else NOTHING_ALLOWED
        proposal = history[length + i] if i < k else -1
        drawn = i < len(q) and i < k and q[i, proposal] < 1.0
        if rule == ACCEPT_REJECTION and drawn:
            token = _rejection_step(p, q[i], proposal, workspace.tokens, count, seed, position)
        elif rule == ACCEPT_TYPICAL and i < k:
            token = _typical_step(p, proposal, workspace.tokens, count, seed, position)
        else:
            token = choose(p, workspace.tokens, count, rule, seed, position, PURPOSE_TARGET)
        out[i] = token
        if arguments.mirostat != 0:
            mu = advance_mu(mu, p[token], arguments)
        if token != proposal or i == k or i + 1 == len(logits):
            if len(settings.mu) > 0:
                settings.mu[0] = mu
            return i
    return k
