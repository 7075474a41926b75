"""Grow a draft tree by how sure the draft is, as long as another level is worth its cost.

EAGLE-2's dynamic tree (Li et al. 2024, "EAGLE-2", section 4): a node's value is the probability
that it is accepted, the product of the calibrated confidences on its path; the most valuable nodes
of a level are expanded, and in the end the most valuable nodes of all are verified. Here costs
decide how many: what is maximized are expected tokens per second.

Nothing in these trees is drawn: children are the likeliest tokens, so that a node may be left out
for what it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array
from edgespec.control.controller import DraftBudget
from edgespec.control.stopping import Calibration, estimate, notice, record
from edgespec.sampling.kernel import kernel
from edgespec.speculation.trees import ONE_HOT, DraftTree

__all__ = [
    "CHILDREN",
    "WIDEST",
    "GrownTree",
    "add_children",
    "add_level",
    "as_draft_tree",
    "copy_chain",
    "learn_path",
    "likeliest",
    "make_grown_tree",
    "most_valuable",
    "next_level",
    "worth_beginning",
]

CHILDREN = 6
"""The most children of a node; the next is hardly ever right."""

_MOST = 160  # nodes that are thought of
WIDEST = 6
"""Nodes of a level that are expanded."""

_LEAST = 0.01  # value below which a node is not thought of
_NEGLIGIBLE = -16.0  # logits so far below the best add nothing to a softmax
_NO_Q: Float32Array = np.zeros((0, 0), np.float32)


class GrownTree(NamedTuple):
    """Nodes in the order in which they were thought of; a child stands behind its parent.

    Attributes:
        tokens, parents, depths: int32 (most,); the parent of the first level is -1.
        values: float64 (most,), probability that a node is accepted.
        confidences: float64 (most,), that of the draft in the token; -1 if it was copied.
        entries: int32 (most,), where the draft evaluated it; -1 if it did not.
        size: int32 (1,), how many there are.
    """

    tokens: Int32Array
    parents: Int32Array
    depths: Int32Array
    values: Float64Array
    confidences: Float64Array
    entries: Int32Array
    size: Int32Array


def make_grown_tree() -> GrownTree:
    """Return one without nodes."""
    return GrownTree(
        tokens=np.zeros(_MOST, np.int32),
        parents=np.zeros(_MOST, np.int32),
        depths=np.zeros(_MOST, np.int32),
        values=np.zeros(_MOST),
        confidences=np.zeros(_MOST),
        entries=np.zeros(_MOST, np.int32),
        size=np.zeros(1, np.int32),
    )


@kernel
def likeliest(
    logits: Float32Array, ids: Int32Array, tokens: Int32Array, shares: Float64Array
) -> bool:
    """Find the likeliest of some tokens, and their shares of the softmax at temperature 1.

    Args:
        logits: float32 (n_vocab,).
        ids: int32, the tokens that count.
        tokens, shares: (n,), overwritten, the likeliest first.

    Returns:
        False if a logit is NaN or +inf, or none is finite.
    """
    number, found = len(tokens), 0
    for token in ids:
        logit = logits[token]
        if not logit < np.inf:
            return False
        if found == number and logit <= shares[number - 1]:
            continue
        at = min(found, number - 1)
        while at > 0 and shares[at - 1] < logit:
            shares[at], tokens[at] = shares[at - 1], tokens[at - 1]
            at -= 1
        shares[at], tokens[at] = logit, token
        found = min(found + 1, number)
    if found < number or shares[0] == -np.inf:
        return False
    total = 0.0
    for token in ids:
        difference = logits[token] - shares[0]
        if difference > _NEGLIGIBLE:
            total += np.exp(difference)
    best = shares[0]
    for i in range(number):
        shares[i] = np.exp(shares[i] - best) / total
    return True


@kernel
def _add(
    tree: GrownTree, parent: int, token: int, depth: int, value: float, confidence: float
) -> int:
    """Add a node, or raise the value of the one that is there; its number, -1 if it is no use."""
    count = int(tree.size[0])
    for node in range(parent + 1, count):
        if tree.parents[node] == parent and tree.tokens[node] == token:
            tree.values[node] = max(tree.values[node], value)
            tree.confidences[node] = max(tree.confidences[node], confidence)
            return node
    if count == _MOST or value < _LEAST:
        return -1
    tree.tokens[count], tree.parents[count], tree.depths[count] = token, parent, depth
    tree.values[count], tree.confidences[count] = value, confidence
    tree.entries[count] = -1
    tree.size[0] = count + 1
    return count


@kernel
def add_children(
    tree: GrownTree,
    parent: int,
    tokens: Int32Array,
    shares: Float64Array,
    calibration: Calibration,
) -> None:
    """Think of a node's children."""
    depth, value = 0, 1.0
    if parent >= 0:
        depth, value = tree.depths[parent] + 1, tree.values[parent]
    for i in range(len(tokens)):
        chance = estimate(calibration, depth, shares[i])
        _add(tree, parent, tokens[i], depth, value * chance, shares[i])


