"""What all kinds of drafts have in common: the target as teacher, and what each kind must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from edgespec._types import AnyArray, Float32Array
from edgespec.distill.corpus import Batch
from edgespec.distill.target import DraftVocabulary, TargetWeights
from edgespec.gguf.header import GGUFHeader

__all__ = [
    "POSITIONS",
    "Draft",
    "Judgement",
    "Losses",
    "Teacher",
    "by_position",
    "low_rank",
    "precision",
    "scattered",
    "shifted",
]


POSITIONS = 4
"""Positions of a block at which acceptance is measured."""


class Judgement(NamedTuple):
    """How well a draft predicts after some tokens: float32, 0 to 1 each.

    Attributes:
        greedy: whether its most likely next token is the target's.
        overlap: 1 - TV at temperature 1: the sum of min(p, q), p over the whole vocabulary.
    """

    greedy: Tensor
    overlap: Tensor


class Teacher:
    """The target's distribution over the draft's tokens, and over all of them."""

    def __init__(self, weights: TargetWeights, vocabulary: DraftVocabulary) -> None:
        self._weights = weights
        self.vocabulary = vocabulary
        self.rows = torch.from_numpy(weights.output_rows(vocabulary.target_ids))
        self._target_ids = torch.from_numpy(vocabulary.target_ids.astype(np.int64))

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits: (n, width) -> (n, draft tokens)."""
        logits: Tensor = self._weights.capped(hidden @ self.rows.T)
        return logits

    def log_p(self, hidden: Tensor) -> Tensor:
        """Return log p, renormalized over the draft's tokens: what a draft is trained on."""
        return self.logits(hidden).log_softmax(-1)

    def judge(self, logits: Tensor, hidden: Tensor, top: Tensor, normalizer: Tensor) -> Judgement:
        """Compare a draft's logits (n, draft tokens) with p over the whole vocabulary."""
        p = (self.logits(hidden) - normalizer[:, None]).exp()
        overlap = torch.minimum(p, logits.softmax(-1)).sum(-1)
        greedy = self._target_ids[logits.argmax(-1)] == top
        return Judgement(greedy.float(), overlap)


class Losses(NamedTuple):
    """Losses of a batch.

    Attributes:
        total: what is minimized.
        kl: KL(p || q) in nats per token, over the draft's tokens, for the record.
    """

    total: Tensor
    kl: float


class Draft(nn.Module, ABC):
    """A network that learns from batches of the target's text and can be written as GGUF.

    Attributes:
        kind, architecture: its name here and in llama.cpp.
        rate: learning rate.
        own_tokens: number of tokens that it has and the target has not.
        frozen: tensors that are rows of the target's: whatever its vocabulary, they are known.
    """

    kind: ClassVar[str]
    architecture: ClassVar[str]
    rate: ClassVar[float] = 2e-3
    own_tokens: ClassVar[int] = 0
    frozen: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def for_target(cls, header: GGUFHeader, weights: TargetWeights, teacher: Teacher) -> Draft:
        """Return an untrained draft, of a size that suits the target."""

    @classmethod
    def feature_layers(cls, header: GGUFHeader) -> tuple[int, ...]:
        """Return the target's layers whose inputs it reads."""
        return ()

    @abstractmethod
    def begin(self, embeddings: Float32Array, hidden: Float32Array, layers: Float32Array) -> None:
        """Initialize the weights from the target's where they fit.

        Args:
            embeddings: float32 (tokens, width), the target's input rows of the draft's tokens.
            hidden: float32 (n, width), final states of the target's text.
            layers: float32 (n, layers * width), inputs of layers at the same tokens.
        """

    @abstractmethod
    def losses(self, batch: Batch) -> Losses:
        """Return the losses of a batch."""

    @abstractmethod
    def judge(self, batch: Batch) -> list[Judgement]:
        """Return acceptance after every token, for each position of a block; NaN if not judged."""

    @abstractmethod
    def describe(self, writer: Any) -> None:
        """Add the keys of its architecture and its vocabulary to a `gguf.GGUFWriter`."""

    @abstractmethod
    def tensors(self) -> dict[str, AnyArray]:
        """Return all tensors by llama.cpp's names, in NumPy's order of dimensions."""

    @abstractmethod
    def take(self, tensors: dict[str, Float32Array]) -> None:
        """Load the weights that `tensors` returns; ignore tables."""


def precision(bfloat16: bool) -> torch.autocast:
    """Return a context that multiplies matrices in bfloat16; weights and sums stay float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=bfloat16)


def low_rank(
    rows: Float32Array, hidden: Float32Array, rank: int
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Narrow an output matrix as well as possible for the states it is really applied to.

    What all logits have in common has no effect on softmax; the squared error of the rest is the
    least possible over the given states.

    Args:
        rows: float32 (tokens, width).
        hidden: float32 (n, width), a sample of states.
        rank: of the result, at most `width`.

    Returns:
        ``projection`` (width, rank), which turns a state into one with uncorrelated entries of
        mean square 1; ``narrow`` (tokens, rank), which turns that into logits; and ``importance``
        (rank,), the share of each entry in the logits' square.
    """
    centred = rows.astype(np.float64) - rows.mean(0)
    width = rows.shape[1]
    second = hidden.T.astype(np.float64) @ hidden / len(hidden)
    second += np.eye(width) * (1e-5 * np.trace(second) / width)
    values, vectors = np.linalg.eigh(second)
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    strength, directions = np.linalg.eigh(root @ (centred.T @ centred) @ root)
    order = np.argsort(-strength)[:rank]
    chosen, strength = directions[:, order], np.maximum(strength[order], 0.0)
    return (
        (inverse @ chosen).astype(np.float32),
        (rows @ root @ chosen).astype(np.float32),
        (strength / max(strength.sum(), 1e-30)).astype(np.float32),
    )


def scattered(values: Tensor, where: Tensor) -> Tensor:
    """Put values where `where` is True, and NaN elsewhere: float32."""
    out = torch.full(where.shape, torch.nan)
    out[where] = values
    return out


def shifted(values: Tensor, count: int) -> Tensor:
    """Move values `count` entries to the front; NaN fills the end, as it does between answers."""
    end = torch.full((len(values), count), torch.nan)
    return torch.cat((values[:, count:], end), dim=1)


def by_position(steps: list[Tensor]) -> list[float]:
    """Return the acceptance of each proposal of a block, if all before it were accepted.

    Args:
        steps: for each position (rows, length): its chance to be accepted in a block that begins
            after this token; NaN if there is no such proposal.
    """
    found, before = [], torch.ones_like(steps[0])
    for step in steps:
        known = ~torch.isnan(before * step)
        weight = before[known].sum()
        product = before * step
        found.append(float(product[known].sum() / weight) if weight > 0 else 0.0)
        before = product
    return found
