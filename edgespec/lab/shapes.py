"""Trees of distinct siblings by alpha of each rank: how many tokens they bring, and the best one.

Siblings are distinct, so that at most one of them is right: the one of rank r with probability
alpha[r], whatever is above it. A node is then accepted with the product of the alphas on its path,
its value, and a tree brings one token more than its nodes' values add up to (Chen et al. 2024,
"Sequoia", section 4.1). As no node is worth more than its parent, the most valuable n nodes are a
tree, and no other of n nodes brings more.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from edgespec.lab.theory import ONE, Cost, free_verification, speedup

__all__ = [
    "BestTree",
    "Path",
    "Ranked",
    "Shape",
    "best_tree",
    "best_trees",
    "rank",
    "shape_nodes",
    "shape_tokens",
    "tree_tokens",
]

Path = tuple[int, ...]
"""A node: the ranks from the top down to it, from 0."""


@dataclass(frozen=True)
class BestTree:
    """The best tree of so many nodes.

    Attributes:
        nodes: paths, the most valuable first.
        tokens: expected of a cycle.
        speedup: with a draft step for each level; None where v(nodes + 1) is not known.
    """

    nodes: tuple[Path, ...]
    tokens: Fraction
    speedup: Fraction | None

    @property
    def depth(self) -> int:
        """Return the number of levels."""
        return max(map(len, self.nodes), default=0)

    @property
    def widths(self) -> tuple[int, ...]:
        """Return how many nodes each level has."""
        return tuple(
            sum(len(node) == level for node in self.nodes) for level in range(1, self.depth + 1)
        )


def _value(alphas: Sequence[Fraction], node: Path) -> Fraction:
    value = ONE
    for place in node:
        value *= alphas[place]
    return value


def tree_tokens(alphas: Sequence[Fraction], nodes: Sequence[Path]) -> Fraction:
    """Return the tokens that a cycle with this tree emits on average."""
    return ONE + sum((_value(alphas, node) for node in nodes), Fraction(0))


def shape_nodes(widths: Sequence[int]) -> int:
    """Return how many nodes a tree has whose nodes have so many children, by level."""
    return sum(accumulate(widths, operator.mul))


def shape_tokens(alphas: Sequence[Fraction], widths: Sequence[int]) -> Fraction:
    """Return the same for a tree whose nodes have so many children, by level: ``--tree 4,2,1``.

    Ranks beyond the known ones are never right.
    """
    total = level = ONE
    for width in widths:
        level *= sum(alphas[:width], Fraction(0))
        total += level
    return total


def best_trees(
    alphas: Sequence[Fraction], c: Fraction, cost: Cost, largest: int, levels: int
) -> tuple[BestTree, ...]:
    """Return the trees with most tokens of 0, 1, ... `largest` nodes on so many levels.

    Of equally valuable nodes the shallower comes first: its level costs no draft step of its own.

    Args:
        alphas: probability by rank that this child is right; they add up to 1 at most.
        c: cost of a draft step, one for each level.
        cost: v.
        largest: nodes of the largest.
        levels: the most.
    """
    waiting: list[tuple[Fraction, int, Path]] = [(-ONE, 0, ())]
    trees, tokens, nodes = list[BestTree](), Fraction(0), list[Path]()
    while waiting and len(trees) <= largest:
        negative, depth, node = heapq.heappop(waiting)
        tokens -= negative
        nodes.append(node)
        below = nodes[1:]
        steps = max(map(len, below), default=0)
        gain = speedup(tokens, len(nodes), steps * c, cost)
        trees.append(BestTree(tuple(below), tokens, gain))
        for place, alpha in enumerate(alphas if depth < levels else ()):
            if alpha > 0:
                heapq.heappush(waiting, (negative * alpha, depth + 1, (*node, place)))
    return tuple(trees)


def best_tree(alphas: Sequence[Fraction], c: Fraction, cost: Cost, largest: int) -> BestTree:
    """Return the tree with the largest speedup of at most `largest` nodes; none may be the best.

    Every number of nodes is tried on every number of levels: a level more costs a draft step.
    """
    best, most = BestTree((), ONE, ONE), ONE
    for levels in range(1, largest + 1):
        for tree in best_trees(alphas, c, cost, largest, levels):
            if tree.speedup is not None and tree.speedup > most:
                best, most = tree, tree.speedup
    return best


@dataclass(frozen=True)
class Shape:
    """A tree whose nodes have so many children by level: nodes, tokens, and speedups."""

    widths: tuple[int, ...]
    nodes: int
    tokens: Fraction
    free: Fraction | None
    measured: Fraction | None


@dataclass(frozen=True)
class Ranked:
    """Trees by alpha of each rank.

    Attributes:
        alphas: by rank.
        shapes: those that were asked for, chains among them.
        free, measured: the best trees on a GPU and on a measured cost curve.
    """

    alphas: tuple[Fraction, ...]
    shapes: tuple[Shape, ...]
    free: BestTree
    measured: BestTree


def rank(
    alphas: tuple[Fraction, ...],
    shapes: Sequence[tuple[int, ...]],
    c: Fraction,
    cost: Cost,
    largest: int,
) -> Ranked:
    """Compare shapes, and find the best trees of up to `largest` nodes."""
    return Ranked(
        alphas,
        tuple(_shape(alphas, widths, c, cost) for widths in shapes),
        best_tree(alphas, c, free_verification, largest),
        best_tree(alphas, c, cost, largest),
    )


def _shape(alphas: tuple[Fraction, ...], widths: tuple[int, ...], c: Fraction, cost: Cost) -> Shape:
    tokens, nodes, steps = shape_tokens(alphas, widths), shape_nodes(widths), len(widths) * c
    free = speedup(tokens, nodes + 1, steps, free_verification)
    return Shape(widths, nodes, tokens, free, speedup(tokens, nodes + 1, steps, cost))
