"""Tiny GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

WIDTH = 8
WORDS = ["<unk>", "<s>", "</s>", *(f"word{i}" for i in range(13))]


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    tokens: list[Any] | None = WORDS,
    types: list[int] | None = None,
    embedding: tuple[int, int] | None = None,
    without: tuple[str, ...] = (),
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    **values: Any,
) -> Path:
    """Write a model of one layer; *values* replace the usual ones, by the key's last part."""
    writer = gguf.GGUFWriter(path, arch)
    usual = {
        "context_length": 64,
        "embedding_length": WIDTH,
        "block_count": 1,
        "head_count": 2,
        "head_count_kv": 1,
    }
    for key, value in {**usual, **values}.items():
        name = f"attention.{key}" if key.startswith("head") else key
        if key in without:
            continue
        if isinstance(value, list):
            writer.add_array(f"{arch}.{name}", value)
        else:
            writer.add_uint32(f"{arch}.{name}", value)
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    if tokens is not None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        if types is not None:
            writer.add_token_types(types)
    if change:
        change(writer)
    rows, columns = embedding or (len(tokens or WORDS), WIDTH)
    if "token_embd" not in without:
        writer.add_tensor("token_embd.weight", np.zeros((rows, columns), np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    counter = iter(range(1000))

    def make(name: str | None = None, **options: Any) -> Path:
        return write_gguf(tmp_path / (name or f"tiny{next(counter)}.gguf"), **options)

    return make
