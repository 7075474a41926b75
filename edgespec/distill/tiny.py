"""The `tiny` kind: a small llama of its own, with a reduced vocabulary."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec._types import AnyArray, Float32Array
from edgespec.distill.corpus import Batch
from edgespec.distill.draft import (
    POSITIONS,
    Attention,
    Draft,
    FeedForward,
    Judgement,
    Losses,
    Norm,
    Teacher,
    attention_mask,
    block_tensors,
    low_rank,
    scattered,
    shifted,
)
from edgespec.distill.target import TargetWeights
from edgespec.gguf.header import GGUFHeader

__all__ = ["Tiny", "TinyShape"]


_HEAD = 64
_CONTEXT = 1 << 17  # positions are relative, so no text is too long
_STATE_WEIGHT = 1.0


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the network.

    Attributes:
        tokens: of its vocabulary, with the one for all others at the end.
        width, heads, inner, layers: of its blocks.
        base: of the rotary embedding's wavelengths.
    """

    tokens: int
    width: int
    heads: int
    inner: int
    layers: int
    base: float = 10000.0

    @classmethod
    def for_target(cls, width: int, tokens: int) -> TinyShape:
        """Return sizes for a target: two fifths as wide, two blocks, a few percent of its cost."""
        heads = max(1, round(0.4 * width / _HEAD))
        narrow = heads * _HEAD if width >= _HEAD else width
        return cls(tokens, narrow, heads if width >= _HEAD else 1, 3 * narrow, 2)

    def as_json(self) -> dict[str, Any]:
        """Return the sizes by name."""
        return asdict(self)


class Block(nn.Module):
    """One layer of a llama."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.attention_norm = Norm(shape.width)
        self.attention = Attention(shape.width, shape.width, shape.heads, shape.base)
        self.forward_norm = Norm(shape.width)
        self.forward_net = FeedForward(shape.width, shape.inner)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Apply the block: (batch, tokens, width) -> the same shape."""
        x = x + self.attention(self.attention_norm(x), positions, mask)
        return x + self.forward_net(self.forward_norm(x))


