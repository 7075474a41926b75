"""Sequences decoded together say what each says alone, and give the states behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model, ParallelContext, capabilities
from edgespec.backend.parallel import Rows
from edgespec.distill.target import TargetWeights
from edgespec.errors import ContextFullError

PROMPTS = ("The sea is", "A", "One two three, one two three, one two")


@pytest.fixture(scope="module")
def model(toy_target: Path) -> Iterator[Model]:
    with Model(toy_target) as model:
        yield model


def alone(model: Model, tokens: np.ndarray, count: int) -> list[int]:
    with Context(model, ContextOptions(length=256)) as context:
        answer = [int(context.evaluate(tokens, 1)[0].argmax())]
        while len(answer) < count:
            answer.append(int(context.evaluate(np.array(answer[-1:], np.int32), 1)[0].argmax()))
    return answer


def step(context: ParallelContext, sequences: list[int], tokens: list[int]) -> Rows:
    return context.step(np.array(sequences, np.int32), np.array(tokens, np.int32))


@pytest.mark.parametrize("shared", ["", "One two"])
def test_each_sequence_is_as_if_alone(model: Model, shared: str) -> None:
    count = 20
    prompts = [model.vocabulary.tokenize(text) for text in PROMPTS]
    expected = [alone(model, tokens, count) for tokens in prompts]
    with ParallelContext(model, 3, 64, threads=1) as context:
        context.share(model.vocabulary.tokenize(shared))
        for _ in range(2):  # and again in sequences that were used before
            for i, tokens in enumerate(prompts):
                context.begin(i, tokens[:-1])
            answers = [[int(tokens[-1])] for tokens in prompts]
            while len(answers[0]) <= count:
                rows = step(context, [0, 1, 2], [answer[-1] for answer in answers])
                for answer, row in zip(answers, rows.logits, strict=True):
                    answer.append(int(row.argmax()))
            assert [answer[1:] for answer in answers] == expected


def test_one_sequence_can_be_begun_anew_beside_others(model: Model) -> None:
    first, second = (model.vocabulary.tokenize(text) for text in PROMPTS[:2])
    with ParallelContext(model, 2, 64, threads=1) as context:
        context.begin(0, first)
        context.begin(1, first)
        ours = step(context, [0], [65]).logits[0].copy()
        context.begin(0, second)
        beside = step(context, [1], [65]).logits[0].copy()
        np.testing.assert_allclose(beside, ours, atol=1e-2)


@pytest.mark.parametrize("shared", [0, 7])
def test_states_and_layers_belong_to_their_tokens(
    toy_target: Path, model: Model, shared: int
) -> None:
    if not capabilities().layer_taps:
        pytest.skip("this build of llama.cpp exports no hidden states")
    weights = TargetWeights(toy_target)
    tokens = model.vocabulary.tokenize("A long prompt. " * 20)[:150]  # more than one batch
    every, width = np.arange(model.vocabulary.size, dtype=np.int32), model.embedding_length
    with ParallelContext(model, 2, 200, threads=1, layers=(0, 2)) as context:
        context.share(tokens[:shared])
        layers = context.begin(1, tokens)
        assert layers.shape == (150, 2 * width)
        np.testing.assert_allclose(layers[:, :width], weights.embeddings(tokens), atol=1e-5)
        context.share(tokens[:0])
        np.testing.assert_allclose(context.begin(0, tokens), layers, atol=1e-2)
        context.begin(0, tokens[:9])
        rows = step(context, [0, 1], [70, 71])
        given = weights.embeddings(np.array([70, 71]))
        np.testing.assert_allclose(rows.layers[:, :width], given, atol=1e-5)
        assert rows.hidden.shape == (2, width)
        logits = weights.logits(rows.hidden, weights.output_rows(every))
        np.testing.assert_allclose(logits, rows.logits, atol=1e-3)


def test_a_sequence_that_is_full(model: Model) -> None:
    with ParallelContext(model, 2, 8, threads=1) as context:
        context.begin(0, np.full(8, 65, np.int32))
        with pytest.raises(ContextFullError, match="8 tokens"):
            step(context, [0], [65])
