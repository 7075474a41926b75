"""Medusa heads against their formulas in NumPy, and the states that they read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from edgespec.backend import (
    Context,
    ContextOptions,
    FinalStates,
    Model,
    ModelOptions,
    ParallelContext,
    formats_of,
    open_heads,
)
from edgespec.gguf.header import read_header

WIDTH, TOKENS = 256, 100
TEXT = np.array([1, 504, 2, 90, 17, 4093, 28, 5, 1000, 77], np.int32)


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
@pytest.mark.parametrize(("shared", "projected"), [(True, True), (False, False), (False, True)])
def test_heads_compute_their_formula(
    ours: bool, kind: str, shared: bool, projected: bool, built_models: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "heads.gguf"
    weights = built_models.write_medusa(
        path,
        WIDTH,
        np.arange(TOKENS),
        shared=shared,
        projected=projected,
        quantization=GGMLQuantizationType[kind],
    )
    heads = open_heads(read_header(path), 2, ours=ours)
    random = np.random.default_rng(1)
    found = []
    for threads in (1, 2):
        heads.use_threads(threads)
        for state in random.standard_normal((2, WIDTH)).astype(np.float32):
            heads.state[:] = state
            heads.compute()
            expected = weights.logits(state)
            # Activations are rounded to 8 bits before each of three products.
            assert np.abs(heads.logits - expected).max() < 0.02 * np.abs(expected).max()
            found.append(heads.logits.copy())
    heads.state[:] = np.random.default_rng(1).standard_normal(WIDTH).astype(np.float32)
    heads.compute()
    assert np.array_equal(heads.logits, found[0])  # whatever was computed before
    heads.close()


@pytest.fixture(scope="module", params=["edgespec", "llama.cpp"])
def model(request: pytest.FixtureRequest, default_model: Path) -> Iterator[Model]:
    formats = formats_of(read_header(default_model)) if request.param == "edgespec" else frozenset()
    with Model(default_model, ModelOptions(formats, 2)) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(model: Model) -> np.ndarray:
    """The state after each token of the text, one token at a time, in a context of another kind."""
    rows = []
    with ParallelContext(model, 1, 64, threads=2) as context:
        context.begin(0, TEXT[:1])
        for token in TEXT[1:]:
            rows.append(context.step(np.zeros(1, np.int32), token[None]).hidden[0].copy())
    return np.array([np.full_like(rows[0], np.nan), *rows])


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    options = ContextOptions(
        length=64, threads=2, outputs=8, batch=16, flash_attention=model.exact_attention
    )
    with Context(model, options) as opened:
        yield opened


def close(found: np.ndarray | None, expected: np.ndarray) -> bool:
    assert found is not None
    return bool(np.abs(found - expected).max() < 2e-2 * np.abs(expected).max())


def test_states_are_those_of_the_last_evaluation(context: Context, expected: np.ndarray) -> None:
    states = FinalStates(context)
    context.prefill(TEXT[:3])
    assert states.at(2) is None and states.at(0) is None
    context.evaluate(TEXT[3:7], 4)
    assert states.at(2) is None and states.at(7) is None
    assert all(close(states.at(p), expected[p]) for p in range(3, 7))
    context.evaluate(TEXT[7:9], 1)  # not all of them have logits
    assert all(states.at(p) is None for p in range(10))
    context.truncate(8)
    context.evaluate(TEXT[8:9], 1)
    assert close(states.at(8), expected[8])
    state = context.save_state()
    context.restore_state(state)  # it may be another text's
    assert states.at(8) is None
    states.close()
    context.evaluate(TEXT[9:10], 1)
    assert states.at(9) is None


def test_a_path_of_a_tree_has_its_own_states(context: Context, expected: np.ndarray) -> None:
    if not context.can_branch():
        pytest.skip("these kernels evaluate no trees")
    states = FinalStates(context)
    context.prefill(TEXT[:5])
    tokens = np.array([TEXT[5], 9, TEXT[6], 11, TEXT[7]], np.int32)
    context.evaluate_tree(tokens, np.array([-1, 0, 0, 1, 2], np.int32), 5)
    context.keep_path(5, np.array([0, 2, 4], np.int32))
    assert all(close(states.at(p), expected[p]) for p in range(5, 8))
    assert states.at(8) is None
    context.truncate(7)  # a text that ended inside of what was accepted
    assert close(states.at(6), expected[6])


def test_reading_states_changes_no_bit(context: Context) -> None:
    def logits() -> list[np.ndarray]:
        context.clear()
        context.prefill(TEXT[:4])
        return [context.evaluate(TEXT[4:7], 3).copy(), context.evaluate(TEXT[7:9], 2).copy()]

    before = logits()
    states = FinalStates(context)
    assert all(map(np.array_equal, logits(), before))
    states.close()
    assert all(map(np.array_equal, logits(), before))
    context.clear()
    context.prefill(np.tile(TEXT, 4))  # more tokens than rows of logits fit
    assert context.length == 40
