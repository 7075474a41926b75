"""The context of an EAGLE-3 head against its formulas in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec.backend import (
    Context,
    ContextOptions,
    HeadContext,
    Model,
    RecordedInputs,
    capabilities,
)
from edgespec.errors import CancelledError, ContextFullError

pytestmark = pytest.mark.skipif(
    not capabilities().eagle, reason="this build of llama.cpp cannot run EAGLE-3 heads"
)

HEADS, KEYS, EPSILON, BASE = 9, 3, 1e-5, 10000.0
OPTIONS = ContextOptions(length=128, threads=2, batch=16, outputs=16, kv_type="f32")


@pytest.fixture(scope="module")
def target(default_model: Path) -> Iterator[Context]:
    with (
        Model(default_model) as model,
        Context(model, ContextOptions(length=256, threads=2, batch=32)) as context,
    ):
        yield context


@pytest.fixture(scope="module", params=["borrowed", "own"])
def head_file(
    request: Any, built_models: ModuleType, default_model: Path, tmp_path_factory: Any
) -> Path:
    return built_models.write_eagle(
        default_model,
        tmp_path_factory.mktemp("heads") / f"{request.param}.gguf",
        np.arange(7, 49152, 97),
        own_embedding=request.param == "own",
        quantization=gguf.GGMLQuantizationType.F32,
    )


@pytest.fixture(scope="module")
def head(head_file: Path, target: Context) -> Iterator[HeadContext]:
    with Model(head_file) as model, HeadContext(model, OPTIONS, target) as context:
        yield context


@pytest.fixture(scope="module")
def text(target: Context) -> np.ndarray:
    return target.model.vocabulary.tokenize("Rivers carry sand from the hills to the sea. " * 5)


def weights(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Those whose names begin so."""
    return {
        t.name: np.array(t.data)
        if t.tensor_type == gguf.GGMLQuantizationType.I64
        else gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64)
        for t in gguf.GGUFReader(path).tensors
        if t.name.startswith(names)
    }


def norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def rotate(x: np.ndarray) -> np.ndarray:
    """Pairs of neighbours, by the position in the first dimension; x is (n, heads, width)."""
    n, _, width = x.shape
    angle = np.outer(np.arange(n), BASE ** (-np.arange(0, width, 2) / width))[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    turned[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return turned


def formulas(
    w: dict[str, np.ndarray], embedded: np.ndarray, states: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the draft tokens and states, at every entry."""
    n, width = states.shape
    part = width // HEADS
    x = np.concatenate([norm(embedded), norm(states)], -1)
    q = rotate((x @ w["blk.0.attn_q.weight"].T).reshape(n, HEADS, part))
    k = rotate((x @ w["blk.0.attn_k.weight"].T).reshape(n, KEYS, part))
    v = (x @ w["blk.0.attn_v.weight"].T).reshape(n, KEYS, part)
    k, v = (np.repeat(a, HEADS // KEYS, 1) for a in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(part)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", shares, v).reshape(n, -1)
    middle = states + attended @ w["blk.0.attn_output.weight"].T
    gate = norm(middle) @ w["blk.0.ffn_gate.weight"].T
    inner = gate / (1 + np.exp(-gate)) * (norm(middle) @ w["blk.0.ffn_up.weight"].T)
    after = middle + inner @ w["blk.0.ffn_down.weight"].T
    return norm(after) @ w["output.weight"].T, after


def test_fusion_and_steps_follow_the_formulas(
    head: HeadContext, head_file: Path, target: Context, text: np.ndarray, default_model: Path
) -> None:
    tokens = text[:40]
    recorded = RecordedInputs(target, head.model.header.eagle.layers)
    target.clear()
    target.prefill(tokens)  # more than one evaluation
    features = recorded.rows[: len(tokens)].copy()
    recorded.close()
    w = weights(head_file, "blk.0.", "fc", "output", "token_embd", "d2t")
    table = w.get("token_embd.weight")
    if table is None:
        table = weights(default_model, "token_embd")["token_embd.weight"]

    states = head.fuse(features[:-1])
    expected = features[:-1].astype(np.float64) @ w["fc.weight"].T
    np.testing.assert_allclose(states, expected, rtol=2e-4, atol=2e-3 * np.abs(expected).std())

    head.clear()
    logits, state = head.step(tokens[1:], states)
    # Two drafted entries, each continuing from the state before it.
    drafted, rows, last = [1094, 253], [logits.copy()], [state.copy()]
    for token in drafted:
        logits, state = head.step(np.array([token], np.int32), state)
        rows.append(logits.copy())
        last.append(state.copy())
    assert head.length == head.native_length() == len(tokens) - 1 + 2
    expected = np.concatenate([states.astype(np.float64), last[0], last[1]])
    embedded = table[[*tokens[1:], *drafted]]
    oracle, after = formulas(w, embedded, expected)
    for got, got_state, at in zip(rows, last, (-3, -2, -1), strict=True):
        assert np.isfinite(got).sum() == len(w["d2t"])
        np.testing.assert_allclose(got[w["d2t"]], oracle[at], atol=2e-3 * oracle.std())
        np.testing.assert_allclose(got_state[0], after[at], atol=2e-3 * after.std())


def test_entries_may_come_in_any_portions(
    head: HeadContext, target: Context, text: np.ndarray
) -> None:
    random = np.random.default_rng(0)
    states = random.normal(0, 1, (50, head.model.embedding_length)).astype(np.float32)
    head.clear()
    whole = [a.copy() for a in head.step(text[:50], states)]
    for portions in ([50], [1] * 50, [17, 16, 15, 2], [33, 17]):
        head.clear()
        start = 0
        for count in portions:
            result = head.step(text[start : start + count], states[start : start + count])
            start += count
        assert np.array_equal(result[0], whole[0])
        assert np.array_equal(result[1], whole[1])
    head.truncate(20)
    result = head.step(text[20:50], states[20:])
    assert np.array_equal(result[0], whole[0])


def test_full_and_cancelled(head: HeadContext, text: np.ndarray) -> None:
    states = np.ones((129, head.model.embedding_length), np.float32)
    tokens = np.resize(text, 129)
    head.clear()
    with pytest.raises(ContextFullError):
        head.step(tokens, states)
    head.step(tokens[:128], states[:128])
    head.truncate(10)
    head.cancel()
    with pytest.raises(CancelledError):
        head.step(tokens[:40], states[:40])
    assert head.length == head.native_length() <= 10 + 32
    head.resume()
    head.truncate(10)
    head.step(tokens[:1], states[:1])
    assert head.length == head.native_length() == 11
