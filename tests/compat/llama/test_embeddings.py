"""Embeddings beside those of llama-cpp-python's class, on the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import edgespec
from edgespec.errors import ContextFullError, UnsupportedError, UsageError

TEXTS = ["the cat sat.", "dogs bark and the moon is far away"]
OPTIONS: dict[str, Any] = {"embedding": True, "n_ctx": 128, "verbose": False}


def close(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=tolerance, atol=tolerance)


def test_an_embedding_model(encoder_model: Path) -> None:
    theirs = llama_cpp.Llama(str(encoder_model), flash_attn=True, **OPTIONS)
    with edgespec.Llama(str(encoder_model), **OPTIONS) as ours:
        assert (ours.n_embd(), ours.n_vocab(), ours.n_ctx()) == (64, theirs.n_vocab(), 128)
        assert ours.tokenize(b"the cat") == theirs.tokenize(b"the cat")
        for text in (*TEXTS, TEXTS):
            one, other = ours.create_embedding(text), theirs.create_embedding(text)
            assert {**one, "data": None} == {**other, "data": None}
            for mine, original in zip(one["data"], other["data"], strict=True):
                assert mine.keys() == original.keys()
                close(mine["embedding"], original["embedding"])
        close(ours.embed(TEXTS, normalize=True), theirs.embed(TEXTS, normalize=True))
        vector, count = ours.embed(TEXTS[0], return_count=True)
        assert (len(vector), count) == (64, theirs.embed(TEXTS[0], return_count=True)[1])
        long = "a " * 300
        close(ours.embed(long), theirs.embed(long))
        with pytest.raises(ContextFullError, match="text 1 has 302 tokens"):
            ours.embed(long, truncate=False)
        with pytest.raises(UnsupportedError, match="is an embedding model: it generates no text"):
            ours("The sea is")


def test_a_model_that_generates_gives_a_vector_of_each_token(default_model: Path) -> None:
    theirs = llama_cpp.Llama(str(default_model), flash_attn=True, n_threads=2, **OPTIONS)
    options = {**OPTIONS, "kernels": "llama.cpp", "draft": "none", "n_threads": 2}
    with edgespec.Llama(str(default_model), **options) as ours:
        close(ours.embed("The sea"), theirs.embed("The sea"), 0.05)
        assert ours("The sea is", max_tokens=2)["usage"]["completion_tokens"] == 2
    with edgespec.Llama(str(default_model), pooling_type=1, **options) as ours:
        assert np.array(ours.embed("The sea")).shape == (ours.n_embd(),)


def test_embeddings_have_to_be_asked_for(ours: Any, encoder_model: Path) -> None:
    with pytest.raises(UsageError, match=r"need Llama\(\.\.\., embedding=True\)"):
        ours.embed("The sea")
    with pytest.raises(UnsupportedError, match="pooling_type=9 is not supported"):
        edgespec.Llama(str(encoder_model), pooling_type=9, **OPTIONS)
