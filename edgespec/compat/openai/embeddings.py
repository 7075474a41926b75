"""Vectors as the object that OpenAI's interface describes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from edgespec._types import Float32Array
from edgespec.runtime.embedding import Embedding

__all__ = ["embedding_list", "shortened"]

Encoding = Literal["float", "base64"]


def embedding_list(
    found: Sequence[Embedding], model: str, encoding: Encoding = "float"
) -> dict[str, Any]:
    """Return the ``list`` of embeddings.

    Args:
        found: the vectors, in the order of the texts.
        model: its name, to tell.
        encoding: numbers, or the bytes of 32-bit ones (little-endian) in Base64.
    """
    tokens = sum(one.tokens for one in found)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(one.vector, encoding)}
            for index, one in enumerate(found)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def shortened(found: Embedding, dimensions: int) -> Embedding:
    """Return the vector's first numbers, with length 1 again."""
    kept = found.vector[:dimensions]
    length = float(np.linalg.norm(kept))
    return Embedding(kept / np.float32(length) if length else kept, found.tokens)


def _written(vector: Float32Array, encoding: Encoding) -> str | list[Any]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[Any] = vector.tolist()
    return numbers
