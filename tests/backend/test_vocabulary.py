"""Long runs of equal characters are tokenized, in every kind of pre-tokenizer."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from edgespec.backend import Model, ModelOptions
from edgespec.errors import UsageError

KINDS = (
    "gpt-2",
    "default",
    "tekken",
    "deepseek-llm",
    "deepseek-coder",
    "bloom",
    "falcon",
    "viking",
)


@pytest.mark.parametrize("pre", KINDS)
def test_long_runs_do_not_end_the_process(
    pre: str, built_models: ModuleType, tmp_path: Path
) -> None:
    path = built_models.write_llama(tmp_path / "tiny.gguf", pre=pre)
    with Model(path, ModelOptions(vocabulary_only=True)) as model:
        vocabulary = model.vocabulary
        before = threading.stack_size()
        for character in ("a", " ", "é", "."):
            text = f"x{character * 30_000}\n\n"
            tokens = vocabulary.tokenize(text, add_special=False)
            assert vocabulary.decode(tokens) == text
        assert threading.stack_size() == before
        few = vocabulary.tokenize("a" * 500, add_special=False)
        many = vocabulary.tokenize("a" * 5000, add_special=False)
        assert np.array_equal(np.tile(few, 10), many)


def test_more_than_any_stack_holds_is_one_line(toy_target: Path) -> None:
    with Model(toy_target, ModelOptions(vocabulary_only=True)) as model:
        with pytest.raises(UsageError, match="3,000,000 bytes in a row"):
            model.vocabulary.tokenize("a" * 3_000_000)
        assert len(model.vocabulary.tokenize("a " * 1_500_000, add_special=False)) == 3_000_000


def test_a_text_of_more_tokens_than_bytes(built_models: ModuleType, tmp_path: Path) -> None:
    """A SentencePiece vocabulary without a token for the space reads it as three bytes."""
    path = built_models.write_llama(tmp_path / "pieces.gguf", tokenizer="llama")
    with Model(path) as model:
        tokens = model.vocabulary.tokenize("a b" * 20, add_special=False)
        assert len(tokens) > 60
        assert model.vocabulary.decode(tokens).replace("\u2581", " ") == " " + "a b" * 20
