"""Trees by alpha of each rank, against every tree there is and against drawn acceptances."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.lab.theory import MeasuredCost, expected_tokens, free_verification
from edgespec.lab.trees import best_tree, best_trees, shape_tokens, tree_tokens, trees_by_size

RANKS = (Fraction(2, 5), Fraction(3, 20), Fraction(2, 25))
MOST = 4


def every_tree(ranks, most):
    """All trees of up to `most` nodes, each a set of paths with all that is above them."""
    found, frontier = {frozenset()}, {frozenset()}
    for _ in range(most):
        frontier = {
            tree | {(*parent, rank)}
            for tree in frontier
            for parent in (*tree, ())
            for rank in range(ranks)
            if (*parent, rank) not in tree
        }
        found |= frontier
    return found


def enumerated(alphas, tree):
    """Expected tokens: every sequence of right ranks, followed down the tree."""
    none = len(alphas)
    chances = [*alphas, 1 - sum(alphas)]
    depth = max(map(len, tree), default=0)
    total = Fraction(0)
    for right in itertools.product(range(none + 1), repeat=depth):
        chance, length = Fraction(1), 0
        for rank in right:
            chance *= chances[rank]
        while length < depth and right[: length + 1] in tree:
            length += 1
        total += chance * (length + 1)
    return total


def test_tokens_are_those_of_every_outcome() -> None:
    for tree in every_tree(2, 3):
        assert tree_tokens(RANKS[:2], sorted(tree)) == enumerated(RANKS[:2], tree)


def test_a_shape_is_a_tree_with_all_its_nodes() -> None:
    widths = (3, 2, 1)
    nodes = [
        path
        for depth in range(1, len(widths) + 1)
        for path in itertools.product(*(range(width) for width in widths[:depth]))
    ]
    assert shape_tokens(RANKS, widths) == enumerated(RANKS, set(nodes))
    assert shape_tokens(RANKS, (1, 1, 1)) == expected_tokens(RANKS[0], 3)
    assert shape_tokens(RANKS, (9,)) == 1 + sum(RANKS)


weights = st.lists(st.integers(0, 5), min_size=2, max_size=3).filter(any)


@settings(max_examples=40, deadline=None)
@given(weights, st.fractions(0, 1, max_denominator=8), st.lists(st.integers(1, 9), min_size=4))
def test_the_best_is_the_best_of_all(weights, c, steps) -> None:
    alphas = tuple(Fraction(weight, sum(weights) + 1) for weight in weights)
    costs = list(itertools.accumulate(steps[:MOST], initial=10))
    cost = MeasuredCost({n: Fraction(value, 10) for n, value in enumerate(costs, 1)})
    largest = {n: Fraction(0) for n in range(MOST + 1)}
    best = Fraction(0)
    for tree in every_tree(len(alphas), MOST):
        tokens, depth = tree_tokens(alphas, sorted(tree)), max(map(len, tree), default=0)
        largest[len(tree)] = max(largest[len(tree)], tokens)
        best = max(best, tokens / (cost(len(tree) + 1) + depth * c))
    assert best_tree(alphas, c, cost, MOST).speedup == best
    for tree in best_trees(alphas, c, cost, MOST, MOST):
        assert tree.tokens == largest[len(tree.nodes)]


def test_a_tree_beats_every_chain_where_a_second_rank_is_worth_it() -> None:
    tree = best_tree(RANKS, Fraction(1, 10), free_verification, 8)
    chains = [expected_tokens(RANKS[0], k) / (1 + Fraction(k, 10)) for k in range(9)]
    assert tree.speedup is not None and tree.speedup > max(chains)
    assert tree.widths[0] == 3


@pytest.mark.parametrize("largest", [0, 3])
def test_without_a_right_token_there_is_no_tree(largest) -> None:
    assert best_tree((Fraction(0),), Fraction(0), free_verification, largest).nodes == ()


def test_trees_of_each_size_are_the_fastest() -> None:
    c = Fraction(1, 20)

    def cost(n: int) -> Fraction:
        return 1 + Fraction(n - 1, 10)

    def speedup(tree: frozenset[tuple[int, ...]]) -> Fraction:
        levels = max(map(len, tree), default=0)
        return tree_tokens(RANKS, tuple(tree)) / (cost(len(tree) + 1) + c * levels)

    found = trees_by_size(RANKS, c, cost, MOST)
    every = every_tree(len(RANKS), MOST)
    for size, tree in enumerate(found):
        assert len(tree.nodes) == size
        assert tree.speedup == max(speedup(other) for other in every if len(other) == size)
