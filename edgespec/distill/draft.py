"""What the two kinds of drafts have in common while they are trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from edgespec._types import AnyArray, Float32Array
from edgespec.distill.batches import Batch
from edgespec.distill.teacher import Judgement

__all__ = ["POSITIONS", "Draft", "Losses", "low_rank", "precision", "scattered"]


POSITIONS = 4
"""Of a block, that acceptance is measured at."""


class Losses(NamedTuple):
    """Of a batch.

    Attributes:
        total: what is minimized.
        kl: KL(p || q) in nats a token, over the draft's tokens, for the record.
    """

    total: Tensor
    kl: float


class Draft(nn.Module, ABC):
    """A network that learns from batches of the target's text, and can be written as GGUF.

    Attributes:
        kind, architecture: what it is called here, and in llama.cpp.
    """

    kind: str
    architecture: str

    @abstractmethod
    def begin(self, embeddings: Float32Array, hidden: Float32Array, layers: Float32Array) -> None:
        """Take over from the target what fits.

        Args:
            embeddings: float32 (tokens of the target's, width), its input rows.
            hidden: float32 (n, width), final states of its text.
            layers: float32 (n, layers * width), inputs of layers with them.
        """

    @abstractmethod
    def losses(self, batch: Batch) -> Losses:
        """What there is to learn from a batch."""

    @abstractmethod
    def judge(self, batch: Batch) -> list[Judgement]:
        """For each position of a block, acceptance behind every token; NaN where not judged."""

    @abstractmethod
    def describe(self, writer: Any) -> None:
        """Add the keys of its architecture and its vocabulary to a `gguf.GGUFWriter`."""

    @abstractmethod
    def tensors(self) -> dict[str, AnyArray]:
        """Everything of a GGUF by llama.cpp's names, in NumPy's order of dimensions."""

    @abstractmethod
    def take(self, tensors: dict[str, Float32Array]) -> None:
        """The reverse of `tensors`, tables left out."""


def precision(bfloat16: bool) -> torch.autocast:
    """In which matrices are multiplied within; weights and sums stay float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=bfloat16)


def low_rank(
    rows: Float32Array, hidden: Float32Array, rank: int
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """The best narrow form of an output matrix, for the states it is really applied to.

    Softmax does not see what all logits have in common; of the rest, the least squared error over
    the given states.

    Args:
        rows: float32 (tokens, width).
        hidden: float32 (n, width), a sample of states.
        rank: of the result, at most `width`.

    Returns:
        ``projection`` (width, rank), which makes of a state one whose entries are uncorrelated
        and of mean square 1; ``narrow`` (tokens, rank), so that ``projection`` and it give the
        logits; and ``importance`` (rank,), the share of each entry in the logits' square.
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
    """Values of the chosen entries in their places, NaN elsewhere: float32, as `where`."""
    out = torch.full(where.shape, torch.nan)
    out[where] = values
    return out
