"""The target's own matrices, as float32: what a draft begins with and is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from edgespec._types import Float32Array, Int32Array
from edgespec.errors import UsageError

__all__ = ["TargetWeights"]


_CLOSE = 0.98


class TargetWeights:
    """Rows of a GGUF's matrices, dequantized when asked for.

    Raises:
        UsageError: the file is one of several parts.
    """

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if int(self._value("split.count", 1)) > 1:
            raise UsageError(f"{path.name} is one of several parts: merge them with gguf-split")
        self.architecture = str(self._value("general.architecture", ""))
        self._softcap = float(self.value("final_logit_softcapping", 0.0))

    def value(self, key: str, default: Any = None) -> Any:
        """A key of the architecture's, like "rope.freq_base"."""
        return self._value(f"{self.architecture}.{key}", default)

    def field(self, key: str) -> Any:
        """A key and its type as gguf has them; None if it is not there."""
        return self._reader.fields.get(key)

    @property
    def keys(self) -> list[str]:
        """All keys."""
        return list(self._reader.fields)

    def embeddings(self, tokens: Int32Array) -> Float32Array:
        """Input rows: float32 (n, width)."""
        return self._rows("token_embd.weight", tokens)

    def output_rows(self, tokens: Int32Array) -> Float32Array:
        """Output rows: float32 (n, width)."""
        tied = "output.weight" not in self._tensors
        return self._rows("token_embd.weight" if tied else "output.weight", tokens)

    def final_norm(self, width: int) -> Float32Array:
        """The weights of the norm in front of the output matrix; ones where there are none."""
        found = self._tensors.get("output_norm.weight")
        if found is None:
            return np.ones(width, np.float32)
        return np.array(dequantize(found.data, found.tensor_type), np.float32)

    def logits(self, hidden: Float32Array, rows: Float32Array) -> Float32Array:
        """What the target says of some tokens: float32 (n, rows).

        Args:
            hidden: float32 (n, width), the state that its output matrix is applied to.
            rows: `output_rows` of those tokens.
        """
        return self.capped(hidden @ rows.T)

    def capped(self, logits: Any) -> Any:
        """Logits after the bound that some architectures put on them; NumPy or PyTorch."""
        if not self._softcap:
            return logits
        tanh = np.tanh if isinstance(logits, np.ndarray) else type(logits).tanh
        return self._softcap * tanh(logits / self._softcap)

    def agrees(self, hidden: Float32Array, logits: Float32Array) -> bool:
        """Whether llama.cpp's logits (n_vocab,) are what `logits` makes of the state (width,)."""
        tokens = np.linspace(0, len(logits) - 1, min(len(logits), 512)).astype(np.int32)
        ours = self.logits(hidden[None], self.output_rows(tokens))[0]
        theirs = logits[tokens]
        spread = float(np.std(theirs)) or 1.0
        alike = np.corrcoef(ours, theirs)[0, 1] > _CLOSE if len(tokens) > 1 else True
        return bool(alike and np.sqrt(np.mean((ours - theirs) ** 2)) < (1 - _CLOSE) * 10 * spread)

    def _rows(self, name: str, tokens: Int32Array) -> Float32Array:
        found = self._tensors[name]
        return np.array(dequantize(found.data[tokens], found.tensor_type), np.float32)

    def _value(self, key: str, default: Any) -> Any:
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()
