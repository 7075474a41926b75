"""Trees of siblings: recursive rejection sampling, exactly, and what a tree of which shape brings.

A rejected sibling turns the target into its residual, p <- norm((p - q)+), against which the next
sibling is judged; when all are rejected, the token is drawn from what p has become. Each step is
the one-proposal rule with its own p and q, and leaves exactly the residual to the next, whatever
q the next sibling is drawn from. Hence the output is distributed as the first p, for both ways to
draw:

* with replacement: siblings are independent draws from q, as in the multi-step speculative
  sampling of SpecInfer (Miao et al. 2024, algorithm 2 and theorem 4.2);
* without: each is drawn from q without the tokens rejected before, normalized again (Jeon et al.
  2024, "Recursive Speculative Decoding", recursive rejection sampling). The acceptance test has
  to use that q, too.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from edgespec.lab.theory import (
    ONE,
    ZERO,
    Cost,
    Distribution,
    decompose,
    free_verification,
    normalized,
    speedup,
)

__all__ = [
    "BestTree",
    "Path",
    "Ranked",
    "Shape",
    "TooManyCasesError",
    "TreeOutcome",
    "best_tree",
    "best_trees",
    "rank",
    "shape_nodes",
    "shape_tokens",
    "siblings",
    "tree_tokens",
]


class TooManyCasesError(ValueError):
    """The tree of rejected tokens has more nodes than the caller allows."""


@dataclass(frozen=True)
class TreeOutcome:
    """What a list of siblings emits.

    Attributes:
        accepted: probability that the i-th sibling is the accepted one.
        output: distribution of the emitted token.
    """

    accepted: tuple[Fraction, ...]
    output: Distribution

    @property
    def some_accepted(self) -> Fraction:
        """Return the probability that one of the siblings is accepted."""
        return sum(self.accepted, ZERO)


def siblings(
    p: Distribution,
    q: Distribution,
    count: int,
    *,
    replacement: bool = True,
    max_cases: int | None = None,
) -> TreeOutcome:
    """Follow every sequence of rejections, and add up what each emits.

    Args:
        p, q: distributions of the same length.
        count: number of siblings, at least 1.
        replacement: draw siblings independently from q; otherwise without the rejected ones.
            Fewer than `count` are drawn when q has no token left.
        max_cases: give up after so many steps. With replacement there are at most `count`:
            what p becomes does not depend on which token was rejected. Without, they grow like
            the number of ordered selections of tokens.

    Raises:
        TooManyCasesError: more than `max_cases`.
    """
    return _Walk(replacement, max_cases).outcome(p, q, count)


class _Walk:
    """Every sequence of rejections, depth first."""

    def __init__(self, replacement: bool, max_cases: int | None) -> None:
        self._replacement = replacement
        self._max_cases = max_cases
        self._cases = 0

    def outcome(self, p: Distribution, q: Distribution, left: int) -> TreeOutcome:
        """Return what the remaining siblings emit."""
        if left == 0 or not any(q):
            return TreeOutcome((ZERO,) * left, p)
        self._count()
        step = decompose(p, q)
        accepted = [step.alpha] + [ZERO] * (left - 1)
        output = list(step.accepted)
        if step.residual is not None:
            # After the last sibling nothing is drawn from q: which token it was is the same.
            together = self._replacement or left == 1
            for probability, rest in _rejections(step.rejected, q, together):
                below = self.outcome(step.residual, rest, left - 1)
                # Added up here, level by level: the branches' different denominators cancel.
                for token, mass in enumerate(below.output):
                    output[token] += probability * mass
                for i, mass in enumerate(below.accepted, 1):
                    accepted[i] += probability * mass
        return TreeOutcome(tuple(accepted), tuple(output))

    def _count(self) -> None:
        self._cases += 1
        if self._max_cases is not None and self._cases > self._max_cases:
            raise TooManyCasesError(f"more than {self._max_cases} cases")


def _rejections(
    rejected: Distribution, q: Distribution, together: bool
) -> Iterator[tuple[Fraction, Distribution]]:
    """Yield the probability of each kind of rejection, and q for the next sibling."""
    if together:
        yield sum(rejected, ZERO), q
        return
    for token, probability in enumerate(rejected):
        if probability:
            rest = (*q[:token], ZERO, *q[token + 1 :])
            yield probability, normalized(rest) or rest


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


def trees_by_size(
    alphas: Sequence[Fraction], c: Fraction, cost: Cost, largest: int
) -> tuple[BestTree, ...]:
    """Return the fastest tree of 0, 1, ... `largest` nodes, each on the best number of levels.

    A level more costs a draft step. Where v is not known, the one with most tokens.
    """

    def value(tree: BestTree) -> tuple[Fraction, Fraction]:
        return tree.speedup or Fraction(0), tree.tokens

    every = [best_trees(alphas, c, cost, largest, levels) for levels in range(1, largest + 1)]
    sizes = range(max(map(len, every), default=0))
    return tuple(max((e[n] for e in every if n < len(e)), key=value) for n in sizes)


def best_tree(alphas: Sequence[Fraction], c: Fraction, cost: Cost, largest: int) -> BestTree:
    """Return the tree with the largest speedup of at most `largest` nodes; none may be the best."""
    best, most = BestTree((), ONE, ONE), ONE
    for tree in trees_by_size(alphas, c, cost, largest):
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
        chains, trees: the fastest of 0, 1, ... nodes on the measured curve.
    """

    alphas: tuple[Fraction, ...]
    shapes: tuple[Shape, ...]
    free: BestTree
    measured: BestTree
    chains: tuple[BestTree, ...]
    trees: tuple[BestTree, ...]


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
        trees_by_size(alphas[:1], c, cost, largest),
        trees_by_size(alphas, c, cost, largest),
    )


def _shape(alphas: tuple[Fraction, ...], widths: tuple[int, ...], c: Fraction, cost: Cost) -> Shape:
    tokens, nodes, steps = shape_tokens(alphas, widths), shape_nodes(widths), len(widths) * c
    free = speedup(tokens, nodes + 1, steps, free_verification)
    return Shape(widths, nodes, tokens, free, speedup(tokens, nodes + 1, steps, cost))
