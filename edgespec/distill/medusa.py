"""The `medusa` kind: heads on the target's last hidden state, one for each token ahead.

Head i reads the state after the token at P and predicts the token at P + 2 + i; the one at P + 1 is
the target's own (Cai et al. 2024, "Medusa"). A head is a residual block, a projection, and the
target's output rows, which all heads share: with a trained output matrix of its own each was
right as often in the same time, at three times the size (models/README.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec._types import AnyArray, Float32Array
from edgespec.distill.corpus import Batch
from edgespec.distill.draft import POSITIONS, Draft, Judgement, Losses, Teacher, scattered
from edgespec.distill.target import TargetWeights
from edgespec.gguf.header import GGUFHeader

__all__ = ["Medusa"]

_HEADS = POSITIONS
_LATER = 0.8  # weight of each head's loss, relative to the one before
_EVERY = 2  # heads behind the first learn from one state in so many
_RIDGE = 1e-2


class Medusa(Draft):
    """Heads that share the target's output rows, frozen."""

    kind = "medusa"
    architecture = "medusa"
    rate = 1e-3
    frozen = ("output.weight",)

    @classmethod
    def for_target(cls, header: GGUFHeader, weights: TargetWeights, teacher: Teacher) -> Medusa:
        """Return untrained heads, as wide as the target."""
        return cls(header.embedding_length, teacher)

    def __init__(self, width: int, teacher: Teacher) -> None:
        super().__init__()
        self._teacher = teacher
        self.residual = nn.Parameter(torch.zeros(_HEADS, width, width))
        self.bias = nn.Parameter(torch.zeros(_HEADS, width))
        self.project = nn.Parameter(torch.eye(width).repeat(_HEADS, 1, 1))
        self.output: Tensor
        self.register_buffer("output", teacher.rows.clone())

    def begin(self, embeddings: Float32Array, hidden: Float32Array, layers: Float32Array) -> None:
        """Project each state to what comes closest to the one so far ahead; no residual yet.

        Neighbours in `hidden` are states after neighbouring tokens, but for the ends of texts.
        """
        states = torch.from_numpy(hidden).double()
        gram = states.T @ states
        gram += torch.eye(len(gram)) * (_RIDGE * gram.diagonal().mean())
        with torch.no_grad():
            for ahead, project in enumerate(self.project, 1):
                both = states[:-ahead].T @ states[ahead:]
                project.copy_(torch.linalg.solve(gram, both).T)

    def states(self, head: int, hidden: Tensor) -> Tensor:
        """Compute what the output rows are applied to: (n, width) -> (n, width)."""
        inner = functional.linear(hidden, self.residual[head], self.bias[head])
        return functional.linear(hidden + functional.silu(inner), self.project[head])

    def logits(self, head: int, hidden: Tensor) -> Tensor:
        """Compute a head's logits: (n, width) -> (n, draft tokens)."""
        return (self.states(head, hidden) @ self.output.T).float()

    def losses(self, batch: Batch) -> Losses:
        """Return the heads' cross-entropy with the target's distributions so far ahead.

        It is logsumexp(logits) minus the logit expected under p, which is the head's state times
        the expected output row.
        """
        hidden, judged = torch.from_numpy(batch.hidden), torch.from_numpy(batch.judged)
        with torch.no_grad():
            log_p = self._teacher.log_p(hidden[judged]).float()
            p = log_p.exp()
            expected, entropy = (p @ self.output).float(), -torch.linalg.vecdot(p, log_p)
        place = torch.full(judged.shape, -1)
        place[judged] = torch.arange(len(entropy))
        total, weight, kl = torch.zeros(()), 1.0, 0.0
        for head in range(_HEADS):
            chosen = _followed(batch, head + 1)
            if head > 0:
                chosen &= (torch.arange(chosen.shape[1]) + head) % _EVERY == 0
            goal = _ahead(place, head + 1)[chosen]
            states = self.states(head, hidden[chosen])
            normalizers = (states @ self.output.T).float().logsumexp(-1)
            across = normalizers - (states * expected[goal]).sum(-1)
            if len(across):
                total = total + weight * across.mean()
            if head == 0 and len(across):
                kl = float((across.detach() - entropy[goal]).mean())
            weight *= _LATER
        return Losses(total, kl)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def judge(self, batch: Batch) -> list[Judgement]:
        """Judge each position of a block by its own head, from the state that the block has."""
        tensors = (batch.hidden, batch.top, batch.normalizer)
        hidden, top, normalizer = (torch.from_numpy(array) for array in tensors)
        found = []
        for head in range(_HEADS):
            begins = _followed(batch, head + 1)
            goal = (_ahead(values, head + 1)[begins] for values in (hidden, top, normalizer))
            judgement = self._teacher.judge(self.logits(head, hidden[begins]), *goal)
            found.append(Judgement(*(scattered(values, begins) for values in judgement)))
        return found

    # -- as a file --------------------------------------------------------------------------

    def describe(self, writer: Any) -> None:
        """Add the keys of `gguf.draft_metadata`."""
        vocabulary = self._teacher.vocabulary
        writer.add_embedding_length(self.output.shape[1])
        writer.add_uint32("medusa.head_count", _HEADS)
        writer.add_array("edgespec.draft_to_target", vocabulary.target_ids.tolist())
        writer.add_uint32("edgespec.target_vocabulary_size", vocabulary.target_size)

    def tensors(self) -> dict[str, AnyArray]:
        """Return tensors by the names in `gguf.draft_metadata`."""
        found = {name: p.detach().numpy() for name, p in self._by_name().items()}
        return {**found, "medusa.residual.bias": self.bias.detach().numpy().reshape(-1)}

    def take(self, tensors: dict[str, Float32Array]) -> None:
        """Load what `tensors` returns."""
        with torch.no_grad():
            for name, parameter in self._by_name().items():
                parameter.copy_(torch.from_numpy(tensors[name]))
            bias = np.ascontiguousarray(tensors["medusa.residual.bias"])
            self.bias.copy_(torch.from_numpy(bias).reshape(self.bias.shape))

    def _by_name(self) -> dict[str, Tensor]:
        return {
            "medusa.residual.weight": self.residual,
            "medusa.project.weight": self.project,
            "output.weight": self.output,
        }


def _ahead(values: Tensor, count: int) -> Tensor:
    """Give each place (batch, tokens, ...) the value so far ahead; the last have any."""
    return torch.cat((values[:, count:], values[:, :count]), dim=1)


def _followed(batch: Batch, count: int) -> Tensor:
    """Return whether a state and the one so far ahead are judged, and of the same text."""
    judged, segments = torch.from_numpy(batch.judged), torch.from_numpy(batch.segments)
    found = judged & _ahead(judged, count) & (segments == _ahead(segments, count))
    found[:, -count:] = False
    return found
