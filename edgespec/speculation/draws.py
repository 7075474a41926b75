"""Draw tokens from p, from q and from the residual of the two."""

from __future__ import annotations

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel
from edgespec.sampling.random import (
    PURPOSE_DRAFT,
    PURPOSE_NOISE,
    PURPOSE_TARGET,
    race,
    stream,
    uniform,
)
from edgespec.speculation.settings import ACCEPT_COUPLED

__all__ = ["choose", "draw_proposal", "draw_residual"]

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
