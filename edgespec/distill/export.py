"""Write drafts as GGUF files, and read them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from edgespec._types import AnyArray
from edgespec.errors import UsageError
from edgespec.files import replacing

__all__ = ["FORMATS", "Provenance", "read_draft", "write_draft"]

if TYPE_CHECKING:  # they need PyTorch
    from edgespec.distill.draft import Draft
    from edgespec.distill.train import Acceptance


FORMATS = ("Q8_0", "Q5_0", "Q4_0")


"""Formats that are tried; the better one is kept."""


_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


@dataclass(frozen=True)
class Provenance:
    """Where a draft comes from; its file says so.

    Attributes:
        target_name, target_sha256: the target's file.
        target_tokens_sha256: of the target's token texts.
        data: what it was trained on, in words.
        corpus_tokens: number of tokens of answers in the corpus.
        tokens_seen: number of tokens trained on, repetitions included.
        coverage: share of held-out answers' tokens that it can propose.
        greedy, sampled: held-out acceptance by position, see `train.Acceptance`.
        tasks: the same in answers to edgespec's own tasks, if that was measured.
        recipe: everything else that is needed to make it again.
    """

    target_name: str
    target_sha256: str
    target_tokens_sha256: str
    data: str
    corpus_tokens: int
    tokens_seen: int
    coverage: float
    greedy: list[float]
    sampled: list[float]
    recipe: dict[str, Any]
    tasks: Acceptance | None = None


def write_draft(draft: Draft, path: Path, file_format: str, provenance: Provenance) -> None:
    """Write a file that llama.cpp loads; replace an older one in one step.

    Args:
        file_format: of the matrices: "F32", "F16", "Q8_0", "Q5_0" or "Q4_0". A matrix whose rows
            are not a multiple of a block is written as F16.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path, alone=True) as partial:
        writer = GGUFWriter(partial, draft.architecture)
        writer.add_name(f"{draft.kind} draft for {provenance.target_name}")
        writer.add_layer_norm_rms_eps(draft.epsilon)
        writer.add_file_type(int(_FILE_TYPES[file_format]))
        draft.describe(writer)
        _add_provenance(writer, draft.kind, provenance)
        for name, tensor in draft.tensors().items():
            _add_tensor(writer, name, tensor, GGMLQuantizationType[file_format])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def read_draft(draft: Draft, path: Path, *, frozen: bool = True) -> None:
    """Load the weights of a file into a network of the same shape.

    Args:
        frozen: also those that are the target's, for the file's vocabulary.

    Raises:
        UsageError: the file has another shape.
    """
    found = {
        tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in GGUFReader(path).tensors
        if tensor.tensor_type != GGMLQuantizationType.I64
    }
    tensors = draft.tensors()
    if not frozen:
        found.update({name: tensors[name] for name in draft.frozen})
    for name, ours in tensors.items():
        if ours.dtype == np.float32 and (name not in found or found[name].shape != ours.shape):
            raise UsageError(
                f"{path.name} is not shaped like the {draft.kind} drafts that are made here "
                f"({name}): start without it"
            )
    draft.take(found)


def _add_provenance(writer: GGUFWriter, kind: str, provenance: Provenance) -> None:
    writer.add_string("edgespec.kind", kind)
    writer.add_string("edgespec.target_name", provenance.target_name)
    writer.add_string("edgespec.target_sha256", provenance.target_sha256)
    writer.add_string("edgespec.target_tokens_sha256", provenance.target_tokens_sha256)
    writer.add_string("edgespec.data", provenance.data)
    writer.add_uint64("edgespec.corpus_tokens", provenance.corpus_tokens)
    writer.add_uint64("edgespec.tokens_seen", provenance.tokens_seen)
    writer.add_float32("edgespec.coverage", provenance.coverage)
    writer.add_array("edgespec.alpha_greedy", [float(a) for a in provenance.greedy])
    writer.add_array("edgespec.alpha_sampled", [float(a) for a in provenance.sampled])
    if provenance.tasks is not None:
        for name, shares in provenance.tasks._asdict().items():
            writer.add_array(f"edgespec.alpha_tasks_{name}", shares)
    writer.add_string("edgespec.recipe", json.dumps(provenance.recipe, sort_keys=True))


def _add_tensor(
    writer: GGUFWriter, name: str, tensor: AnyArray, kind: GGMLQuantizationType
) -> None:
    if tensor.ndim < 2 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, tensor)
        return
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if tensor.shape[-1] % block:
        kind = GGMLQuantizationType.F16
    if kind == GGMLQuantizationType.F16:
        writer.add_tensor(name, tensor.astype(np.float16))
    else:
        writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
