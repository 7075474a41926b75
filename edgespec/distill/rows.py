"""Attention of an EAGLE-3 head while it learns from its own states.

At step j of a block, entry P looks at what lies before the block, as the first step made it, and
at the block's own entries, each as the step made it that it belongs to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgespec.distill.layers import Attention, rotate

__all__ = ["RowAttention", "same_text"]


def same_text(segments: Tensor) -> Tensor:
    """(batch, entries) numbers of texts -> bool (batch, entries, entries)."""
    return segments[:, :, None] == segments[:, None, :]


class RowAttention(Attention):
    """Attention that is called for the first, second, third ... step of the same entries."""

    def begin(self, positions: Tensor, same: Tensor) -> None:
        """New entries.

        Args:
            positions: (batch, entries).
            same: bool (batch, entries, entries), who belongs to the same text.
        """
        self._positions, self._same = positions, same
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """The next step: (batch, entries, inputs) -> (batch, entries, width)."""
        q, k = (rotate(self.split(m(x)), self._positions, self.base) for m in (self.q, self.k))
        self._keys.append(k)
        self._values.append(self.split(self.v(x)))
        own = range(1, len(self._keys))  # the block's entries behind its first
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
        return self.output(mixed.transpose(1, 2).flatten(-2))


def _delayed(x: Tensor, count: int) -> Tensor:
    """(batch, heads, entries, width), moved `count` entries on."""
    if count == 0:
        return x
    return torch.cat((torch.zeros_like(x[:, :, :count]), x[:, :, :-count]), dim=2)
