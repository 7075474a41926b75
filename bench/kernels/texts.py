"""Ordinary text for measurements, and models written out in float32."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

import edgespec
from edgespec._types import Int32Array
from edgespec.backend import Model

__all__ = ["token_ids", "write_float32"]

_TEXTS = Path(edgespec.__file__).parent / "benchmark" / "texts"


def token_ids(model: Model, length: int) -> Int32Array:
    """So many tokens of the benchmark's own texts, repeated if need be."""
    text = "\n\n".join(path.read_text("utf-8") for path in sorted(_TEXTS.glob("*.txt")))
    tokens = model.vocabulary.tokenize(text)
    return np.tile(tokens, length // len(tokens) + 1)[:length]


def write_float32(source: Path, destination: Path) -> None:
    """Copy a GGUF file with every quantized tensor dequantized."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(destination, architecture)
    for name, item in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = item.types[0]
        sub = item.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, item.contents(), kind, sub)
    for tensor in reader.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
