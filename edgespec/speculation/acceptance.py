"""Verify a chain: keep a prefix, add one token of the target's own; and how tokens are drawn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array
from edgespec.errors import UsageError
from edgespec.sampling.filters import Workspace, advance_mu, distribution
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import NO_BREAKERS, FilterArguments, SamplingParameters, is_greedy
from edgespec.sampling.selection import (
    PURPOSE_ACCEPT,
    PURPOSE_DRAFT,
    PURPOSE_NOISE,
    PURPOSE_TARGET,
    race,
    stream,
    uniform,
)

__all__ = [
    "ACCEPTANCE_RULES",
    "ACCEPT_COUPLED",
    "ACCEPT_REJECTION",
    "ACCEPT_TYPICAL",
    "BROKEN_LOGITS",
    "NOTHING_ALLOWED",
    "TYPICAL_DELTA",
    "TYPICAL_EPSILON",
    "DrawSettings",
    "choose",
    "current_mu",
    "draw_proposal",
    "draw_residual",
    "draw_settings",
    "is_lossy",
    "new_mu",
    "repeatable_rule",
    "typical_threshold",
    "verify_chain",
]

ACCEPT_REJECTION = 0
ACCEPT_COUPLED = 1
ACCEPT_TYPICAL = 2
ACCEPTANCE_RULES = ("auto", "greedy", "rejection", "coupled", "typical")

_RULES = {"coupled": ACCEPT_COUPLED, "typical": ACCEPT_TYPICAL}
_NO_MU = np.zeros(0)


class DrawSettings(NamedTuple):
    """What the kernels need to know besides logits and history.

    Attributes:
        rule: ACCEPT_REJECTION, ACCEPT_COUPLED or ACCEPT_TYPICAL.
        arguments: the filters.
        seed: the bits of the user's 64-bit seed, as int64.
        stream_offset: added to a token's position to give its place in the random stream, so that
            a conversation whose beginning was dropped does not draw the same numbers again.
        mu: float64 (1,), Mirostat's state of this generation: the bits of surprise allowed after
            the committed tokens. `verify_chain` advances it; the draft only reads it. Empty at
            the start of a generation.
    """

    rule: int
    arguments: FilterArguments
    seed: int
    stream_offset: int = 0
    mu: Float64Array = _NO_MU


@kernel
def current_mu(settings: DrawSettings) -> float:
    """Return Mirostat's state; twice tau at the start of a generation."""
    if len(settings.mu) == 0:
        return 2.0 * settings.arguments.mirostat_tau
    return float(settings.mu[0])


def new_mu(arguments: FilterArguments) -> Float64Array:
    """Return Mirostat's state for the start of a generation."""
    return np.array([2.0 * arguments.mirostat_tau])


def repeatable_rule(accept: str) -> str:
    """Return the rule that "auto" stands for where the seed is told to the user.

    Who gives it again wants the text again: coupled has one text per seed, whatever is proposed.
    """
    return "coupled" if accept == "auto" else accept


def is_lossy(settings: DrawSettings) -> bool:
    """Return whether the rule changes the distribution: typical does, but at temperature 0."""
    return settings.rule == ACCEPT_TYPICAL and not is_greedy(settings.arguments)


def draw_settings(
    sampling: SamplingParameters, accept: str, breakers: Int32Array = NO_BREAKERS
) -> DrawSettings:
    """Put parameters and the name of an acceptance rule into the kernels' form.

    Args:
        sampling: filters and seed.
        breakers: those of the parameters, as `breaker_table` makes them for the target.
        accept: one of `ACCEPTANCE_RULES`; "auto" is rejection, at temperature 0 greedy. "typical"
            is lossy, and nothing stands for it.

    Raises:
        UsageError: the rule is unknown, or "greedy" although the parameters leave a choice.
    """
    if accept not in ACCEPTANCE_RULES:
        raise UsageError(f"accept is {accept!r}: it is one of {', '.join(ACCEPTANCE_RULES)}")
    arguments = sampling.filter_arguments(breakers)
    if accept == "greedy" and not is_greedy(arguments):
        raise UsageError("accept greedy keeps the distribution at temperature 0 only")
    rule = _RULES.get(accept, ACCEPT_REJECTION)
    seed = int(np.uint64(sampling.seed).astype(np.int64))
    return DrawSettings(rule, arguments, seed, mu=new_mu(arguments))


_BLOCK = 64


@kernel
def _mass(p: Float32Array, tokens: Int32Array, start: int, stop: int) -> float:
    """Sum p over ``tokens[start:stop]``, in four independent strands."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = stop - (stop - start) % 4
    for i in range(start, whole, 4):
        a += p[tokens[i]]
        b += p[tokens[i + 1]]
        c += p[tokens[i + 2]]
        d += p[tokens[i + 3]]
    for i in range(whole, stop):
        a += p[tokens[i]]
    return (a + b) + (c + d)


@kernel
def _invert(p: Float32Array, tokens: Int32Array, count: int, u: float) -> int:
    """Invert the cumulative distribution of p over the listed tokens, at u in (0, 1)."""
    # float32 rows do not sum to exactly 1; scaling u makes all mass reachable.
    goal = u * _mass(p, tokens, 0, count)
    mass = 0.0
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        block = _mass(p, tokens, start, stop)
        if mass + block <= goal:
            mass += block
            continue
        for i in range(start, stop):
            mass += p[tokens[i]]
            if mass > goal:
                return int(tokens[i])
    # Only rounding leads here: take the last token that has mass.
    last = count - 1
    while last > 0 and p[tokens[last]] <= 0.0:
        last -= 1
    return int(tokens[last])


@kernel
def choose(
    p: Float32Array,
    tokens: Int32Array,
    count: int,
    rule: int,
    seed: int,
    position: int,
    purpose: int,
) -> int:
    """Draw one token from p with the rule's randomness: inverse CDF, or the shared race."""
    if count == 1:
        return int(tokens[0])
    if rule == ACCEPT_COUPLED:
        return race(p, tokens, count, stream(seed, position, PURPOSE_NOISE))
    return _invert(p, tokens, count, uniform(seed, position, purpose))


@kernel
def draw_proposal(
    q: Float32Array, tokens: Int32Array, count: int, rule: int, seed: int, position: int
) -> int:
    """Draw one token from q for this position; a drafter that keeps q must use this."""
    return choose(q, tokens, count, rule, seed, position, PURPOSE_DRAFT)


@kernel
def draw_residual(
    p: Float32Array,
    q: Float32Array,
    rejected: int,
    tokens: Int32Array,
    count: int,
    seed: int,
    position: int,
) -> int:
    """Draw one token from norm((p - q)+): Leviathan et al. (2023), algorithm 1.

    Args:
        p: float32 (n_vocab,).
        q: float32 (n_vocab,).
        rejected: the proposal that was rejected; it has no residual mass.
        tokens, count: the support of p.

    Returns:
        The token; -1 if the residual has no mass, which only rounding can cause: p and q are then
        equal and the caller accepts.
    """
    total = 0.0
    for i in range(count):
        token = tokens[i]
        if token != rejected:
            total += max(p[token] - q[token], 0.0)
    if total <= 0.0:
        return -1
    goal = uniform(seed, position, PURPOSE_TARGET) * total
    mass, last = 0.0, -1
    for i in range(count):
        token = int(tokens[i])
        if token == rejected:
            continue
        weight = max(p[token] - q[token], 0.0)
        if weight > 0.0:
            mass += weight
            last = token
            if mass > goal:
                return token
    return last


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
