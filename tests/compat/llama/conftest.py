"""The same model in llama-cpp-python's class and in edgespec's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import edgespec

SETTINGS: dict[str, Any] = {
    "n_ctx": 256,
    "n_batch": 256,
    "n_threads": 1,
    "n_threads_batch": 1,
    "n_gpu_layers": 0,
    "seed": 7,
    "flash_attn": False,
    "logits_all": True,
    "verbose": False,
}


@pytest.fixture(scope="session")
def theirs(default_model: Path) -> Iterator[Any]:
    model = llama_cpp.Llama(str(default_model), **SETTINGS)
    yield model
    model.close()


@pytest.fixture(scope="session")
def ours(default_model: Path) -> Iterator[Any]:
    """With the same kernels, and a draft that proposes wherever it can."""
    options = {"draft": "ngram", "k": 3, "kernels": "llama.cpp"}
    with edgespec.Llama(str(default_model), **SETTINGS, **options) as model:
        yield model


@pytest.fixture(scope="session")
def settings() -> dict[str, Any]:
    """What both were opened with."""
    return SETTINGS
