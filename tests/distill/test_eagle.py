"""The head as it is trained, against one that is run an entry at a time, here and by llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason='PyTorch is not installed: pip install "edgespec[distill]"'
)

from edgespec.backend import Context, ContextOptions, HeadContext, Model, capabilities
from edgespec.distill.corpus import Batch, Batches, Corpus
from edgespec.distill.draft import Teacher, precision
from edgespec.distill.eagle import Eagle, EagleShape
from edgespec.distill.finish import Provenance, read_draft, write_draft
from edgespec.distill.target import TargetWeights
from edgespec.distill.train import Schedule, Trainer, measure_acceptance
from edgespec.gguf.header import read_header
from tests.built_models import WIDTH
from tests.distill.conftest import LAYERS

PROVENANCE = Provenance("toy", "0" * 64, "1" * 64, "itself", 10, 20, 0.9, [0.5], [0.4], {"a": 1})
EPSILON = 1e-5


@pytest.fixture
def head(teacher: Teacher, weights: TargetWeights) -> Eagle:
    """Every parameter noise."""
    torch.manual_seed(5)
    head = Eagle(EagleShape(WIDTH, 2, 96, LAYERS), teacher, weights)
    with torch.no_grad():
        for parameter in head.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.2
            offset = 0.0 if parameter.ndim > 1 else 1.0
            parameter.copy_(offset + scale * torch.randn_like(parameter))
        head.scale.copy_(0.5 + torch.rand_like(head.scale))
    return head


class PlainHead:
    """The same network in NumPy, one entry at a time, with a cache that is cut back."""

    def __init__(self, head: Eagle, weights: TargetWeights) -> None:
        self.tensors = {name: array.copy() for name, array in head.tensors().items()}
        self.weights, self.heads = weights, head.shape.heads
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def fuse(self, features: np.ndarray) -> np.ndarray:
        return self.tensors["fc.weight"] @ features

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x) + EPSILON) * self.tensors[f"{name}.weight"]

    def turned(self, x: np.ndarray, position: int) -> np.ndarray:
        x = x.reshape(self.heads, -1).copy()
        half = x.shape[1] // 2
        angle = position * 10000.0 ** (-np.arange(half) / half)
        even, odd = x[:, 0::2].copy(), x[:, 1::2].copy()
        x[:, 0::2] = even * np.cos(angle) - odd * np.sin(angle)
        x[:, 1::2] = even * np.sin(angle) + odd * np.cos(angle)
        return x

    def step(self, token: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = self.tensors
        embedding = self.weights.embeddings(np.array([token], np.int32))[0]
        both = np.concatenate(
            (self.norm(embedding, "blk.0.attn_norm"), self.norm(state, "blk.0.attn_norm_2"))
        )
        position = len(self.keys)
        q = self.turned(t["blk.0.attn_q.weight"] @ both, position)
        self.keys.append(self.turned(t["blk.0.attn_k.weight"] @ both, position))
        self.values.append((t["blk.0.attn_v.weight"] @ both).reshape(self.heads, -1))
        scores = np.einsum("hd,thd->ht", q, np.array(self.keys)) / np.sqrt(q.shape[1])
        share = np.exp(scores - scores.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        mixed = np.einsum("ht,thd->hd", share, np.array(self.values)).ravel()
        x = state + t["blk.0.attn_output.weight"] @ mixed
        y = self.norm(x, "blk.0.ffn_norm")
        gate = t["blk.0.ffn_gate.weight"] @ y
        x = x + t["blk.0.ffn_down.weight"] @ (
            gate / (1 + np.exp(-gate)) * (t["blk.0.ffn_up.weight"] @ y)
        )
        return x, t["output.weight"] @ self.norm(x, "output_norm")

    def cut(self, length: int) -> None:
        del self.keys[length:], self.values[length:]


def one_text(corpus: Corpus, length: int) -> Batch:
    """One conversation alone in a row."""
    chosen = next(c for c in corpus.conversations if c.stop - c.start >= length)
    return Batches(corpus, [chosen], 1, length).batch(0)


def test_every_step_is_what_drafting_gives(
    head: Eagle, weights: TargetWeights, corpus: Corpus
) -> None:
    length, count = 12, 4
    batch = one_text(corpus, length)
    entries = head._entries(batch._replace(judged=np.ones_like(batch.judged)))
    steps = [s.states[0].detach().numpy() for s in head.steps(entries, count)]
    plain = PlainHead(head, weights)
    for start in range(length - count):
        # Entries before `start` have the target's features; a block is drafted behind them.
        state = plain.fuse(batch.layers[0, start])
        for ahead in range(count):
            state, _ = plain.step(int(batch.tokens[0, start + ahead + 1]), state)
            np.testing.assert_allclose(steps[ahead][start + ahead], state, rtol=1e-3, atol=1e-3)
        plain.cut(start)
        plain.step(int(batch.tokens[0, start + 1]), plain.fuse(batch.layers[0, start]))


def test_two_texts_in_a_row_do_not_meet(head: Eagle, corpus: Corpus) -> None:
    short = [c for c in corpus.conversations if c.stop - c.start < 120][:2]
    both = Batches(corpus, short, 1, 256).batch(0)
    both = both._replace(judged=np.ones_like(both.judged))
    ends = int((both.segments[0] == both.segments[0, 0]).sum())
    found = [s.states[0].detach() for s in head.steps(head._entries(both), 3)]
    second = Batch(*(array[:, ends:] for array in both))
    alone = [s.states[0].detach() for s in head.steps(head._entries(second), 3)]
    for number in range(3):
        size = int((second.segments[0] >= 0).sum()) - 1
        ours = found[number][ends + number : ends + size]
        torch.testing.assert_close(ours, alone[number][number:size], rtol=1e-3, atol=1e-3)


def written_out(head: Eagle, batch: Batch) -> torch.Tensor:
    """The loss as sums over all tokens of the draft, position by position."""
    entries, total = head._entries(batch), torch.zeros(())
    for number, step in enumerate(head.steps(entries, 4)):
        across, apart = [], []
        for row, entry in step.judged.nonzero().tolist():
            state, hidden = step.states[row, entry], entries.hidden[row, entry]
            even = state / (state.square().mean() + torch.finfo(state.dtype).eps).sqrt()
            off = (even - hidden / head._final).abs()
            apart.append(torch.where(off < 1, off.square() / 2, off - 0.5).mean())
            if number and (entry + number) % 3:
                continue
            p = (head.output @ hidden).double().softmax(-1)
            log_q = head.logits(state).double().log_softmax(-1)
            across.append(-(p * log_q).sum())
        total = total + 0.7**number * (torch.stack(across).mean() + 4 * torch.stack(apart).mean())
    return total


def gradients(head: Eagle, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    head.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in head.named_parameters()}


def test_the_loss_is_the_sum_written_out(head: Eagle, corpus: Corpus) -> None:
    batch = one_text(corpus, 80)
    expected = written_out(head, batch)
    found = head.losses(batch).total
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    ours, theirs = gradients(head, found), gradients(head, expected.float())
    for name, gradient in theirs.items():
        size = float(gradient.norm())
        assert size > 0
        assert float((ours[name] - gradient).norm()) < 1e-3 * size, name


def test_bfloat16_gives_about_the_same(head: Eagle, corpus: Corpus) -> None:
    batch = one_text(corpus, 64)
    exact = head.losses(batch)
    with precision(True):
        rounded = head.losses(batch)
    assert rounded.total.dtype == torch.float32
    assert float(rounded.total.detach()) == pytest.approx(float(exact.total.detach()), rel=0.02)
    assert rounded.kl == pytest.approx(exact.kl, rel=0.05, abs=0.02)
    wanted, found = gradients(head, exact.total), gradients(head, rounded.total)
    for name, gradient in wanted.items():
        likeness = torch.cosine_similarity(gradient.flatten(), found[name].flatten(), dim=0)
        assert float(likeness) > 0.98, name


@pytest.fixture
def contexts(toy_target: Path) -> Iterator[Context]:
    if not capabilities().eagle:
        pytest.skip("this build of llama.cpp cannot run EAGLE-3 heads")
    with Model(toy_target) as model, Context(model, ContextOptions(length=64)) as context:
        yield context


def test_llama_cpp_computes_the_same(
    head: Eagle, weights: TargetWeights, corpus: Corpus, contexts: Context, tmp_path: Path
) -> None:
    path = tmp_path / "head.gguf"
    write_draft(head, path, "F32", PROVENANCE)
    assert read_header(path).eagle is not None
    batch = one_text(corpus, 12)
    plain = PlainHead(head, weights)
    ids = plain.tensors["d2t"]
    options = ContextOptions(length=64, batch=16, outputs=16, kv_type="f32")
    with Model(path) as model, HeadContext(model, options, contexts) as ours:
        fused = ours.fuse(np.ascontiguousarray(batch.layers[0, :6]))
        expected = np.stack([plain.fuse(row) for row in batch.layers[0, :6]])
        np.testing.assert_allclose(fused, expected, rtol=1e-3, atol=1e-3)
        logits, states = ours.step(batch.tokens[0, 1:7].astype(np.int32), fused)
        for row in range(6):
            state, wanted = plain.step(int(batch.tokens[0, row + 1]), expected[row])
        for token in batch.tokens[0, 7:10]:  # on its own states
            np.testing.assert_allclose(logits[ids], wanted, rtol=1e-2, atol=5e-3)
            np.testing.assert_allclose(states[0], state, rtol=1e-2, atol=5e-3)
            logits, states = ours.step(np.array([token], np.int32), states.copy())
            state, wanted = plain.step(int(token), state)
        assert np.isneginf(np.delete(logits, ids)).all()


def test_what_is_read_back_is_what_was_written(head: Eagle, tmp_path: Path) -> None:
    path = tmp_path / "head.gguf"
    before = {name: array.copy() for name, array in head.tensors().items()}
    write_draft(head, path, "F32", PROVENANCE)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    read_draft(head, path)
    for name, array in head.tensors().items():
        np.testing.assert_allclose(array, before[name], rtol=1e-6)


def test_it_learns(
    teacher: Teacher, weights: TargetWeights, corpus: Corpus, batches: Batches, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    head = Eagle(EagleShape(WIDTH, 2, 96, LAYERS), teacher, weights)
    hidden, layers = (
        np.concatenate([corpus.rows(name, c) for c in corpus.conversations[:20]]).astype(np.float32)
        for name in ("hidden", "layers")
    )
    head.begin(np.zeros((0, WIDTH), np.float32), hidden, layers)
    held = Batches(corpus, corpus.part(held_out=True), 4, 64)
    held_out = [held.batch(i) for i in range(held.batches)]
    before = measure_acceptance(head, held_out)
    Trainer(head, batches, held_out, Schedule(120, 4e-3), tmp_path).run()
    after = measure_acceptance(head, held_out)
    for position in range(2):  # and so on its own states
        assert after.greedy[position] > before.greedy[position] + 0.1
        assert after.sampled[position] > before.sampled[position] + 0.1
