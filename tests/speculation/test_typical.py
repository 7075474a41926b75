"""Typical acceptance: the kernels against the rule written down again in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec import SamplingParameters
from edgespec.sampling.filters import make_workspace
from edgespec.sampling.selection import PURPOSE_TARGET
from edgespec.speculation.acceptance import (
    ACCEPT_REJECTION,
    ACCEPT_TYPICAL,
    choose,
    draw_settings,
    is_lossy,
    repeatable_rule,
    verify_chain,
)
from edgespec.speculation.trees import ONE_HOT, DraftTree, verify_tree

V, CASES = 8, 400
NO_Q = np.zeros((0, 0), np.float32)


def sampling(temperature=1.0, seed=0):
    return SamplingParameters(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)


def softmax(row):
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def plain_draw(p, seed, position):
    """Plain sampling's own token; from the kernel, which other tests judge."""
    return choose(
        p.astype(np.float32), np.arange(V, dtype=np.int32), V, 0, seed, position, PURPOSE_TARGET
    )


def twin(logits, parents, tokens, seed, length=1):
    """Accepted nodes and emitted tokens, by the words of the paper."""
    node, path, emitted = -1, [], []
    while True:
        p = softmax(logits[node + 1])
        entropy = -sum(x * np.log(x) for x in p if x > 0)
        enough = min(0.09, 0.3 * np.exp(-entropy))
        children = [i for i, parent in enumerate(parents) if parent == node]
        passing = [i for i in children if p[tokens[i]] >= enough]
        if passing:
            node = max(passing, key=lambda i: (p[tokens[i]], -i))
        else:
            token = plain_draw(p, seed, length + len(emitted))
            same = [i for i in children if tokens[i] == token]
            if not same:
                return path, [*emitted, token]
            node = same[0]
        path.append(node)
        emitted.append(int(tokens[node]))


def random_tree(random, chain):
    size = int(random.integers(1, 9))
    parents = [i - 1 if chain else int(random.integers(-1, i)) for i in range(size)]
    tokens = list[int]()
    for i, parent in enumerate(parents):
        taken = {tokens[j] for j in range(i) if parents[j] == parent}
        tokens.append(int(random.choice([t for t in range(V) if t not in taken])))
    return parents, tokens


def kernels(logits, parents, tokens, settings, chain):
    out, path, history = (np.zeros(32, np.int32) for _ in range(3))
    p, workspace = np.zeros(V, np.float32), make_workspace(V, 32)
    size = len(tokens)
    if chain:
        history[1 : 1 + size] = tokens
        q = np.full((size, V), 1 / V, np.float32)  # drawn: the rule asks only p
        count = verify_chain(logits, history, 1, size, q, settings, p, workspace, out)
        return list(range(count)), out[: count + 1].tolist()
    tree = DraftTree(
        np.array(tokens, np.int32), np.array(parents, np.int32),
        np.full(size, ONE_HOT, np.int32), NO_Q,
    )  # fmt: skip
    count = verify_tree(logits, history, 1, tree, settings, p, workspace, out, path)
    return path[:count].tolist(), out[: count + 1].tolist()


@pytest.mark.parametrize("chain", [True, False])
def test_kernels_are_the_rule(chain):
    refused = accepted = 0
    for seed in range(CASES):
        random = np.random.default_rng(seed)
        parents, tokens = random_tree(random, chain)
        scale = random.choice([0.3, 1.0, 3.0])  # entropies from almost 0 to almost log V
        logits = random.normal(size=(len(tokens) + 1, V), scale=scale).astype(np.float32)
        settings = draw_settings(sampling(seed=seed), "typical")
        path, emitted = kernels(logits.copy(), parents, tokens, settings, chain)
        assert (path, emitted) == twin(logits, parents, tokens, seed)
        accepted += len(path)
        refused += len(path) < len(tokens)
    assert accepted > CASES / 2 and refused > CASES / 4


@pytest.mark.parametrize("chain", [True, False])
def test_at_temperature_0_it_is_greedy(chain):
    for seed in range(100):
        random = np.random.default_rng(seed)
        parents, tokens = random_tree(random, chain)
        logits = random.normal(size=(len(tokens) + 1, V)).astype(np.float32)
        results = [
            kernels(logits.copy(), parents, tokens, draw_settings(sampling(0.0), rule), chain)
            for rule in ("typical", "greedy")
        ]
        assert results[0] == results[1]


def test_nothing_stands_for_it():
    for temperature in (0.0, 1.0):
        assert draw_settings(sampling(temperature), "auto").rule == ACCEPT_REJECTION
        assert not is_lossy(draw_settings(sampling(temperature), repeatable_rule("auto")))
    assert repeatable_rule("typical") == "typical"
    assert draw_settings(sampling(), "typical").rule == ACCEPT_TYPICAL
    assert is_lossy(draw_settings(sampling(), "typical"))
    assert not is_lossy(draw_settings(sampling(0.0), "typical"))  # it changes nothing
