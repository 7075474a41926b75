"""Trees that grow: which nodes are thought of, expanded and verified, against brute force."""

from __future__ import annotations

import itertools

import numpy as np

from edgespec.control.controller import DraftBudget
from edgespec.control.stopping import estimate, make_calibration
from edgespec.drafters.growing import (
    add_children,
    as_draft_tree,
    copy_chain,
    learn_path,
    likeliest,
    make_grown_tree,
    most_valuable,
    next_level,
    worth_beginning,
)
from edgespec.speculation.trees import ONE_HOT

K = 8


def budget(slope=0.1, limit=K):
    return DraftBudget(limit, 1.0 + slope * np.arange(limit + 1), np.zeros(limit))


def grown(seed, levels=(3, 4)):
    """A tree whose nodes have three children with shares drawn at random."""
    random, tree, calibration = np.random.default_rng(seed), make_grown_tree(), make_calibration()
    expand = [-1]
    for count in (1, *levels):
        start = int(tree.size[0])
        for node in expand[:count]:
            shares = np.sort(random.dirichlet(np.ones(4)))[::-1][:3].copy()
            tokens = random.choice(100, 3, replace=False).astype(np.int32)
            add_children(tree, node, tokens, shares, calibration)
        expand = sorted(range(start, int(tree.size[0])), key=lambda n: -tree.values[n])
    return tree


def test_the_likeliest_tokens_and_their_shares():
    random = np.random.default_rng(1)
    for _ in range(20):
        logits = random.normal(0, 3, 500).astype(np.float32)
        ids = np.sort(random.choice(500, 200, replace=False)).astype(np.int32)
        tokens, shares = np.zeros(5, np.int32), np.zeros(5)
        assert likeliest(logits, ids, tokens, shares)
        order = ids[np.argsort(-logits[ids], kind="stable")][:5]
        p = np.exp(logits[ids].astype(np.float64))
        assert tokens.tolist() == order.tolist()
        assert np.allclose(shares, np.exp(logits[order].astype(np.float64)) / p.sum(), rtol=1e-4)


def test_broken_logits_are_no_tokens():
    ids, tokens, shares = np.arange(4, dtype=np.int32), np.zeros(2, np.int32), np.zeros(2)
    for wrong in (np.nan, np.inf):
        logits = np.array([0.0, wrong, 1.0, 2.0], np.float32)
        assert not likeliest(logits, ids, tokens, shares)
    assert not likeliest(np.full(4, -np.inf, np.float32), ids, tokens, shares)


def test_values_are_products_of_calibrated_confidences():
    tree, calibration = make_grown_tree(), make_calibration()
    add_children(tree, -1, np.array([5, 6], np.int32), np.array([0.6, 0.3]), calibration)
    add_children(tree, 1, np.array([7], np.int32), np.array([0.9]), calibration)
    first, second = estimate(calibration, 0, 0.3), estimate(calibration, 1, 0.9)
    assert tree.values[2] == first * second
    assert tree.depths[:3].tolist() == [0, 0, 1] and tree.parents[:3].tolist() == [-1, -1, 1]


def test_what_is_verified_is_the_best_tree_of_all():
    for seed, slope in itertools.product(range(8), (0.02, 0.1, 0.3)):
        tree, allowed, spent = grown(seed, (2,)), budget(slope), 0.05
        count = int(tree.size[0])
        chosen = np.zeros(K, np.int32)
        size = most_valuable(tree, allowed, spent, chosen)
        nodes = set(chosen[:size].tolist())
        assert all(tree.parents[node] in nodes | {-1} for node in nodes)
        found = (1 + sum(tree.values[node] for node in nodes)) / (allowed.cycle_s[size] + spent)
        best = 0.0
        for number in range(min(K, count) + 1):
            for subset in itertools.combinations(range(count), number):
                if all(tree.parents[node] in {*subset, -1} for node in subset):
                    expected = 1 + sum(tree.values[node] for node in subset)
                    best = max(best, expected / (allowed.cycle_s[number] + spent))
        assert np.isclose(found, best)


def test_more_is_expanded_where_it_costs_less():
    tree, chosen = grown(2, ()), np.zeros(6, np.int32)
    widths = [
        next_level(tree, 0, budget(0.02), 0.8, 0.1, step_s, 0.3 * step_s, chosen)
        for step_s in (0.0, 0.1, 10.0)
    ]
    assert widths[0] >= widths[1] >= widths[2] == 0
    assert widths[0] == 3
    assert next_level(tree, 3, budget(), 0.8, 0.1, 0.0, 0.0, chosen) == 0, "no such level"


def test_a_copied_chain_is_one_of_the_branches():
    tree, calibration = make_grown_tree(), make_calibration()
    copy_chain(tree, np.array([7, 8, 9], np.int32), np.array([0.5, 0.9, 0.9]))
    add_children(tree, -1, np.array([7, 4], np.int32), np.array([0.97, 0.02]), calibration)
    assert tree.tokens[: tree.size[0]].tolist()[:3] == [7, 8, 9]
    assert tree.values[0] == max(0.5, estimate(calibration, 0, 0.97))
    assert tree.parents[1] == 0 and np.isclose(tree.values[1], 0.45)


def test_a_draft_is_not_asked_where_a_copy_is_nearly_certain():
    sure, open_question = make_grown_tree(), make_grown_tree()
    copy_chain(sure, np.array([7], np.int32), np.array([0.99]))
    copy_chain(open_question, np.array([7], np.int32), np.array([0.2]))
    assert not worth_beginning(sure, budget(0.05), 0.8, 0.1)
    assert worth_beginning(open_question, budget(0.05), 0.8, 0.1)


def test_the_draft_tree_keeps_tokens_and_parents():
    tree = grown(4, (3, 3))
    chosen = np.zeros(K, np.int32)
    size = most_valuable(tree, budget(0.01), 0.0, chosen)
    draft = as_draft_tree(tree, chosen[:size])
    assert draft.tokens.tolist() == tree.tokens[chosen[:size]].tolist()
    assert (draft.rows == ONE_HOT).all()
    for place, node in enumerate(chosen[:size]):
        above = tree.parents[node]
        assert draft.parents[place] == (-1 if above < 0 else list(chosen[:size]).index(above))


def test_acceptances_are_learned_along_the_path_only():
    """Children of what was refused teach nothing; siblings of what was accepted do."""
    tree, calibration = make_grown_tree(), make_calibration()
    add_children(tree, -1, np.array([1, 2], np.int32), np.array([0.6, 0.3]), calibration)
    add_children(tree, 0, np.array([3], np.int32), np.array([0.95]), calibration)
    add_children(tree, 1, np.array([4, 5], np.int32), np.array([0.7, 0.1]), calibration)
    verified = np.arange(5, dtype=np.int32)
    learn_path(tree, verified, np.array([1, 3], np.int32), 3, calibration)
    # 0.6 refused, 0.3 accepted; then 0.7 accepted, 0.1 refused; 0.95 was never judged.
    assert calibration.trials[0].sum() == 2 and calibration.hits[0].sum() == 1
    assert calibration.trials[1].sum() == 2 and calibration.hits[1].sum() == 1
    assert calibration.seen.sum() > 0 and calibration.trials.sum() == 4
    before = calibration.trials.sum()
    learn_path(tree, verified, np.zeros(0, np.int32), 0, calibration)
    assert calibration.trials.sum() == before, "an answer that ended first"
