"""Training finds a known distribution, and an interruption changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason='PyTorch is not installed: pip install "edgespec[distill]"'
)

from edgespec.distill.corpus import Batch, Batches, Corpus
from edgespec.distill.draft import Teacher, by_position, low_rank
from edgespec.distill.target import DraftVocabulary, TargetWeights
from edgespec.distill.tiny import Tiny, TinyShape
from edgespec.distill.train import Schedule, Trainer, measure_acceptance

STATES = 12


class MarkovWeights:
    """A target whose next token depends on the last one alone."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.states = random.normal(0, 1, (STATES, 8)).astype(np.float32)
        self.rows = random.normal(0, 1.5, (STATES, 8)).astype(np.float32)

    def output_rows(self, tokens: np.ndarray) -> np.ndarray:
        return self.rows[tokens]

    def capped(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class MarkovBatches:
    """Text of that target, without an end."""

    batches = 1

    def __init__(self, target: MarkovWeights) -> None:
        self._target = target
        logits = target.states @ target.rows.T
        self.logits = logits
        self.p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    def batch(self, cursor: int) -> Batch:
        random = np.random.default_rng(cursor)
        tokens = np.zeros((8, 32), np.int64)
        for row in range(8):
            for place in range(1, 32):
                tokens[row, place] = random.choice(STATES, p=self.p[tokens[row, place - 1]])
        judged = np.ones((8, 32), np.bool_)
        judged[:, -1] = False
        return Batch(
            tokens,
            np.zeros((8, 32), np.int64),
            np.tile(np.arange(32), (8, 1)),
            judged,
            self._target.states[tokens],
            np.zeros((8, 32, 0), np.float32),
            self.logits[tokens].argmax(-1),
            np.log(np.exp(self.logits[tokens]).sum(-1)).astype(np.float32),
        )


def test_a_markov_chain_is_learned(tmp_path: Path) -> None:
    target = MarkovWeights()
    batches = MarkovBatches(target)
    ids = np.arange(STATES, dtype=np.int32)
    teacher = Teacher(target, DraftVocabulary(ids, STATES, 1.0))  # type: ignore[arg-type]
    torch.manual_seed(0)
    draft = Tiny(TinyShape(STATES + 1, 8, 2, 32, 1), teacher)
    draft.begin(target.states, target.states, np.zeros((STATES, 0), np.float32))
    held_out = [batches.batch(10_000)]
    before = measure_acceptance(draft, held_out)
    Trainer(draft, batches, held_out, Schedule(150, 1e-2), tmp_path).run()  # type: ignore[arg-type]
    after = measure_acceptance(draft, held_out)
    assert before.sampled[0] < 0.7 < 0.97 < min(after.sampled)
    assert min(after.greedy) > 0.97

    tokens = torch.arange(STATES)[:, None]
    mask = torch.ones(STATES, 1, 1, 1, dtype=torch.bool)
    states = draft.states(tokens, torch.zeros_like(tokens), mask)
    q = draft.logits(states)[:, 0].softmax(-1).detach().numpy()
    variation = 0.5 * np.abs(q - batches.p).sum(-1)
    assert variation.mean() < 0.05 and variation.max() < 0.2


def make_tiny(teacher: Teacher, weights: TargetWeights, corpus: Corpus) -> Tiny:
    torch.manual_seed(0)
    tokens = len(teacher.vocabulary.target_ids) + 1
    draft = Tiny(TinyShape(tokens, 32, 2, 64, 2), teacher)
    hidden, layers = (
        np.concatenate([corpus.rows(name, c) for c in corpus.conversations[:20]]).astype(np.float32)
        for name in ("hidden", "layers")
    )
    draft.begin(weights.embeddings(teacher.vocabulary.target_ids), hidden, layers)
    return draft


def test_text_of_a_real_file_is_learned(
    teacher: Teacher, weights: TargetWeights, corpus: Corpus, batches: Batches, tmp_path: Path
) -> None:
    draft = make_tiny(teacher, weights, corpus)
    held = Batches(corpus, corpus.part(held_out=True), 4, 64)
    held_out = [held.batch(i) for i in range(held.batches)]
    before = measure_acceptance(draft, held_out)
    Trainer(draft, batches, held_out, Schedule(150, 4e-3), tmp_path).run()
    after = measure_acceptance(draft, held_out)
    assert after.sampled[0] > before.sampled[0] + 0.2
    assert after.greedy[0] > before.greedy[0] + 0.2


class InterruptedHereError(Exception):
    pass


def test_an_interrupted_training_gives_the_same_weights(
    teacher: Teacher, weights: TargetWeights, corpus: Corpus, batches: Batches, tmp_path: Path
) -> None:
    schedule = Schedule(12, 3e-3)
    whole = make_tiny(teacher, weights, corpus)
    Trainer(whole, batches, [], schedule, tmp_path / "whole").run()

    def interrupt(state: object) -> None:
        if state.step in (4, 10):  # type: ignore[attr-defined]
            raise InterruptedHereError

    for _ in range(2):
        broken = make_tiny(teacher, weights, corpus)
        with pytest.raises(InterruptedHereError):
            Trainer(broken, batches, [], schedule, tmp_path / "broken", interrupt).run()
    resumed = make_tiny(teacher, weights, corpus)
    trainer = Trainer(resumed, batches, [], schedule, tmp_path / "broken")
    assert trainer.step == 10
    trainer.run()
    ours, theirs = whole.state_dict(), resumed.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_longer_schedule_undoes_the_decay(
    teacher: Teacher, weights: TargetWeights, corpus: Corpus, batches: Batches, tmp_path: Path
) -> None:
    draft = make_tiny(teacher, weights, corpus)
    short = Schedule(10, 3e-3)
    Trainer(draft, batches, [], short, tmp_path).run()
    longer = Trainer(draft, batches, [], Schedule(30, 3e-3), tmp_path)
    assert longer.step == short.decay_from == 7
    # A longer one that was interrupted before the shorter one's decay goes on from there.
    assert Trainer(draft, batches, [], short, tmp_path).step == 10


def test_the_narrowed_output_is_the_best_of_its_rank() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(0, 1, (50, 12)).astype(np.float32)
    hidden = (random.normal(0, 1, (400, 12)) * np.linspace(0.1, 2, 12)).astype(np.float32)
    wanted = hidden @ (rows - rows.mean(0)).T
    errors = []
    for rank in (12, 5):
        projection, narrow, importance = low_rank(rows, hidden, rank)
        z = hidden @ projection
        np.testing.assert_allclose(z.T @ z / len(z), np.eye(rank), atol=1e-2)
        ours = z @ (narrow - narrow.mean(0)).T
        errors.append(float(((ours - wanted) ** 2).sum()))
        assert importance.sum() == pytest.approx(1.0, abs=1e-4)
    singular = np.linalg.svd(wanted, compute_uv=False)
    assert errors[0] < 1e-4 * (wanted**2).sum()
    assert errors[1] == pytest.approx(float((singular[5:] ** 2).sum()), rel=1e-2)


def test_acceptance_by_position() -> None:
    nan = torch.nan
    first = torch.tensor([[1.0, 0.5, nan, 1.0]])
    second = torch.tensor([[0.5, nan, nan, 1.0]])
    assert by_position([first, second]) == pytest.approx([2.5 / 3, 1.5 / 2])
