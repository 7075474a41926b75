"""Drafts of random weights: the cost of a draft does not depend on what it has learned."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

__all__ = ["LAYERS", "WIDTH", "write_draft"]

LAYERS, WIDTH = 2, 256
_HEADS, _INNER = 4, 768


def write_draft(path: Path, vocabulary: int) -> Path:
    """Write a llama in Q8_0 with a vocabulary of this size, whose last token is the unknown one."""
    random = np.random.default_rng(vocabulary)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, vocabulary)

    def noise(name: str, rows: int, columns: int) -> None:
        values = random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    noise("token_embd", vocabulary, WIDTH)
    noise("output", vocabulary, WIDTH)
    ones("output_norm")
    for block in (f"blk.{layer}." for layer in range(LAYERS)):
        ones(block + "attn_norm")
        ones(block + "ffn_norm")
        for name in ("q", "k", "v", "output"):
            noise(f"{block}attn_{name}", WIDTH, WIDTH)
        noise(block + "ffn_gate", _INNER, WIDTH)
        noise(block + "ffn_up", _INNER, WIDTH)
        noise(block + "ffn_down", WIDTH, _INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_rope_dimension_count(WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(vocabulary)
    writer.add_array("edgespec.draft_to_target", [*range(vocabulary - 1), -1])
    writer.add_uint32("edgespec.unknown_token", vocabulary - 1)