@kernel
def add_level(
    tree: GrownTree,
    depth: int,
    tokens: Int32Array,
    shares: Float64Array,
    calibration: Calibration,
) -> None:
    """Think of the same children for every node of a depth."""
    for node in range(tree.size[0]):
        if tree.depths[node] == depth:
            add_children(tree, node, tokens, shares, calibration)


@kernel
def copy_chain(tree: GrownTree, tokens: Int32Array, acceptance: Float64Array) -> None:
    """Think of a chain that something else proposed, with the probability of each."""
    parent, value = -1, 1.0
    for depth in range(len(tokens)):
        value *= acceptance[depth]
        parent = _add(tree, parent, tokens[depth], depth, value, -1.0)
        if parent < 0:
            break


@kernel
def _best(values: Float64Array, budget: DraftBudget, spent_s: float) -> tuple[int, float]:
    """Return how many of the most valuable to verify, and the tokens per second of that."""
    order = np.sort(values)[::-1]
    best, rate, expected = 0, 1.0 / (budget.cycle_s[0] + spent_s), 1.0
    for j in range(min(budget.limit, len(order))):
        expected += order[j]
        seconds = budget.cycle_s[j + 1] + spent_s
        if expected > rate * seconds:
            best, rate = j + 1, expected / seconds
    return best, rate


@kernel
def _hope(tree: GrownTree, node: int, chance: float) -> float:
    """Return the expected value of a node's first new child; -1 is the text itself."""
    value = tree.values[node] if node >= 0 else 1.0
    left = value
    for child in range(node + 1, tree.size[0]):
        if tree.parents[child] == node:
            left -= tree.values[child]
    return min(value * chance, max(left, 0.0))


@kernel
def worth_beginning(tree: GrownTree, budget: DraftBudget, chance: float, first_s: float) -> bool:
    """Return whether to ask the draft at all, beside what was copied."""
    count = tree.size[0]
    hoped = np.empty(count + 1)
    hoped[:count] = tree.values[:count]
    rate = _best(hoped[:count], budget, 0.0)[1]
    hoped[count] = _hope(tree, -1, chance)
    return _best(hoped, budget, first_s)[1] > rate


@kernel
def next_level(
    tree: GrownTree,
    depth: int,
    budget: DraftBudget,
    chance: float,
    spent_s: float,
    step_s: float,
    more_s: float,
    chosen: Int32Array,
) -> int:
    """Choose which nodes of a level to expand.

    Args:
        depth: of the level.
        chance: probability that the first child of an accepted node is accepted.
        spent_s: seconds of drafting so far.
        step_s, more_s: of a level of one node, and for each further one.
        chosen: int32 (n,), receives the nodes, in their order.

    Returns:
        How many; 0 if no number of them is worth its cost.
    """
    count = tree.size[0]
    values = tree.values[:count]
    level = np.flatnonzero(tree.depths[:count] == depth)
    level = level[np.argsort(-values[level], kind="mergesort")]
    most, rate = 0, _best(values, budget, spent_s)[1]
    hoped = np.empty(count + len(chosen))
    hoped[:count] = values
    for wide in range(1, min(len(level), len(chosen)) + 1):
        hoped[count + wide - 1] = _hope(tree, level[wide - 1], chance)
        after_s = spent_s + step_s + (wide - 1) * more_s
        found = _best(hoped[: count + wide], budget, after_s)[1]
        if found > rate:
            most, rate = wide, found
    chosen[:most] = np.sort(level[:most])
    return most


@kernel
def most_valuable(tree: GrownTree, budget: DraftBudget, spent_s: float, chosen: Int32Array) -> int:
    """Choose the nodes to verify, in their order: how many. With a node come those above it."""
    count = tree.size[0]
    values = tree.values[:count]
    # A child is worth no more than its parent, which stands before it.
    size = min(_best(values, budget, spent_s)[0], len(chosen))
    order = np.argsort(-values, kind="mergesort")[:size]
    chosen[:size] = np.sort(order)
    return size


@kernel
def learn_path(
    tree: GrownTree, verified: Int32Array, path: Int32Array, judged: int, calibration: Calibration
) -> None:
    """Learn from the children of the nodes that were accepted.

    Args:
        verified: int32, the tree's nodes that were verified.
        path: int32, which of these were accepted, from the top.
        judged: how many levels were judged.
    """
    for depth in range(judged):
        parent = verified[path[depth - 1]] if depth else -1
        taken = verified[path[depth]] if depth < len(path) else -1
        first = True
        for node in verified:
            confidence = tree.confidences[node]
            if tree.parents[node] != parent or confidence < 0.0:
                continue
            if first:  # the likeliest: what a chain would have had
                notice(calibration, depth, confidence)
            first = False
            record(calibration, depth, confidence, node == taken)


def as_draft_tree(tree: GrownTree, verified: Int32Array) -> DraftTree:
    """Return the chosen nodes, int32 and ascending, as a tree of their own."""
    places = np.full(int(tree.size[0]) + 1, -1, np.int32)
    places[verified] = np.arange(len(verified), dtype=np.int32)
    parents = places[tree.parents[verified]]  # the last place is that of -1
    rows = np.full(len(verified), ONE_HOT, np.int32)
    return DraftTree(tree.tokens[verified], parents, rows, _NO_Q)
