"""The kinds of drafts there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.distill.draft import Draft
from edgespec.distill.eagle import Eagle, EagleShape, feature_layers
from edgespec.distill.teacher import Teacher
from edgespec.distill.tiny import Tiny, TinyShape
from edgespec.distill.weights import TargetWeights
from edgespec.gguf.header import GGUFHeader

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """What a kind of draft needs.

    Attributes:
        layers: of the target, whose inputs it reads.
        make: an untrained one.
        rate: of learning.
        own_tokens: of its vocabulary that are not the target's.
    """

    layers: Callable[[GGUFHeader], tuple[int, ...]]
    make: Callable[[Teacher, GGUFHeader, TargetWeights], Draft]
    rate: float
    own_tokens: int


def _make_tiny(teacher: Teacher, header: GGUFHeader, weights: TargetWeights) -> Draft:
    tokens = len(teacher.vocabulary.target_ids) + 1
    return Tiny(TinyShape.for_target(header.embedding_length, tokens), teacher)


def _make_eagle(teacher: Teacher, header: GGUFHeader, weights: TargetWeights) -> Draft:
    return Eagle(EagleShape.for_target(header), teacher, weights)


KINDS = {
    "tiny": Kind(lambda header: (), _make_tiny, 2e-3, 1),
    "eagle3": Kind(feature_layers, _make_eagle, 2e-3, 0),
}
