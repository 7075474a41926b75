"""Trees keep p: in fractions, sampled from the kernels, and wrong rules are caught.

The chi-square tests are as in `test_exactness`: fixed seeds, 1e-3 over the file (Bonferroni).
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from edgespec.lab.trees import siblings
from edgespec.sampling.filters import distribution, make_workspace
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.selection import PURPOSE_ACCEPT, PURPOSE_TARGET, uniform
from edgespec.speculation.acceptance import (
    ACCEPT_COUPLED,
    ACCEPT_REJECTION,
    BROKEN_LOGITS,
    NOTHING_ALLOWED,
    DrawSettings,
    choose,
)
from edgespec.speculation.trees import (
    ONE_HOT,
    DraftTree,
    draw_sibling,
    verify_tree,
)
from tests.speculation.conftest import state_of
from tests.speculation.test_exactness import p_value

FALSE_ALARMS, CASES = 1e-3, 24
DRAWS, DEPTH, V = 60_000, 3, 4
NO_Q = np.zeros((0, 0), np.float32)
FILTERED = SamplingParameters(temperature=0.8, top_k=3, top_p=0.95, min_p=0.02)
UNFILTERED = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PENALTIES = SamplingParameters(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.5, presence_penalty=0.8
)


# ---- in fractions: every way to draw siblings without replacement, and to judge them ----


def judged(p, q, count):
    """Distribution of what `count` siblings of q emit, by enumeration of everything drawn."""
    result = [Fraction(0)] * len(p)

    def follow(weight, p, q, left):
        if left == 0 or not any(q):
            for token, share in enumerate(p):
                result[token] += weight * share
            return
        for token, chance in enumerate(q):
            if chance == 0:
                continue
            accept = min(Fraction(1), p[token] / chance)
            result[token] += weight * chance * accept
            if accept == 1:
                continue
            rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
            without = [Fraction(0) if v == token else share for v, share in enumerate(q)]
            follow(
                weight * chance * (1 - accept),
                [share / sum(rest) for share in rest],
                [share / sum(without) for share in without] if any(without) else without,
                left - 1,
            )

    follow(Fraction(1), p, q, count)
    return result


def test_siblings_keep_p_in_fractions():
    random = np.random.default_rng(5)
    for size, count in itertools.product((2, 3, 4), (1, 2, 3)):
        for _ in range(4):
            p, q = (
                [Fraction(int(w), int(weights.sum())) for w in weights]
                for weights in random.integers(0, 6, (2, size)) + np.eye(1, size, dtype=int)
            )
            assert judged(p, q, count) == p
            assert list(siblings(tuple(p), tuple(q), count, replacement=False).output) == p


# ---- the kernels, in a decoder for a toy model ----

RIGHT, WITH_P, KEEPS_P, OLD_Q, DEAD_ROW, CHOOSY = range(6)
MUTANTS = {
    "siblings are judged by the first p": WITH_P,
    "the rest is drawn from p": KEEPS_P,
    "q is not normalized without earlier siblings": OLD_Q,
    "logits of a dead branch": DEAD_ROW,
    "children are kept for what they are": CHOOSY,
}


@kernel
def _draw_tree(history, length, widths, kinds, q_rows, settings, draft, tree, support, mutant):
    """Draw level by level; the number of nodes. kinds: by place among siblings, drawn or not."""
    seed = settings.seed
    count, level_start, level_end, rows = 0, -1, 0, 0
    path = np.zeros(8, np.int32)
    for depth in range(len(widths)):
        first = count
        for parent in range(level_start, level_end):
            node, above = parent, 0
            while node >= 0:
                path[above] = tree.tokens[node]
                node = tree.parents[node]
                above += 1
            for i in range(above):
                history[length + i] = path[above - 1 - i]
            logits = q_rows[state_of(history, length + above)].copy()
            found = distribution(
                logits, history, length + above, draft, tree.q[rows], support, seed, 0, 0.0
            )
            drawn = np.zeros(8, np.int32)
            for number in range(widths[depth]):
                if kinds[number] == ONE_HOT:
                    token = (state_of(history, length + above) + number) % q_rows.shape[1]
                    for other in drawn[:number]:
                        if other == token:
                            token = (token + 1) % q_rows.shape[1]
                else:
                    token = draw_sibling(
                        tree.q[rows], support.tokens, found, drawn, number, seed, length + above
                    )
                if token < 0:
                    break
                drawn[number] = token
                if mutant == CHOOSY and token % 2 == 1:
                    continue
                tree.tokens[count], tree.parents[count] = token, parent
                tree.rows[count] = ONE_HOT if kinds[number] == ONE_HOT else rows
                count += 1
            rows += 1
        level_start, level_end = first, count
    return count


@kernel
def _mutant_walk(logits, history, length, tree, settings, p, work, out, path, mutant):
    """`verify_tree` for siblings that were drawn, with one mistake."""
    node, depth = -1, 0
    while True:
        position = length + depth
        row = 0 if mutant == DEAD_ROW else node + 1
        count = distribution(
            logits[row], history, length + depth, settings.arguments, p, work, settings.seed,
            position,
        )  # fmt: skip
        first, found, number, used = p.copy(), -1, 0, 0.0
        for child in range(node + 1, len(tree.tokens)):
            if tree.parents[child] != node:
                continue
            token, q = tree.tokens[child], tree.q[tree.rows[child]]
            scale = 1.0 if mutant == OLD_Q else 1.0 / max(1.0 - used, 1e-7)
            judge = first if mutant == WITH_P else p
            chance = uniform(settings.seed, position, PURPOSE_ACCEPT + 8 * number)
            if chance * q[token] * scale < judge[token]:
                found = child
                break
            total = 0.0
            for i in range(count):
                v = work.tokens[i]
                p[v] = max(p[v] - scale * q[v], 0.0)
                total += p[v]
            for i in range(count):
                p[work.tokens[i]] /= max(total, 1e-9)
            used += q[token]
            number += 1
        if found < 0:
            last = first if mutant == KEEPS_P else p
            out[depth] = choose(
                last, work.tokens, count, 0, settings.seed, position, PURPOSE_TARGET
            )
            return depth
        out[depth] = history[length + depth] = tree.tokens[found]
        node = found
        path[depth] = node
        depth += 1


@kernel
def _count_texts(
    p_rows, q_rows, widths, kinds, rule, target, draft, mutant, draws, mu, work, support, counts,
    lengths,
):  # fmt: skip
    """Histogram of the first `DEPTH` tokens over many seeds; `lengths` of accepted paths."""
    n_vocab = p_rows.shape[1]
    history, p = np.zeros(64, np.int32), np.zeros(n_vocab, np.float32)
    out, path = np.zeros(16, np.int32), np.zeros(16, np.int32)
    whole = DraftTree(
        np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros(64, np.int32),
        np.zeros((64, n_vocab), np.float32),
    )  # fmt: skip
    logits, above = np.zeros((65, n_vocab), np.float32), np.zeros(16, np.int32)
    for draw in range(draws):
        settings = DrawSettings(rule, target, draw, 0, mu)
        length = 1
        while length < 1 + DEPTH:
            size = _draw_tree(
                history, length, widths, kinds, q_rows, settings, draft, whole, support, mutant
            )
            tree = DraftTree(whole.tokens[:size], whole.parents[:size], whole.rows[:size], whole.q)
            for row in range(size + 1):
                node, depth = row - 1, 0
                while node >= 0:
                    above[depth] = tree.tokens[node]
                    node = tree.parents[node]
                    depth += 1
                for i in range(depth):
                    history[length + i] = above[depth - 1 - i]
                logits[row] = p_rows[state_of(history, length + depth)]
            rows = logits[: size + 1]
            if mutant in (RIGHT, CHOOSY):
                a = verify_tree(rows, history, length, tree, settings, p, work, out, path)
            else:
                a = _mutant_walk(rows, history, length, tree, settings, p, work, out, path, mutant)
            for i in range(a + 1):
                history[length + i] = out[i]
            lengths[a] += 1
            length += a + 1
        cell = 0
        for i in range(DEPTH):
            cell = cell * n_vocab + history[1 + i]
        counts[cell] += 1


def sampled(toy, parameters, widths, kinds, *, rule=ACCEPT_REJECTION, mutant=RIGHT, seed=0):
    """The p-value of many texts, and how long the accepted paths were."""
    case = toy.Case(toy.rows(seed, V), toy.rows(seed + 100, V), parameters, UNFILTERED, 1)
    counts, lengths = np.zeros(V**DEPTH, np.int64), np.zeros(16, np.int64)
    _count_texts(
        case.p_rows,
        case.q_rows,
        np.array(widths),
        np.array(kinds),
        rule,
        parameters.filter_arguments(),
        UNFILTERED.filter_arguments(),
        mutant,
        DRAWS,
        np.zeros(1),
        make_workspace(V, 64),
        make_workspace(V, 64),
        counts,
        lengths,
    )
    return p_value(counts, toy.exact(case, DEPTH)), lengths


SHAPES = {
    "chain": ((1, 1, 1), (0,)),
    "siblings": ((3,), (0, 0, 0)),
    "all tokens": ((V,), (0,) * V),
    "tree": ((2, 2, 1), (0, 0)),
    "not drawn": ((2, 2, 1), (ONE_HOT, ONE_HOT)),
    "copied first, then drawn": ((3, 2), (ONE_HOT, 0, 0)),
    "drawn first, then copied": ((3, 2), (0, ONE_HOT, 0)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parameters", [UNFILTERED, FILTERED, PENALTIES])
def test_trees_keep_p(toy, shape, parameters):
    found, lengths = sampled(toy, parameters, *SHAPES[shape])
    assert found > FALSE_ALARMS / CASES
    assert lengths[1:].any() or shape == "all tokens"


@pytest.mark.parametrize("shape", ["tree", "not drawn"])
def test_coupled_trees_keep_p(toy, shape):
    found, _ = sampled(toy, FILTERED, *SHAPES[shape], rule=ACCEPT_COUPLED)
    assert found > FALSE_ALARMS / CASES


def test_siblings_are_accepted_as_often_as_theory_says(toy):
    """More siblings, more acceptances: by the numbers of `edgespec lab`."""
    _, one = sampled(toy, UNFILTERED, (1,), (0,))
    _, three = sampled(toy, UNFILTERED, (3,), (0, 0, 0))
    assert three[1] / three.sum() > one[1] / one.sum() + 0.1


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rules_are_caught(toy, mutant):
    widths, kinds = ((1, 1, 1), (0,)) if MUTANTS[mutant] == DEAD_ROW else ((3, 2), (0, 0, 0))
    found, _ = sampled(toy, UNFILTERED, widths, kinds, mutant=MUTANTS[mutant])
    assert found < FALSE_ALARMS / CASES


def test_the_mutants_walk_is_right_without_a_mistake(toy):
    found, _ = sampled(toy, UNFILTERED, (3, 2), (0, 0, 0), mutant=99)
    assert found > FALSE_ALARMS / CASES


# ---- edges ----


def walk(logits, tree, *, temperature=0.0, seed=0, length=1):
    arguments = SamplingParameters(
        temperature=temperature, top_k=0, top_p=1.0, min_p=0.0
    ).filter_arguments()
    settings = DrawSettings(ACCEPT_REJECTION, arguments, seed)
    n_vocab = logits.shape[1]
    history, out, path = (np.zeros(32, np.int32) for _ in range(3))
    a = verify_tree(
        np.ascontiguousarray(logits, np.float32),
        history,
        length,
        tree,
        settings,
        np.zeros(n_vocab, np.float32),
        make_workspace(n_vocab, 32),
        out,
        path,
    )
    return a, out[: max(a, 0) + 1].tolist(), path[: max(a, 0)].tolist(), history


def chain_tree(tokens):
    """A chain of tokens that were not drawn."""
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    return DraftTree(tokens, parents, np.full(len(tokens), ONE_HOT, np.int32), NO_Q)


def test_greedy_takes_the_path_that_the_target_takes():
    logits = np.zeros((6, 5))
    for row, token in enumerate([2, 0, 3, 0, 4, 1]):
        logits[row, token] = 9.0
    parents = np.array([-1, -1, 1, 1, 3], np.int32)
    tokens = np.array([1, 2, 0, 3, 4], np.int32)
    tree = DraftTree(tokens, parents, np.full(5, ONE_HOT, np.int32), NO_Q)
    # Row 0 says 2: node 1; its row 2 says 3: node 3; its row 4 says 4: node 4; row 5 says 1.
    a, emitted, path, history = walk(logits, tree)
    assert (a, emitted, path) == (3, [2, 3, 4, 1], [1, 3, 4])
    assert history[1:4].tolist() == [2, 3, 4]


def test_a_chain_of_copied_tokens_is_verified_as_a_chain():
    logits = np.random.default_rng(3).normal(size=(5, 6)).astype(np.float32)
    from edgespec.speculation.acceptance import verify_chain

    for seed in range(50):
        proposals = np.random.default_rng(seed).integers(0, 6, 4).astype(np.int32)
        a, emitted, _, _ = walk(logits, chain_tree(proposals), temperature=1.0, seed=seed)
        history, out = np.zeros(32, np.int32), np.zeros(8, np.int32)
        history[1:5] = proposals
        arguments = UNFILTERED.filter_arguments()
        expected = verify_chain(
            logits.copy(), history, 1, 4, NO_Q, DrawSettings(ACCEPT_REJECTION, arguments, seed),
            np.zeros(6, np.float32), make_workspace(6, 32), out,
        )  # fmt: skip
        assert (a, emitted) == (expected, out[: a + 1].tolist())


def test_no_tree_is_plain_decoding():
    logits = np.array([[0.0, 3.0, 1.0]])
    assert walk(logits, chain_tree(np.zeros(0, np.int32)))[:2] == (0, [1])


def test_broken_logits_are_said():
    tree = chain_tree(np.array([1], np.int32))
    broken = np.array([[0.0, 5.0], [np.nan, 0.0]])
    assert walk(broken, tree)[0] == BROKEN_LOGITS
    assert walk(np.full((1, 2), -np.inf), chain_tree(np.zeros(0, np.int32)))[0] == NOTHING_ALLOWED


def test_p_equal_to_q_accepts_the_first_and_divides_by_nothing():
    q = np.array([[0.25, 0.75, 0.0]], np.float32)
    logits = np.log(np.array([[0.25, 0.75, 1e-30]] * 3))
    for seed in range(200):
        tree = DraftTree(
            np.array([1, 0], np.int32), np.full(2, -1, np.int32), np.zeros(2, np.int32), q
        )
        a, emitted, _, _ = walk(logits, tree, temperature=1.0, seed=seed)
        assert a == 1 and emitted[0] == 1
