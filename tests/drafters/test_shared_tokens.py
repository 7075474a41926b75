"""Which tokens two vocabularies share, and when that is too little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgespec.backend import Model, ModelOptions, Vocabulary
from edgespec.drafters import share_tokens
from edgespec.errors import PairingError

ONLY_VOCABULARY = ModelOptions(vocabulary_only=True)


@pytest.fixture(scope="module")
def default(default_model: Path) -> Iterator[Vocabulary]:
    with Model(default_model, ONLY_VOCABULARY) as model:
        yield model.vocabulary


def test_the_same_texts_under_other_ids(default: Vocabulary, renumbered_model: Path) -> None:
    with Model(renumbered_model, ONLY_VOCABULARY) as model:
        shared = share_tokens(default, model.vocabulary)
        assert shared.coverage == 1.0
        ordinary = [t for t in range(default.size) if default.piece(t)]
        assert shared.target.tolist() == ordinary
        assert not np.array_equal(shared.target, shared.draft)
        for ours, theirs in zip(shared.target[::97], shared.draft[::97], strict=True):
            assert default.piece(int(ours)) == model.vocabulary.piece(int(theirs))


def test_two_thirds_of_the_texts(default: Vocabulary, reworded_model: Path) -> None:
    with Model(reworded_model, ONLY_VOCABULARY) as model:
        shared = share_tokens(default, model.vocabulary)
        assert 0.6 < len(shared.target) / default.size < 0.7
        assert 0.5 < shared.coverage < 0.95
        assert len(set(shared.target.tolist())) == len(set(shared.draft.tolist()))
        assert f"{len(shared.target):,} tokens" in str(shared)


def test_no_control_token_is_shared(default: Vocabulary, renumbered_model: Path) -> None:
    with Model(renumbered_model, ONLY_VOCABULARY) as model:
        shared = share_tokens(default, model.vocabulary)
        assert not default.end_tokens & set(shared.target.tolist())
        assert default.bos not in shared.target


def test_too_little_is_refused_with_the_figure(default: Vocabulary, recurrent_model: Path) -> None:
    with (
        Model(recurrent_model, ONLY_VOCABULARY) as model,
        pytest.raises(
            PairingError, match=r"only 237 tokens .*, \d+% of .*50% are needed"
        ) as caught,
    ):
        share_tokens(default, model.vocabulary)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
