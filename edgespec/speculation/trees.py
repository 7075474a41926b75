"""Verify a tree: walk from the top to a child as long as one is accepted, then add one token.

Siblings are tried in their order. One that was drawn is accepted with min(1, p/q); a refused one
turns p into its residual, norm((p - q)+), against which the next is judged (recursive rejection
sampling: Miao et al. 2024, "SpecInfer", algorithm 2; Jeon et al. 2024, "Recursive Speculative
Decoding"). Siblings of one distribution are drawn without the tokens of those before, so that the
q of each is what the distribution leaves, normalized again. Whatever q is, what is emitted has p.

The law for drafters: how many children a node gets may depend on everything that was drawn above
them and on q, never on the tokens of the children themselves. A child that is dropped because of
what it is would leave the others too likely.
"""

from __future__ import annotations

from typing import NamedTuple

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.filters import Workspace, distribution
from edgespec.sampling.kernel import kernel
from edgespec.sampling.selection import PURPOSE_ACCEPT, PURPOSE_DRAFT, PURPOSE_TARGET, uniform
from edgespec.speculation.acceptance import (
    ACCEPT_REJECTION,
    ACCEPT_TYPICAL,
    BROKEN_LOGITS,
    NOTHING_ALLOWED,
    DrawSettings,
    choose,
    typical_threshold,
)

__all__ = ["ONE_HOT", "DraftTree", "draw_sibling", "verify_tree"]

ONE_HOT = -1
"""In place of a row of q: the token was not drawn."""

_LEAST_MASS = 1e-7  # of q for another sibling; only rounding leaves less

_SIBLING = 8
"""Added to a purpose for each sibling before: each has random numbers of its own."""


class DraftTree(NamedTuple):
    """Proposed tokens with their parents; children stand behind their parent, in order of trial.

    Attributes:
        tokens: int32 (n,).
        parents: int32 (n,), the number of an earlier node; -1 for those behind the text.
        rows: int32 (n,), which row of q a token was drawn from; `ONE_HOT` if it was not drawn.
            Siblings that were drawn have one row.
        q: float32 (rows, n_vocab), distributions before any sibling was left out.
    """

    tokens: Int32Array
    parents: Int32Array
    rows: Int32Array
    q: Float32Array


@kernel
def draw_sibling(
    q: Float32Array,
    tokens: Int32Array,
    count: int,
    drawn: Int32Array,
    number: int,
    seed: int,
    position: int,
) -> int:
    """Draw one token from q without those of earlier siblings; -1 if q has no other.

    Args:
        q: float32 (n_vocab,).
        tokens, count: the support of q.
        drawn: int32, the tokens of the siblings before, in its first `number` entries.
    """
    total = 0.0
    for i in range(count):
        total += q[tokens[i]]
    for i in range(number):
        total -= q[drawn[i]]
    goal = total * uniform(seed, position, PURPOSE_DRAFT + _SIBLING * number)
    mass, last = 0.0, -1
    for i in range(count):
        token = int(tokens[i])
        fresh = q[token] > 0.0
        for j in range(number):
            fresh = fresh and drawn[j] != token
        if fresh:
            mass += q[token]
            last = token
            if mass > goal:
                break
    return last


@kernel
def _refuse(p: Float32Array, tokens: Int32Array, count: int, q: Float32Array, scale: float) -> bool:
    """Turn p into norm((p - q)+), q times `scale`; False if nothing is left.

    Tokens of earlier siblings, which the sibling's own q lacks, have no p any more.
    """
    total = 0.0
    for i in range(count):
        total += max(p[tokens[i]] - scale * q[tokens[i]], 0.0)
    if total <= 0.0:
        return False
    for i in range(count):
        token = tokens[i]
        p[token] = max(p[token] - scale * q[token], 0.0) / total
    return True


@kernel
def _without(p: Float32Array, tokens: Int32Array, count: int, refused: int) -> bool:
    """Turn p into its residual where q is one-hot at `refused`; False if none is left."""
    total = 0.0
    for i in range(count):
        if tokens[i] != refused:
            total += p[tokens[i]]
    if total <= 0.0:
        return False
    for i in range(count):
        token = tokens[i]
        p[token] = 0.0 if token == refused else p[token] / total
    return True