class Tiny(Draft):
    """A llama whose last token stands for all tokens that it does not have.

    Besides the target's distribution it learns the target's hidden state: as much of what the
    output matrix uses as its own width can hold.
    """

    kind = "tiny"
    architecture = "llama"
    own_tokens = 1

    @classmethod
    def for_target(cls, header: GGUFHeader, weights: TargetWeights, teacher: Teacher) -> Tiny:
        """Return an untrained draft, two blocks deep."""
        tokens = len(teacher.vocabulary.target_ids) + cls.own_tokens
        return cls(TinyShape.for_target(header.embedding_length, tokens), teacher)

    def __init__(self, shape: TinyShape, teacher: Teacher) -> None:
        super().__init__()
        self.shape, self._teacher = shape, teacher
        table = teacher.vocabulary.to_draft.astype(np.int64)
        table[table < 0] = shape.tokens - 1
        self._to_draft = torch.from_numpy(table)
        self.embedding = nn.Parameter(torch.randn(shape.tokens, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width)
        self.output = nn.Parameter(torch.randn(shape.tokens, shape.width) * shape.width**-0.5)
        self.register_buffer("projection", torch.zeros(teacher.rows.shape[1], shape.width))
        self.register_buffer("importance", torch.ones(shape.width))

    def begin(self, embeddings: Float32Array, hidden: Float32Array, layers: Float32Array) -> None:
        """Narrow the target's matrices to its own width."""
        width = self.shape.width
        projection, narrow, importance = low_rank(self._teacher.rows.numpy(), hidden, width)
        self.projection.copy_(torch.from_numpy(projection))
        # The root lies between equal weights and the share in the logits.
        weights = torch.from_numpy(importance).sqrt()
        self.importance.copy_(weights / weights.mean())
        centred = embeddings - embeddings.mean(0)
        _, directions = np.linalg.eigh(centred.T @ centred)
        inputs = centred @ directions[:, ::-1][:, :width]
        inputs /= np.sqrt(np.mean(inputs**2)) or 1.0
        with torch.no_grad():
            self.embedding[:-1] = torch.from_numpy(np.ascontiguousarray(inputs))
            self.embedding[-1] = 0.0
            self.output[:-1] = torch.from_numpy(narrow)
            self.output[-1] = 0.0

    def states(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Compute normed states: draft tokens (batch, tokens) -> (batch, tokens, width)."""
        x = self.embedding[tokens]
        for block in self.blocks:
            x = block(x, positions, mask)
        normed: Tensor = self.norm(x)
        return normed

    def logits(self, states: Tensor) -> Tensor:
        """Compute logits: (..., width) -> (..., tokens - 1); the last token is never proposed."""
        return (states @ self.output[:-1].T).float()

    def losses(self, batch: Batch) -> Losses:
        """Return cross-entropy with the target's distribution plus the distance of the states."""
        states, judged = self._judged_states(batch)
        hidden = torch.from_numpy(batch.hidden)[judged]
        with torch.no_grad():
            log_p = self._teacher.log_p(hidden)
            p = log_p.exp()
            entropy = -(p * log_p).sum(-1).mean()
            wanted = hidden @ self.projection
        entropy_across = -(p * self.logits(states).log_softmax(-1)).sum(-1).mean()
        distance = functional.smooth_l1_loss(states, wanted, reduction="none") * self.importance
        total = entropy_across + _STATE_WEIGHT * distance.mean()
        return Losses(total, float(entropy_across.detach() - entropy))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def judge(self, batch: Batch) -> list[Judgement]:
        """Judge every position alike: the draft reads accepted tokens like any others."""
        states, judged = self._judged_states(batch)
        hidden, top, normalizer = (
            torch.from_numpy(array)[judged] for array in (batch.hidden, batch.top, batch.normalizer)
        )
        found = self._teacher.judge(self.logits(states), hidden, top, normalizer)
        greedy, overlap = (scattered(values, judged) for values in found)
        return [
            Judgement(shifted(greedy, ahead), shifted(overlap, ahead)) for ahead in range(POSITIONS)
        ]

    # -- as a file --------------------------------------------------------------------------

    def describe(self, writer: Any) -> None:
        """Add the keys of a llama without a tokenizer, and the table of its tokens."""
        shape, vocabulary = self.shape, self._teacher.vocabulary
        writer.add_context_length(_CONTEXT)
        writer.add_embedding_length(shape.width)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.inner)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.heads)
        writer.add_rope_dimension_count(shape.width // shape.heads)
        writer.add_rope_freq_base(shape.base)
        writer.add_vocab_size(shape.tokens)
        writer.add_tokenizer_model("none")
        table = np.append(vocabulary.target_ids, -1).astype(np.int32)
        writer.add_array("edgespec.draft_to_target", table.tolist())
        writer.add_uint32("edgespec.unknown_token", shape.tokens - 1)
        writer.add_uint32("edgespec.target_vocabulary_size", vocabulary.target_size)

    def tensors(self) -> dict[str, AnyArray]:
        """Return tensors by llama.cpp's names."""
        return {name: p.detach().numpy() for name, p in self._by_name().items()}

    def take(self, tensors: dict[str, Float32Array]) -> None:
        """Load what `tensors` returns."""
        with torch.no_grad():
            for name, parameter in self._by_name().items():
                parameter.copy_(torch.from_numpy(tensors[name]))

    def _by_name(self) -> dict[str, Tensor]:
        found = {
            "token_embd.weight": self.embedding,
            "output_norm.weight": self.norm.weight,
            "output.weight": self.output,
        }
        for number, block in enumerate(self.blocks):
            found |= {
                f"blk.{number}.{name}": p
                for name, p in block_tensors(block.attention_norm, block).items()
            }
        return found

    def _judged_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens = self._to_draft[torch.from_numpy(batch.tokens)]
        mask = attention_mask(torch.from_numpy(batch.segments))
        states = self.states(tokens, torch.from_numpy(batch.positions), mask)
        judged = torch.from_numpy(batch.judged)
        return states[judged], judged
