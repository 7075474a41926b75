"""Texts as vectors: the values of llama-cpp-python's own class on the same file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import llama_cpp
import numpy as np
import pytest
from gguf import PoolingType

from edgespec import Engine, EngineOptions, SamplingParameters, load_embedder
from edgespec.errors import (
    CancelledError,
    ContextFullError,
    ModelFileError,
    UnsupportedError,
    UsageError,
)

TEXTS = ["the cat sat.", "a", "dogs bark and the moon is far away", "żółw the ???"]
NUMBERS = {"mean": 1, "cls": 2, "last": 3, "none": 0}


@pytest.fixture(scope="session")
def engine(default_model: Path) -> Iterator[Engine]:
    with Engine(default_model, EngineOptions(draft="ngram", context=256, threads=2)) as engine:
        yield engine


def reference(path: Path, pooling: int = -1, **options: Any) -> Callable[[str], np.ndarray]:
    theirs = llama_cpp.Llama(
        str(path), embedding=True, pooling_type=pooling, n_ctx=128, verbose=False, **options
    )
    return lambda text: np.array(theirs.create_embedding(text)["data"][0]["embedding"])


@pytest.mark.parametrize("pooling", [PoolingType.MEAN, PoolingType.CLS, PoolingType.LAST])
def test_an_encoder_pools_as_its_file_says(
    built_models: ModuleType, tmp_path: Path, pooling: PoolingType
) -> None:
    path = built_models.write_bert(tmp_path / "bert.gguf", pooling)
    theirs = reference(path, flash_attn=True)
    with load_embedder(path) as ours:
        assert ours.pooling == pooling.name.lower()
        vectors = ours.embed(TEXTS, normalize=False)
        assert vectors.shape == (len(TEXTS), ours.dimensions)
        for text, vector in zip(TEXTS, vectors, strict=True):
            np.testing.assert_allclose(vector, theirs(text), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "none"])
def test_a_model_that_generates_pools_as_asked(
    engine: Engine, default_model: Path, pooling: str
) -> None:
    theirs = reference(default_model, NUMBERS[pooling])
    for text in ("The sea is wide.", "Hello"):
        tokens = engine.tokenize(text)
        (found,) = engine.embedder(pooling).start([tokens.tolist()], normalize=False)
        assert found.tokens == len(tokens)
        expected = theirs(text)
        assert found.vector.shape == expected.shape
        # Our kernels round in another order than llama.cpp's.
        cosine = np.sum(found.vector * expected, axis=-1) / (
            np.linalg.norm(found.vector, axis=-1) * np.linalg.norm(expected, axis=-1)
        )
        assert np.min(cosine) > 0.995


def test_vectors_are_of_length_one(encoder_model: Path) -> None:
    with load_embedder(encoder_model) as embedder:
        vectors = embedder.embed(TEXTS)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
        assert embedder.embed([]).shape == (0, embedder.dimensions)
        plain = embedder.embed(TEXTS[0], normalize=False)
        np.testing.assert_allclose(vectors[0] * np.linalg.norm(plain), plain, rtol=1e-5)


def test_what_stands_beside_a_text_changes_nothing(encoder_model: Path) -> None:
    with load_embedder(encoder_model) as embedder:
        together = embedder.embed(TEXTS)
        alone = np.stack([embedder.embed(text) for text in reversed(TEXTS)])[::-1]
        tokens = [embedder.tokenize(text).tolist() for text in TEXTS]
        assert np.array_equal(together, alone)
        assert np.array_equal(together, embedder.embed(tokens))


def test_threads_share_one(encoder_model: Path) -> None:
    with load_embedder(encoder_model) as embedder:
        expected = embedder.embed(TEXTS)
        found: dict[int, bool] = {}

        def work(number: int) -> None:
            found[number] = all(np.array_equal(embedder.embed(TEXTS), expected) for _ in range(5))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == dict.fromkeys(range(4), True)


def test_an_answer_under_way_stays_what_it_is(engine: Engine) -> None:
    sampling = SamplingParameters(temperature=0.8, seed=3)

    def answer(*, embedding: bool) -> list[int]:
        stream = engine.generate("Once upon a time", sampling)
        tokens = []
        for chunk in stream:
            tokens.append(chunk.token)
            if embedding and len(tokens) % 10 == 1:
                engine.embed("something else")
            if len(tokens) == 40:
                stream.cancel()
        return tokens[:40]

    assert answer(embedding=True) == answer(embedding=False)


def test_it_ends_when_it_is_cancelled(encoder_model: Path) -> None:
    with load_embedder(encoder_model) as embedder:
        run = embedder.start(TEXTS)
        found = iter(run)
        next(found)
        run.cancel()
        with pytest.raises(CancelledError):
            next(found)
        assert embedder.embed(TEXTS[1]).shape == (embedder.dimensions,)


def test_closing_ends_what_is_under_way(encoder_model: Path) -> None:
    with load_embedder(encoder_model) as embedder:
        run = iter(embedder.start(TEXTS))
        next(run)
    with pytest.raises(CancelledError):
        next(run)


def test_wrong_input_gets_one_clear_line(encoder_model: Path, engine: Engine) -> None:
    with load_embedder(encoder_model) as embedder:
        with pytest.raises(ContextFullError, match="text 2 has 202 tokens, and 128 are the most"):
            embedder.embed(["a", "a " * 200])
        with pytest.raises(UsageError, match="text 1 is empty"):
            embedder.embed([[]])
        with pytest.raises(UsageError, match="text 1 has a token that is not in the vocabulary"):
            embedder.embed([[1 << 70]])
    with pytest.raises(UsageError, match="pooling is 'sum': it is one of none, mean, cls, last"):
        engine.embed("a", pooling="sum")
    with pytest.raises(ModelFileError, match=r"its bert model is for embeddings\).*edgespec serve"):
        Engine(encoder_model)


def test_a_reranker_is_refused(built_models: ModuleType, tmp_path: Path) -> None:
    path = built_models.write_bert(tmp_path / "rank.gguf", PoolingType.RANK)
    with pytest.raises(UnsupportedError, match="rank is a reranker: it makes no embeddings"):
        load_embedder(path)
