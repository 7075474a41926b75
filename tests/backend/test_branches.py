"""Trees of tokens: every node has the bits of its path evaluated as a chain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec._types import Int32Array
from edgespec.backend import (
    Context,
    ContextOptions,
    Model,
    ModelOptions,
    RecordedInputs,
    formats_of,
    quantize,
)
from edgespec.errors import CancelledError, ContextFullError, UsageError
from edgespec.gguf.header import read_header
from tests.built_models import write_experts, write_hybrid, write_llama, write_windowed

NODES = 20


def opened(path: Path, *, ours: bool = True) -> Model:
    return Model(path, ModelOptions(formats_of(read_header(path)) if ours else frozenset(), 2))


def context(model: Model, *, threads: int = 2, kv_type: str = "f16", length: int = 800) -> Context:
    options = ContextOptions(
        length, threads, flash_attention=True, outputs=33, batch=256, kv_type=kv_type
    )
    return Context(model, options)


def drawn_tree(model: Model, seed: int) -> tuple[Int32Array, Int32Array]:
    """A random tree, some of whose nodes follow the cache itself."""
    random = np.random.default_rng(seed)
    tokens = random.integers(3, model.vocabulary.size, NODES).astype(np.int32)
    parents = [int(random.integers(max(-1, node - 6), node)) for node in range(NODES)]
    return tokens, np.array(parents, np.int32)


def path_to(parents: Int32Array, node: int) -> Int32Array:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = int(parents[node])
    return np.array(path, np.int32)


def check_tree(model: Model, depth: int, *, threads: int = 2, kv_type: str = "f16") -> None:
    """Compare every node with its path, and what follows a path that was kept with a chain."""
    with context(model, threads=threads, kv_type=kv_type) as one:
        assert one.can_branch() and one.length == 0
        random = np.random.default_rng(depth)
        before = random.integers(3, model.vocabulary.size, depth).astype(np.int32)
        behind = before[: min(depth, 5)]
        tokens, parents = drawn_tree(model, depth)
        one.prefill(before)
        rows = one.evaluate_tree(tokens, parents, NODES).copy()
        one.truncate(depth)
        for node in range(NODES):
            path = path_to(parents, node)
            chain = one.evaluate(tokens[path], len(path))
            assert np.array_equal(chain, rows[path]), node
            expected = one.evaluate(behind, len(behind)).copy()
            one.truncate(depth)
            one.evaluate_tree(tokens, parents, NODES)
            one.keep_path(depth, path)
            assert one.length == one.native_length() == depth + len(path)
            assert np.array_equal(one.evaluate(behind, len(behind)), expected), node
            one.truncate(depth)


@pytest.fixture(scope="module", params=["llama", "experts", "windowed"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write = {"llama": write_llama, "experts": write_experts, "windowed": write_windowed}
    path = folder / "quantized.gguf"
    quantize(write[request.param](folder / "plain.gguf"), path, "Q8_0")
    return path


@pytest.mark.parametrize("depth", [1, 60, 120, 127, 128, 300])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_nodes_have_the_bits_of_chains(tiny: Path, depth: int, kv_type: str) -> None:
    with opened(tiny) as model:
        check_tree(model, depth, kv_type=kv_type)


def test_the_number_of_threads_changes_nothing(tiny: Path) -> None:
    with opened(tiny) as model:
        for threads in (1, 3):
            check_tree(model, 200, threads=threads)


def test_the_default_model(default_model: Path) -> None:
    with opened(default_model) as model:
        check_tree(model, 600)


def test_one_query_with_wide_trees_and_deep_ones(tiny: Path) -> None:
    """All children of one node, and a chain: the widest and the deepest of trees."""
    with opened(tiny) as model, context(model) as one:
        tokens = np.arange(5, 5 + 33, dtype=np.int32)
        one.prefill(tokens[:9])
        chain = one.evaluate(tokens, 33).copy()
        one.truncate(9)
        parents = np.arange(-1, 32, dtype=np.int32)
        assert np.array_equal(one.evaluate_tree(tokens, parents, 33), chain)
        one.truncate(9)
        wide = one.evaluate_tree(tokens, np.full(33, -1, np.int32), 33).copy()
        one.truncate(9)
        for node in range(33):
            assert np.array_equal(one.evaluate(tokens[node : node + 1], 1)[0], wide[node])
            one.truncate(9)


def test_recorded_inputs_follow_the_kept_path(tiny: Path) -> None:
    if read_header(tiny).architecture != "llama":
        pytest.skip(reason="llama.cpp keeps no hidden states of these")
    with opened(tiny) as model, context(model) as one:
        recorded = RecordedInputs(one, [0, 1])
        tokens, parents = drawn_tree(model, 1)
        path = path_to(parents, NODES - 1)
        one.prefill(tokens[:7])
        one.evaluate(tokens[path], 1)
        expected = recorded.rows[: 7 + len(path)].copy()
        one.truncate(7)
        recorded.rows[7:] = 0.0
        one.evaluate_tree(tokens, parents, NODES)
        one.keep_path(7, path)
        assert np.array_equal(recorded.rows[: one.length], expected)
        recorded.close()


def test_a_cancelled_tree_leaves_a_cache_that_can_be_cut(tiny: Path) -> None:
    with opened(tiny) as model, context(model) as one:
        tokens, parents = drawn_tree(model, 2)
        one.prefill(tokens[:8])
        expected = one.evaluate(tokens, NODES).copy()
        one.truncate(8)
        one.cancel()
        with pytest.raises(CancelledError):
            one.evaluate_tree(tokens, parents, NODES)
        one.resume()
        one.truncate(8)
        assert np.array_equal(one.evaluate(tokens, NODES), expected)


def test_a_tree_that_does_not_fit(tiny: Path) -> None:
    with opened(tiny) as model, context(model, length=256) as one:
        tokens, parents = drawn_tree(model, 3)
        one.prefill(np.full(one.capacity - NODES + 1, 5, np.int32))
        with pytest.raises(ContextFullError):
            one.evaluate_tree(tokens, parents, NODES)


def test_where_trees_cannot_be_evaluated(tiny: Path, tmp_path: Path) -> None:
    with opened(tiny) as model, context(model, kv_type="q8_0") as one:
        assert not one.can_branch()
    with opened(tiny, ours=False) as model, context(model) as one:
        assert not one.can_branch()
        with pytest.raises(UsageError):
            one.evaluate_tree(np.ones(2, np.int32), np.array([-1, -1], np.int32), 2)
    path = tmp_path / "hybrid.gguf"
    quantize(write_hybrid(tmp_path / "plain.gguf"), path, "Q8_0")
    with opened(path) as model, context(model) as one:
        assert not one.can_branch()
