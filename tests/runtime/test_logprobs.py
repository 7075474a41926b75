"""Log-probabilities: those of the model's own distribution, whatever was proposed or masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from edgespec import GenerationLimits, SamplingParameters
from edgespec.errors import UsageError
from edgespec.sampling.softmax import log_normalizer


@pytest.fixture(params=["none", "ngram", "damaged"])
def engine(request: Any, drafts: dict[str, str], open_engine: Any) -> Any:
    return open_engine(draft=drafts[request.param])


@pytest.mark.parametrize("grammar", [None, 'root ::= [a-z ]{20,60} "."'])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_they_are_the_targets_in_a_loop_of_its_own(
    engine: Any, plain: Any, prompts: tuple[str, ...], temperature: float, grammar: str | None
) -> None:
    sampling = SamplingParameters(temperature=temperature, seed=5, repeat_penalty=1.2)
    limits = GenerationLimits(max_tokens=12)
    stream = engine.generate(prompts[2], sampling, limits, logprobs=4, grammar=grammar)
    pieces = list(stream)
    result = stream.result
    assert [one.token for one in result.logprobs] == list(result.tokens)
    told = [one for piece in pieces for one in piece.logprobs]
    assert told == list(result.logprobs)
    tokens = engine.tokenize(prompts[2]).tolist()
    for one in result.logprobs:
        expected = log_softmax(plain.logits(tokens).astype(np.float64))
        assert one.logprob == pytest.approx(expected[one.token], abs=1e-5)
        best = np.argsort(-expected, kind="stable")[:4]
        assert [token for token, _ in one.top] == best.tolist()
        assert [value for _, value in one.top] == pytest.approx(expected[best].tolist(), abs=1e-5)
        tokens.append(one.token)


def test_none_are_told_unless_asked_for(engine: Any) -> None:
    stream = engine.generate("The sea", limits=GenerationLimits(max_tokens=4))
    assert all(piece.logprobs == () for piece in stream)
    assert stream.result.logprobs == ()
    stream = engine.generate("The sea", limits=GenerationLimits(max_tokens=4), logprobs=0)
    assert [one.top for one in stream.result.logprobs] == [()] * len(stream.result.tokens)
    with pytest.raises(UsageError, match="logprobs"):
        engine.generate("The sea", logprobs=101)


def test_the_likeliest_of_a_row_and_its_normalizer() -> None:
    generator = np.random.default_rng(3)
    for size, count in ((1, 1), (7, 7), (1000, 5), (1000, 0), (5000, 20)):
        row = generator.normal(0, 5, size).astype(np.float32)
        row[generator.integers(size)] = -np.inf if size > 1 else 0.0
        ids, values = np.zeros(count, np.int32), np.zeros(count, np.float32)
        total = log_normalizer(row, np.zeros(size, np.float32), ids, values)
        assert total == pytest.approx(np.logaddexp.reduce(row.astype(np.float64)), abs=1e-5)
        best = np.argsort(-row, kind="stable")[:count]
        assert np.array_equal(values, row[best])
    row[3] = np.nan
    assert np.isnan(log_normalizer(row, np.zeros(size, np.float32), ids, values))
