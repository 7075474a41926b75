"""The `eagle3` kind: a head that reads the target's hidden states, as llama.cpp runs it.

Entry P of the head combines the token at P + 1 with a state at P, and predicts the token at P + 2.
For the first proposal of a block, the state comes from the target's features; for every later one,
it is the head's own output at the entry before. Both are trained (Li et al. 2025, "EAGLE-3",
training-time test).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec._types import AnyArray, Float32Array, Int64Array
from edgespec.distill.corpus import Batch
from edgespec.distill.draft import (
    POSITIONS,
    Draft,
    FeedForward,
    Judgement,
    Losses,
    Norm,
    RowAttention,
    Teacher,
    at,
    block_tensors,
    same_text,
    scattered,
    shifted,
)
from edgespec.distill.plan import feature_layers
from edgespec.distill.target import TargetWeights
from edgespec.gguf.header import GGUFHeader

__all__ = ["Eagle", "EagleShape"]


_STEPS = 4
_LATER = 0.7  # weight of each step's loss, relative to the one before
_EVERY = 3  # in later steps, one entry in so many is compared with the target's distribution
_STATE_WEIGHT = 4.0
_RIDGE = 1e-3


@dataclass(frozen=True)
class EagleShape:
    """Sizes of the head.

    Attributes:
        width: of its states and the target's.
        heads, inner: of its block.
        layers: the target's layers whose inputs it reads.
        base: of the rotary embedding's wavelengths.
    """

    width: int
    heads: int
    inner: int
    layers: tuple[int, ...]
    base: float = 10000.0

    @classmethod
    def for_target(cls, header: GGUFHeader) -> EagleShape:
        """Return sizes for a target: as wide as it is, with a block like a llama's."""
        width = header.embedding_length
        heads = width // 64 if width % 64 == 0 else header.head_count
        inner = max(32, round(width * 8 / 3 / 32) * 32)
        return cls(width, heads, inner, Eagle.feature_layers(header))

    def as_json(self) -> dict[str, Any]:
        """Return the sizes by name."""
        return asdict(self)


class _Entries(NamedTuple):
    """A batch as the head sees it, (rows, length - 1) each."""

    embeddings: Tensor
    features: Tensor
    positions: Tensor
    same: Tensor  # (rows, length - 1, length - 1): of one text
    hidden: Tensor  # the target's, after the entry's token
    whole: Tensor  # token and state are of one text
    judged: Tensor


class _Step(NamedTuple):
    """The result of one step of drafting: states (rows, entries, width), and which are judged."""

    states: Tensor
    judged: Tensor


class _Goal(NamedTuple):
    """The target's prediction at n places, as the loss needs it.

    Cross-entropy with p is logsumexp(logits) minus the logit expected under p. Logits are linear in
    the normed state, so the expected logit is that state times the expected output row, which is
    `output` (n, width): no step needs a product over all tokens.
    """

    output: Tensor
    entropy: Tensor


