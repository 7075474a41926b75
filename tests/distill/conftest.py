"""A toy target, its text, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgespec.backend import Model, ParallelContext
from edgespec.distill.corpus import Batches, Corpus, CorpusFacts
from edgespec.distill.prompts import SelfPrompts
from edgespec.distill.target import DraftVocabulary, TargetWeights, choose_vocabulary
from edgespec.distill.writing import write_corpus
from edgespec.gguf.header import read_header
from edgespec.templates import ChatTemplate
from tests.built_models import WIDTH

if TYPE_CHECKING:
    from edgespec.distill.draft import Teacher

LAYERS = (1, 2, 3)


@pytest.fixture(scope="session")
def weights(toy_target: Path) -> TargetWeights:
    return TargetWeights(toy_target)


@pytest.fixture(scope="session")
def corpus(toy_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """10,000 tokens of answers, with the inputs of three layers."""
    facts = CorpusFacts("toy", WIDTH, LAYERS, "itself")
    corpus = Corpus(tmp_path_factory.mktemp("text"), facts)
    with (
        Model(toy_target) as model,
        ParallelContext(model, 8, 300, threads=1, layers=LAYERS) as context,
    ):
        template = ChatTemplate.from_model(read_header(toy_target), model.vocabulary)
        write_corpus(corpus, context, SelfPrompts(template, model.vocabulary), 10_000, 150)
    return corpus


@pytest.fixture(scope="session")
def vocabulary(corpus: Corpus) -> DraftVocabulary:
    return choose_vocabulary(corpus, 199, 260, (256, 257))


@pytest.fixture
def teacher(weights: TargetWeights, vocabulary: DraftVocabulary) -> Teacher:
    from edgespec.distill.draft import Teacher

    return Teacher(weights, vocabulary)


@pytest.fixture
def batches(corpus: Corpus) -> Batches:
    return Batches(corpus, corpus.part(held_out=False), 4, 64)
