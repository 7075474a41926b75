"""What all kinds of drafts share: layers, the target as teacher, and what each kind must do.

Layers are computed as llama.cpp computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec._types import AnyArray, Float32Array
from edgespec.distill.corpus import Batch
from edgespec.distill.target import DraftVocabulary, TargetWeights
from edgespec.gguf.header import GGUFHeader

__all__ = [
    "EPSILON",
    "POSITIONS",
    "Attention",
    "Draft",
    "FeedForward",
    "Judgement",
    "Losses",
    "Norm",
    "RowAttention",
    "Teacher",
    "at",
    "attention_mask",
    "block_tensors",
    "by_position",
    "low_rank",
    "precision",
    "rotate",
    "same_text",
    "scattered",
    "shifted",
]

EPSILON = 1e-5


class Norm(nn.Module):
    """RMS norm with a weight for each dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize: (..., width) -> (..., width)."""
        return functional.rms_norm(x, x.shape[-1:], self.weight, EPSILON)


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Apply the rotary embedding of neighbouring pairs, llama.cpp's "norm" type.

    Args:
        x: (batch, heads, tokens, head width).
        positions: (batch, tokens).
        base: of the wavelengths.
    """
    half = x.shape[-1] // 2
    wave = base ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * wave
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2)


def attention_mask(segments: Tensor) -> Tensor:
    """Turn numbers of texts (batch, tokens) into a mask (batch, 1, tokens, tokens).

    A token may attend to itself and to those before it in the same text.
    """
    count = segments.shape[1]
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    return ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]


def same_text(segments: Tensor) -> Tensor:
    """Turn numbers of texts (batch, entries) into bool (batch, entries, entries)."""
    return segments[:, :, None] == segments[:, None, :]


class Attention(nn.Module):
    """Causal attention; its last matrix starts at zero, so that the block starts as identity."""

    def __init__(self, inputs: int, width: int, heads: int, base: float) -> None:
        super().__init__()
        self.heads, self.base = heads, base
        self.q = nn.Linear(inputs, width, bias=False)
        self.k = nn.Linear(inputs, width, bias=False)
        self.v = nn.Linear(inputs, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.output.weight)

    def split(self, x: Tensor) -> Tensor:
        """Split heads: (batch, tokens, width) -> (batch, heads, tokens, head width)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Attend: (batch, tokens, inputs) -> (batch, tokens, width)."""
        q = rotate(self.split(self.q(x)), positions, self.base)
        k = rotate(self.split(self.k(x)), positions, self.base)
        mixed = functional.scaled_dot_product_attention(q, k, self.split(self.v(x)), mask)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class RowAttention(Attention):
    """Attention of an EAGLE-3 head while it learns from its own states.

    It is called for the first, second, third ... step of the same entries. At step j of a block,
    entry P looks at what lies before the block, as the first step left it, and at the block's own
    entries, each as its own step left it.
    """

    def begin(self, positions: Tensor, same: Tensor) -> None:
        """Start with new entries.

        Args:
            positions: (batch, entries).
            same: bool (batch, entries, entries), which entries are of the same text.
        """
        self._positions, self._same = positions, same
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def forward(self, x: Tensor, needed: Tensor) -> Tensor:  # type: ignore[override]
        """Take the next step: (batch, entries, inputs) -> (batch, entries, width).

        Args:
            needed: bool (batch, entries), whose results are wanted; 0 elsewhere. The first step
                takes keys and values from all.
        """
        wanted = needed if self._keys else torch.ones_like(needed)
        places = ((self.q, needed), (self.k, wanted))
        q, k = (rotate(self.split(at(p, m, x)), self._positions, self.base) for m, p in places)
        self._keys.append(k)
        self._values.append(self.split(at(wanted, self.v, x)))
        own = range(1, len(self._keys))  # the block's entries after its first
        step = len(self._keys) - 1
        scores = q @ self._keys[0].transpose(-1, -2)
        count = scores.shape[-1]
        before = torch.ones(count, count, dtype=torch.bool).tril(-step)
        scores = scores.masked_fill(~(self._same & before)[:, None], -torch.inf)
        beside = [(q * _delayed(self._keys[i], step - i)).sum(-1, keepdim=True) for i in own]
        weights = (torch.cat((scores, *beside), dim=-1) * q.shape[-1] ** -0.5).softmax(-1)
        mixed = weights[..., :count] @ self._values[0]
        for i in own:
            share = weights[..., count + i - 1 : count + i]
            mixed = mixed + share * _delayed(self._values[i], step - i)
        return at(needed, self.output, mixed.transpose(1, 2).flatten(-2))


def at(places: Tensor, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a layer to some entries (batch, entries) of x, which costs only these; 0 elsewhere."""
    found = layer(x[places])
    out = found.new_zeros((*places.shape, found.shape[-1]))
    out[places] = found
    return out


def _delayed(x: Tensor, count: int) -> Tensor:
    """Move (batch, heads, entries, width) back by `count` entries."""
    if count == 0:
        return x
    return torch.cat((torch.zeros_like(x[:, :, :count]), x[:, :, :-count]), dim=2)


class FeedForward(nn.Module):
    """SwiGLU; its last matrix starts at zero."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: (..., width) -> (..., width)."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def block_tensors(first_norm: Norm, block: nn.Module) -> dict[str, Tensor]:
    """Return a block's parameters by llama.cpp's names without the block's number."""
    attention, net = block.attention, block.forward_net
    assert isinstance(attention, Attention) and isinstance(net, FeedForward)
    assert isinstance(block.forward_norm, Norm)
    return {
        "attn_norm.weight": first_norm.weight,
        "attn_q.weight": attention.q.weight,
        "attn_k.weight": attention.k.weight,
        "attn_v.weight": attention.v.weight,
        "attn_output.weight": attention.output.weight,
        "ffn_norm.weight": block.forward_norm.weight,
        "ffn_gate.weight": net.gate.weight,
        "ffn_up.weight": net.up.weight,
        "ffn_down.weight": net.down.weight,
    }


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
        epsilon: of its norms.
        frozen: tensors that are rows of the target's: whatever its vocabulary, they are known.
    """

    kind: ClassVar[str]
    architecture: ClassVar[str]
    rate: ClassVar[float] = 2e-3
    own_tokens: ClassVar[int] = 0
    epsilon: ClassVar[float] = EPSILON
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
