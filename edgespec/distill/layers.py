"""The layers of drafts, computed as llama.cpp computes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "EPSILON",
    "Attention",
    "FeedForward",
    "Norm",
    "RowAttention",
    "at",
    "attention_mask",
    "block_tensors",
    "rotate",
    "same_text",
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
        """(..., width) -> (..., width)."""
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