@kernel
def _try_siblings(
    tree: DraftTree,
    parent: int,
    p: Float32Array,
    tokens: Int32Array,
    count: int,
    seed: int,
    position: int,
) -> int:
    """Return the child that is accepted; -1 if none, p being the residual of all."""
    number = 0
    for child in range(parent + 1, len(tree.tokens)):
        if tree.parents[child] != parent:
            continue
        token, row = tree.tokens[child], tree.rows[child]
        share, scale = 1.0, 1.0
        if row >= 0:
            scale = 1.0 / max(1.0 - _used(tree, parent, child), _LEAST_MASS)
            share = tree.q[row, token] * scale
        if uniform(seed, position, PURPOSE_ACCEPT + _SIBLING * number) * share < p[token]:
            return child
        if row >= 0:
            remains = _refuse(p, tokens, count, tree.q[row], scale)
        else:
            remains = _without(p, tokens, count, token)
        if not remains:  # only rounding leads here: p and q are equal
            return child if p[token] > 0.0 else -1
        number += 1
    return -1


@kernel
def _used(tree: DraftTree, parent: int, child: int) -> float:
    """Return what a child's row of q gives the tokens of its earlier siblings."""
    q, mass = tree.q[tree.rows[child]], 0.0
    for other in range(parent + 1, child):
        if tree.parents[other] == parent:
            mass += q[tree.tokens[other]]
    return mass


@kernel
def _any_drawn(tree: DraftTree, parent: int) -> bool:
    for child in range(parent + 1, len(tree.tokens)):
        if tree.parents[child] == parent and tree.rows[child] >= 0:
            return True
    return False


@kernel
def _most_typical(
    tree: DraftTree, parent: int, p: Float32Array, tokens: Int32Array, count: int
) -> int:
    """Return the likeliest child that passes the threshold of typical acceptance; -1 if none."""
    found, most = -1, typical_threshold(p, tokens, count)
    for child in range(parent + 1, len(tree.tokens)):
        share = p[tree.tokens[child]]
        if tree.parents[child] == parent and (share > most or (found < 0 and share >= most)):
            found, most = child, float(share)
    return found


@kernel
def _walk_on(
    tree: DraftTree,
    parent: int,
    p: Float32Array,
    workspace: Workspace,
    count: int,
    settings: DrawSettings,
    position: int,
) -> tuple[int, int]:
    """Return the token to emit behind a node, and which of its children that is; -1 for none."""
    rule, seed, tokens = settings.rule, settings.seed, workspace.tokens
    if rule == ACCEPT_REJECTION and count > 1 and _any_drawn(tree, parent):
        child = _try_siblings(tree, parent, p, tokens, count, seed, position)
        if child >= 0:
            return int(tree.tokens[child]), child
        return choose(p, tokens, count, rule, seed, position, PURPOSE_TARGET), -1
    if rule == ACCEPT_TYPICAL:
        child = _most_typical(tree, parent, p, tokens, count)
        if child >= 0:
            return int(tree.tokens[child]), child
    # What was not drawn is accepted if p's own draw is the same: as probable, and plain text.
    token = choose(p, tokens, count, rule, seed, position, PURPOSE_TARGET)
    for child in range(parent + 1, len(tree.tokens)):
        if tree.parents[child] == parent and tree.tokens[child] == token:
            return token, child
    return token, -1


@kernel
def verify_tree(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    tree: DraftTree,
    settings: DrawSettings,
    p: Float32Array,
    workspace: Workspace,
    out: Int32Array,
    path: Int32Array,
) -> int:
    """Accept a path of a tree and draw the token after it.

    The path is written behind the committed tokens as it grows, so that penalties see it.
    Mirostat is not for trees: its state needs p of every emitted token.

    Args:
        logits: float32 (n + 1, n_vocab); row 0 follows the text, row i + 1 node i.
        history: int32, the committed tokens; what is behind them is overwritten.
        length: number of committed tokens.
        tree: n nodes.
        settings: `DrawSettings`. At temperature 0 p is one-hot and every rule is greedy.
        p: float32 (n_vocab,), scratch for one distribution.
        workspace: `Workspace`.
        out: int32 (deepest path + 1,), receives the emitted tokens.
        path: int32 (deepest path,), receives the accepted nodes.

    Returns:
        The number of accepted nodes a: ``out[:a + 1]`` was emitted, of ``path[:a]``.
        `BROKEN_LOGITS` or `NOTHING_ALLOWED` as from `verify_chain`.
    """
    node, depth = -1, 0
    while True:
        position = length + depth + settings.stream_offset
        count = distribution(
            logits[node + 1],
            history,
            length + depth,
            settings.arguments,
            p,
            workspace,
            settings.seed,
            position,
        )
        if count <= 0:
            return BROKEN_LOGITS if count < 0 else NOTHING_ALLOWED
        token, child = _walk_on(tree, node, p, workspace, count, settings, position)
        out[depth] = token
        if child < 0:
            return depth
        node = child
        path[depth] = node
        history[length + depth] = token
        depth += 1