class Eagle(Draft):
    """An EAGLE-3 head with the target's embeddings and, frozen, its output rows.

    Its state is trained to be the target's final state, normed, so that it reads states of the
    same kind as it writes.
    """

    kind = "eagle3"
    architecture = "eagle3"
    frozen = ("output.weight",)

    @classmethod
    def for_target(cls, header: GGUFHeader, weights: TargetWeights, teacher: Teacher) -> Eagle:
        """Return an untrained head, as wide as the target."""
        return cls(EagleShape.for_target(header), teacher, weights)

    @classmethod
    def feature_layers(cls, header: GGUFHeader) -> tuple[int, ...]:
        """Return the layers whose inputs it reads: one low, one in the middle, and the last."""
        return feature_layers(cls.kind, header)

    def __init__(self, shape: EagleShape, teacher: Teacher, weights: TargetWeights) -> None:
        super().__init__()
        self.shape, self._teacher, self._weights = shape, teacher, weights
        width, inputs = shape.width, shape.width * len(shape.layers)
        self.fuse = nn.Linear(inputs, width, bias=False)
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(inputs))
        self.token_norm, self.state_norm = Norm(width), Norm(width)
        self.attention = RowAttention(2 * width, width, shape.heads, shape.base)
        self.forward_norm = Norm(width)
        self.forward_net = FeedForward(width, shape.inner)
        self.norm = Norm(width)
        self.output: Tensor
        self.register_buffer("output", teacher.rows.clone())
        self._final = torch.from_numpy(weights.final_norm(width))
        with torch.no_grad():
            self.norm.weight.copy_(self._final)

    def begin(self, embeddings: Float32Array, hidden: Float32Array, layers: Float32Array) -> None:
        """Map the last layer's input to what comes closest to the final state."""
        width = self.shape.width
        features = torch.from_numpy(layers)
        scale = features.square().mean(0).sqrt().clamp_min(1e-6)
        last = (features / scale)[:, -width:].double()
        wanted = (torch.from_numpy(hidden) / self._final).double()
        gram = last.T @ last
        gram += torch.eye(width) * (_RIDGE * gram.diagonal().mean())
        solution = torch.linalg.solve(gram, last.T @ wanted)
        with torch.no_grad():
            self.scale.copy_(1.0 / scale)
            self.fuse.weight.zero_()
            self.fuse.weight[:, -width:] = solution.T.float()

    # -- one step after the other -----------------------------------------------------------

    def steps(self, entries: _Entries, count: int) -> Iterator[_Step]:
        """Yield the states of the entries as the first, second, third ... proposal of a block.

        Only states that are judged, or that later ones of a block depend on, are computed.
        """
        self.attention.begin(entries.positions, entries.same)
        states = self.fuse(entries.features * self.scale).float()
        valid = entries.whole
        for number in range(count):
            if number > 0:
                states = _behind(states)
                valid = valid & _behind(valid)
            needed = _ahead(entries.judged, count - 1 - number)
            states = self._block(entries.embeddings, states, needed)
            yield _Step(states, valid & entries.judged)

    def _block(self, embeddings: Tensor, states: Tensor, needed: Tensor) -> Tensor:
        both = torch.cat((self.token_norm(embeddings), self.state_norm(states)), dim=-1)
        x = states + self.attention(both, needed)
        return x + at(needed, lambda some: self.forward_net(self.forward_norm(some)), x)

    def logits(self, states: Tensor) -> Tensor:
        """Compute logits: (..., width) -> (..., draft tokens)."""
        return self._tokens(self.norm(states))

    def _tokens(self, normed: Tensor) -> Tensor:
        return (normed @ self.output.T).float()

    def losses(self, batch: Batch) -> Losses:
        """Return cross-entropy with the target's distribution plus the distance of the states."""
        entries = self._entries(batch)
        wanted = entries.hidden / self._final
        with torch.no_grad():
            goal = self._goal(entries.hidden[entries.judged])
        place = torch.full(entries.judged.shape, -1)
        place[entries.judged] = torch.arange(len(goal.entropy))
        total, weight, kl = torch.zeros(()), 1.0, 0.0
        for number, (states, judged) in enumerate(self.steps(entries, _STEPS)):
            chosen = judged if number == 0 else judged & _thinned(judged.shape, number)
            rows = place[chosen]
            normed = self.norm(states[chosen])
            expected = (normed * goal.output[rows]).sum(-1)
            across = self._tokens(normed).logsumexp(-1) - expected
            even = functional.rms_norm(states[judged], states.shape[-1:])
            distance = functional.smooth_l1_loss(even, wanted[judged])
            total = total + weight * (across.mean() + _STATE_WEIGHT * distance)
            if number == 0:
                kl = float((across.detach() - goal.entropy[rows]).mean())
            weight *= _LATER
        return Losses(total, kl)

    def _goal(self, hidden: Tensor) -> _Goal:
        """Compute the goal from the target's states (n, width)."""
        log_p = self._teacher.log_p(hidden).float()
        p = log_p.exp()
        return _Goal((p @ self.output).float(), -torch.linalg.vecdot(p, log_p))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def judge(self, batch: Batch) -> list[Judgement]:
        """Judge each position by its own step, from the states that the steps before it left."""
        entries = self._entries(batch)
        top = torch.from_numpy(batch.top)[:, 1:]
        normalizer = torch.from_numpy(batch.normalizer)[:, 1:]
        found = []
        for number, (states, judged) in enumerate(self.steps(entries, POSITIONS)):
            judgement = self._teacher.judge(
                self.logits(states[judged]), entries.hidden[judged], top[judged], normalizer[judged]
            )
            # A block that begins after entry P has its proposal `number` at P + number.
            greedy, overlap = (shifted(scattered(values, judged), number) for values in judgement)
            found.append(Judgement(greedy, overlap))
        return found

    def _entries(self, batch: Batch) -> _Entries:
        segments = torch.from_numpy(batch.segments)
        whole = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] >= 0)
        return _Entries(
            self._embeddings(batch.tokens[:, 1:]),
            torch.from_numpy(batch.layers)[:, :-1],
            torch.from_numpy(batch.positions)[:, :-1],
            same_text(segments[:, :-1]),
            torch.from_numpy(batch.hidden)[:, 1:],
            whole,
            torch.from_numpy(batch.judged)[:, 1:] & whole,
        )

    def _embeddings(self, tokens: Int64Array) -> Tensor:
        distinct, inverse = np.unique(tokens, return_inverse=True)
        rows = torch.from_numpy(self._weights.embeddings(distinct.astype(np.int32)))
        return rows[torch.from_numpy(inverse.reshape(tokens.shape))]

    # -- as a file --------------------------------------------------------------------------

    def describe(self, writer: Any) -> None:
        """Add the keys of llama.cpp's eagle3, and the target's tokenizer."""
        shape = self.shape
        writer.add_context_length(int(self._weights.value("context_length", 4096)))
        writer.add_embedding_length(shape.width)
        writer.add_block_count(1)
        writer.add_feed_forward_length(shape.inner)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.heads)
        writer.add_rope_freq_base(shape.base)
        writer.add_uint32("eagle3.target_hidden_size", shape.width)
        writer.add_array("eagle3.target_layers", list(shape.layers))
        for key in self._weights.keys:
            if key.startswith("tokenizer.ggml."):
                field = self._weights.field(key)
                item = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), field.types[0], item)

    def tensors(self) -> dict[str, AnyArray]:
        """Return tensors by llama.cpp's names; the features' scale is folded into the fusion."""
        found = {name: p.detach().numpy() for name, p in self._by_name().items()}
        return {
            "fc.weight": (self.fuse.weight * self.scale).detach().numpy(),
            **found,
            "d2t": self._teacher.vocabulary.target_ids.astype(np.int64),
        }

    def take(self, tensors: dict[str, Float32Array]) -> None:
        """Load what `tensors` returns."""
        with torch.no_grad():
            self.fuse.weight.copy_(torch.from_numpy(tensors["fc.weight"]) / self.scale)
            for name, parameter in self._by_name().items():
                parameter.copy_(torch.from_numpy(tensors[name]))

    def _by_name(self) -> dict[str, Tensor]:
        block = {f"blk.0.{name}": p for name, p in block_tensors(self.token_norm, self).items()}
        return {
            "output_norm.weight": self.norm.weight,
            "output.weight": self.output,
            "blk.0.attn_norm_2.weight": self.state_norm.weight,
            **block,
        }


def _behind(values: Tensor) -> Tensor:
    """Give each entry the value of the one before; zero, or False, to the first."""
    return torch.cat((torch.zeros_like(values[:, :1]), values[:, :-1]), dim=1)


def _ahead(judged: Tensor, most: int) -> Tensor:
    """Return whether an entry, or one up to `most` behind it, is judged."""
    found = judged
    for _ in range(most):
        found = judged | torch.cat((found[:, 1:], torch.zeros_like(found[:, :1])), dim=1)
    return found


def _thinned(shape: torch.Size, number: int) -> Tensor:
    return (torch.arange(shape[1]) + number) % _EVERY == 0
