"""Make a smaller, coarser copy of a model with llama.cpp's own quantizer."""

from __future__ import annotations

import ctypes
from pathlib import Path

from edgespec.backend.native import initialize, lib, recent_errors
from edgespec.errors import BackendError, UsageError

__all__ = ["quantize"]


def quantize(
    source: Path,
    destination: Path,
    file_type: str,
    *,
    prune_layers: tuple[int, ...] = (),
    threads: int = 0,
) -> None:
    """Write a re-quantized copy of a GGUF file.

    Args:
        source: a GGUF file of any precision.
        destination: overwritten.
        file_type: llama.cpp's name, e.g. "Q8_0" or "Q2_K".
        prune_layers: indices of layers to leave out.
        threads: 0 for one per processor.

    Raises:
        UsageError: no such file type.
        BackendError: llama.cpp failed.
    """
    initialize()
    code = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{file_type}", None)
    if code is None:
        raise UsageError(f"{file_type} is not a quantization llama.cpp knows")
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype = code
    parameters.nthread = threads
    parameters.allow_requantize = True
    layers = (ctypes.c_int32 * (len(prune_layers) + 1))(*sorted(prune_layers), -1)
    if prune_layers:
        parameters.prune_layers = ctypes.cast(layers, type(parameters.prune_layers))
    if lib.llama_model_quantize(bytes(source), bytes(destination), ctypes.byref(parameters)) != 0:
        raise BackendError(f"llama.cpp cannot quantize {source.name}: {recent_errors()}")
