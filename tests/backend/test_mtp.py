"""MTP layers: what they compute, against NumPy on a file's weights by the layer's definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec.backend import (
    Context,
    ContextOptions,
    Model,
    ModelOptions,
    MTPContext,
    RecordedOutputs,
    capabilities,
)

pytestmark = pytest.mark.skipif(
    not capabilities().mtp, reason="this build of llama.cpp cannot run MTP layers"
)

OPTIONS = ContextOptions(length=128, outputs=8, batch=16, kv_type="f32")
ROTATED, BASE, EPSILON = 16, 10000.0, 1e-5


@pytest.fixture(scope="module", params=["qwen35", "glm4moe"])
def path(request: Any, built_models: ModuleType, tmp_path_factory: Any) -> Path:
    """A hybrid of gated delta nets and attention, and one of experts."""
    write: Callable[..., Path] = getattr(built_models, f"write_{request.param}")
    return write(tmp_path_factory.mktemp("mtp") / f"{request.param}.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model(path, ModelOptions(mtp=True)) as model:
        yield model


@pytest.fixture
def opened(model: Model) -> Iterator[tuple[Context, MTPContext, RecordedOutputs]]:
    with Context(model, OPTIONS) as target, MTPContext(model, OPTIONS) as layers:
        yield target, layers, RecordedOutputs(target)


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, 40).astype(np.int32)


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def rotate(heads: np.ndarray) -> np.ndarray:
    """Rotate the front of each head by its position, pairs half the rotated width apart."""
    half = ROTATED // 2
    angle = np.arange(len(heads))[:, None] * BASE ** (-np.arange(half) / half)
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    one, other = heads[..., :half], heads[..., half:ROTATED]
    turned = [one * cosine - other * sine, one * sine + other * cosine, heads[..., ROTATED:]]
    return np.concatenate(turned, -1)


class Layer:
    """The MTP layer of a file, of Qwen3.5 or GLM-4.5."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.all = {t.name: np.array(t.data, np.float64) for t in reader.tensors}
        self.arch = str(reader.fields["general.architecture"].contents())
        layers = int(reader.fields[f"{self.arch}.block_count"].contents())
        self.front = f"blk.{layers - 1}."

    def weight(self, name: str) -> np.ndarray:
        return self.all[f"{self.front}{name}.weight"]

    def run(self, tokens: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits and states of entries made of these tokens and states, from position 0 on."""
        embedding = self.all["token_embd.weight"][tokens]
        both = (
            norm(embedding, self.weight("nextn.enorm")),
            norm(states.astype(np.float64), self.weight("nextn.hnorm")),
        )
        x = np.concatenate(both, -1) @ self.weight("nextn.eh_proj").T
        x = x + self.attend(norm(x, self.weight("attn_norm")))
        y = norm(x, self.weight("post_attention_norm"))
        x = x + (self.experts(y) if self.arch == "glm4moe" else self.dense(y, ""))
        states = norm(x, self.weight("nextn.shared_head_norm"))
        return states @ self.all["output.weight"].T, states

    def attend(self, x: np.ndarray) -> np.ndarray:
        count, width, heads = len(x), 32, 2
        q = (x @ self.weight("attn_q").T).reshape(count, heads, -1)
        k = (x @ self.weight("attn_k").T).reshape(count, 1, width)
        v = x @ self.weight("attn_v").T
        gate = np.ones((count, heads, width))
        if self.arch == "qwen35":
            q, gate = q[..., :width], sigmoid(q[..., width:])
            q, k = norm(q, self.weight("attn_q_norm")), norm(k, self.weight("attn_k_norm"))
        q, k = rotate(q), rotate(k)
        scores = np.einsum("ihd,jkd->hij", q, k) / np.sqrt(width)
        scores[:, ~np.tri(count, dtype=bool)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jd->ihd", shares, v) * gate
        return mixed.reshape(count, -1) @ self.weight("attn_output").T

    def dense(self, x: np.ndarray, end: str, expert: Any = ...) -> np.ndarray:
        up, gate, down = (self.weight(f"ffn_{n}{end}")[expert] for n in ("up", "gate", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def experts(self, x: np.ndarray) -> np.ndarray:
        scores = sigmoid(x @ self.weight("ffn_gate_inp").T)
        bias = self.all[f"{self.front}exp_probs_b.bias"]
        chosen = np.argsort(-(scores + bias), -1)[:, :2]
        result = self.dense(x, "_shexp")
        for row, experts in enumerate(chosen):
            total = scores[row, experts].sum()
            for expert in experts:
                share = scores[row, expert] / total
                result[row] += share * self.dense(x[row], "_exps", expert)
        return result


def test_recorded_states_are_what_logits_are_made_of(
    path: Path, opened: Any, tokens: np.ndarray
) -> None:
    target, _, recorded = opened
    output = Layer(path).all["output.weight"]
    target.prefill(tokens[:30])  # in two evaluations
    for start in (30, 38):
        logits = target.evaluate(tokens[start : start + 8], 2).copy()
        end = target.length
        expected = recorded.rows[end - 2 : end] @ output.T
        assert np.allclose(logits, expected, atol=1e-4)
    assert (recorded.first, recorded.length) == (0, 40 if end == 40 else end)


@pytest.mark.parametrize("parts", [(39,), (1, 20, 18), (10, 29)])
def test_logits_are_those_of_the_definition(
    path: Path, opened: Any, tokens: np.ndarray, parts: tuple[int, ...]
) -> None:
    """However many entries are made at a time; 16 are evaluated together."""
    target, layers, recorded = opened
    target.prefill(tokens)
    expected, states = Layer(path).run(tokens[1:], recorded.rows[:39])
    start = 0
    for count in parts:
        end = start + count
        logits, state = layers.step(tokens[start + 1 : end + 1], recorded.rows[start:end])
        assert np.allclose(logits, expected[end - 1], atol=5e-3)
        assert np.allclose(state[0], states[end - 1], atol=5e-3)
        start = end
    # A state one place off gives something else.
    other, _ = Layer(path).run(tokens[1:39], recorded.rows[1:39])
    assert not np.allclose(other[-1], expected[37], atol=0.1)


def test_drafted_entries_go_on_from_its_own_states(
    path: Path, opened: Any, tokens: np.ndarray
) -> None:
    target, layers, recorded = opened
    target.prefill(tokens[:20])
    layer, drafted, given = Layer(path), tokens[:20], recorded.rows[:19].copy()
    logits, state = layers.step(drafted[1:], recorded.rows[:19])
    for _ in range(4):
        expected, states = layer.run(drafted[1:], given)
        assert np.allclose(logits, expected[-1], atol=5e-3)
        drafted = np.append(drafted, np.int32(logits.argmax()))
        given = np.concatenate((given, states[-1:].astype(np.float32)))
        logits, state = layers.step(drafted[-1:], state)


def test_dropped_entries_leave_no_trace(opened: Any, tokens: np.ndarray) -> None:
    target, layers, recorded = opened
    target.prefill(tokens)
    expected = layers.step(tokens[1:31], recorded.rows[:30])[0].copy()
    layers.truncate(20)
    layers.step(tokens[:5], recorded.rows[:5])
    layers.truncate(20)
    assert layers.length == layers.native_length() == 20
    assert np.allclose(layers.step(tokens[21:31], recorded.rows[20:30])[0], expected, atol=1e-5)


def test_a_restored_cache_has_no_states_of_what_it_holds(
    path: Path, opened: Any, tokens: np.ndarray
) -> None:
    """Entries then begin behind it, as a text of its own."""
    target, layers, recorded = opened
    target.prefill(tokens[:20])
    state = target.save_state()
    target.clear()
    target.prefill(tokens[5:15])
    assert (recorded.first, recorded.length) == (0, 10)
    target.restore_state(state)
    assert (recorded.first, recorded.length) == (20, 20)
    target.prefill(tokens[20:])
    assert (recorded.first, recorded.length) == (20, 40)
    layers.skip_to(20)
    logits, _ = layers.step(tokens[21:], recorded.rows[20:39])
    expected, _ = Layer(path).run(tokens[21:], recorded.rows[20:39])
    assert np.allclose(logits, expected[-1], atol=5e-3)
    assert layers.length == layers.native_length() == 39


def test_without_its_layers_a_model_answers_the_same(
    path: Path, model: Model, tokens: np.ndarray
) -> None:
    with Model(path) as plain, Context(plain, OPTIONS) as one, Context(model, OPTIONS) as other:
        recorded = RecordedOutputs(other)
        assert np.array_equal(one.evaluate(tokens, 1), other.evaluate(tokens, 1))
        recorded.close()
