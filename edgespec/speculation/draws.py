"""Drawing tokens from p, from q and from the residual of the two."""

from __future__ import annotations

import numpy as np
from edgespec.sampling.kernel import kernel

from edgespec.sampling.random import (
    PURPOSE_DRAFT,
    PURPOSE_NOISE,
    PURPOSE_TARGET,
    race,
    stream,
    uniform,
)

__all__ = ["ACCEPT_COUPLED", "ACCEPT_REJECTION", "choose", "draw_proposal", "draw_residual"]

ACCEPT_REJECTION = 0
ACCEPT_COUPLED = 1

_NO_ROW = np.zeros(0, np.float32)


@kernel
def _invert(p, tokens, count, u):
    """Inverse of the cumulative distribution of p over the listed tokens, at u in (0, 1)."""
    mass, last = 0.0, tokens[0]
    total = 0.0
    for i in range(count):
        total += p[tokens[i]]
    # float32 rows do not sum to one exactly; scaling u leaves no mass unreachable.
    goal = u * total
    for i in range(count):
        token = tokens[i]
        if p[token] > 0.0:
            mass += p[token]
            last = token
            if mass > goal:
                return token
    return last


@kernel
def choose(p, tokens, count, rule, seed, position, purpose):
    """One token from p, by the rule's own randomness: inverse CDF, or the shared race."""
    if count == 1:
        return tokens[0]
    if rule == ACCEPT_COUPLED:
        return race(p, tokens, count, stream(seed, position, PURPOSE_NOISE))
    return _invert(p, tokens, count, uniform(seed, position, purpose))


@kernel
def draw_proposal(q, tokens, count, rule, seed, position):
    """One token from q for this position: what a drafter that keeps q must use."""
    return choose(q, tokens, count, rule, seed, position, PURPOSE_DRAFT)


@kernel
def draw_residual(p, q, rejected, tokens, count, seed, position):
    """One token from norm((p - q)+): Leviathan et al. (2023), algorithm 1.

    Args:
        p: float32 (n_vocab,).
        q: float32 (n_vocab,), or empty for a one-hot q at `rejected`.
        rejected: the proposal that was rejected; it has no residual mass.
        tokens, count: the support of p.

    Returns:
        The token; -1 if the residual has no mass, which only rounding can bring about: p and q
        are then equal and the caller accepts.
    """
    one_hot = len(q) == 0
    total = 0.0
    for i in range(count):
        token = tokens[i]
        if token != rejected:
            total += p[token] if one_hot else max(p[token] - q[token], 0.0)
    if total <= 0.0:
        return -1
    goal = uniform(seed, position, PURPOSE_TARGET) * total
    mass, last = 0.0, -1
    for i in range(count):
        token = tokens[i]
        if token == rejected:
            continue
        weight = p[token] if one_hot else max(p[token] - q[token], 0.0)
        if weight > 0.0:
            mass += weight
            last = token
            if mass > goal:
                return token
    return last
