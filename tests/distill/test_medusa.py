"""Medusa heads as they are trained, against their formulas and against the file they become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason='PyTorch is not installed: pip install "edgespec[distill]"'
)

from edgespec.backend import open_heads
from edgespec.distill.corpus import Batch, Batches, Corpus
from edgespec.distill.draft import Teacher, precision
from edgespec.distill.finish import Provenance, read_draft, write_draft
from edgespec.distill.medusa import Medusa
from edgespec.distill.train import Schedule, Trainer, measure_acceptance
from edgespec.gguf.header import read_header
from tests.built_models import WIDTH

PROVENANCE = Provenance("toy", "0" * 64, "1" * 64, "itself", 10, 20, 0.9, [0.5], [0.4], {"a": 1})
HEADS = 4


@pytest.fixture
def heads(teacher: Teacher) -> Medusa:
    """Every parameter noise."""
    torch.manual_seed(5)
    made = Medusa(WIDTH, teacher)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * WIDTH**-0.5)
    return made


def plain_logits(heads: Medusa, state: np.ndarray) -> np.ndarray:
    """Logits of all heads of a state, in NumPy: (heads, tokens)."""
    tensors = {name: array.astype(np.float64) for name, array in heads.tensors().items()}
    inner = tensors["medusa.residual.weight"] @ state
    inner += tensors["medusa.residual.bias"].reshape(HEADS, -1)
    y = state + inner / (1 + np.exp(-inner))
    return np.einsum("hij,hj->hi", tensors["medusa.project.weight"], y) @ tensors["output.weight"].T


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def followed(batch: Batch, row: int, place: int, ahead: int) -> bool:
    """Whether a state and the one so far ahead are of one answer."""
    if place + ahead >= batch.tokens.shape[1]:
        return False
    same = batch.segments[row, place] == batch.segments[row, place + ahead]
    return bool(same and batch.judged[row, place] and batch.judged[row, place + ahead])


def test_the_loss_is_the_sum_written_out(heads: Medusa, batches: Batches) -> None:
    batch = batches.batch(0)
    rows = heads.output.numpy().astype(np.float64)
    total = 0.0
    for head in range(HEADS):
        across = []
        for row, place in np.ndindex(*batch.tokens.shape):
            if (head and (place + head) % 2) or not followed(batch, row, place, head + 1):
                continue
            p = np.exp(log_softmax(rows @ batch.hidden[row, place + head + 1]))
            log_q = log_softmax(plain_logits(heads, batch.hidden[row, place])[head])
            across.append(-(p * log_q).sum())
        total += 0.8**head * float(np.mean(across))
    assert float(heads.losses(batch).total.detach()) == pytest.approx(total, rel=1e-4)


def test_each_position_is_judged_by_its_own_head(heads: Medusa, batches: Batches) -> None:
    batch = batches.batch(1)
    ids = heads._teacher.vocabulary.target_ids
    judged = heads.judge(batch)
    assert len(judged) == HEADS
    for row, place in ((0, 20), (1, 33), (2, 47), (3, 60)):
        logits = plain_logits(heads, batch.hidden[row, place])
        for head, found in enumerate(judged):
            if not followed(batch, row, place, head + 1):
                assert torch.isnan(found.greedy[row, place])
                continue
            goal = place + head + 1
            p = np.exp(heads.output.numpy() @ batch.hidden[row, goal] - batch.normalizer[row, goal])
            overlap = np.minimum(p, np.exp(log_softmax(logits[head]))).sum()
            assert float(found.overlap[row, place]) == pytest.approx(overlap, abs=1e-4)
            right = ids[logits[head].argmax()] == batch.top[row, goal]
            assert bool(found.greedy[row, place]) == right
    assert not torch.isnan(judged[0].greedy).all()


def test_heads_begin_with_the_closest_projection(teacher: Teacher, corpus: Corpus) -> None:
    made = Medusa(WIDTH, teacher)
    chosen = corpus.part(held_out=False)
    hidden = np.concatenate(
        [corpus.rows("hidden", c)[c.prompt - 1 :].astype(np.float32) for c in chosen]
    )
    made.begin(hidden[:0], hidden, hidden[:0])
    for ahead in range(1, HEADS + 1):
        states, goal = hidden[:-ahead], hidden[ahead:]
        found = made.states(ahead - 1, torch.from_numpy(states)).detach().numpy()
        assert np.square(found - goal).sum() < 1.001 * np.square(states - goal).sum()
        assert np.square(found - goal).sum() < np.square(goal).sum()


def test_a_file_computes_the_same(heads: Medusa, batches: Batches, tmp_path: Path) -> None:
    path = tmp_path / "heads.gguf"
    for file_format in ("F16", "Q8_0"):
        write_draft(heads, path, file_format, PROVENANCE)
        header = read_header(path)
        assert header.medusa.count == HEADS and header.medusa.target_width == WIDTH
        assert np.array_equal(header.medusa.target_ids, heads._teacher.vocabulary.target_ids)
        assert header.held_out.greedy == (0.5,)
        state = batches.batch(0).hidden[0, 30]
        expected = plain_logits(heads, state)
        opened = open_heads(header, 1, ours=True)
        opened.state[:] = state
        opened.compute()
        tolerance = 0.005 if file_format == "F16" else 0.03
        assert np.abs(opened.logits - expected).max() < tolerance * np.abs(expected).max()
        opened.close()
    torch.manual_seed(6)
    other = Medusa(WIDTH, heads._teacher)
    read_draft(other, path)
    rounded = plain_logits(other, state)
    assert np.abs(rounded - expected).max() < 0.03 * np.abs(expected).max()


def test_training_improves_them_and_can_be_resumed(
    teacher: Teacher, corpus: Corpus, batches: Batches, tmp_path: Path
) -> None:
    held_out = [Batches(corpus, corpus.part(held_out=True), 4, 64).batch(0)]

    def trainer(name: str) -> Trainer:
        torch.manual_seed(0)
        draft = Medusa(WIDTH, teacher)
        return Trainer(draft, batches, held_out, Schedule(40, 2e-3), tmp_path / name)

    whole = trainer("whole")
    before = measure_acceptance(whole.draft, held_out)
    first = float(whole.draft.losses(batches.batch(0)).total.detach())
    whole.run()
    assert float(whole.draft.losses(batches.batch(0)).total.detach()) < first
    assert measure_acceptance(whole.draft, held_out).sampled[0] > before.sampled[0]
    trainer("parts").run(15)
    parts = trainer("parts")
    assert parts.step == 15
    parts.run()
    for ours, theirs in zip(parts.draft.parameters(), whole.draft.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_bfloat16_gives_about_the_same(heads: Medusa, batches: Batches) -> None:
    batch = batches.batch(0)
    exact = heads.losses(batch)
    with precision(True):
        rounded = heads.losses(batch)
    assert rounded.total.dtype == torch.float32
    assert float(rounded.total.detach()) == pytest.approx(float(exact.total.detach()), rel=0.02)
