"""A loaded GGUF file: weights, vocabulary, facts; and a coarser copy of one."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.backend.kernels import Placement, place_weights
from edgespec.backend.lifetime import Closing, capabilities, initialize, lib, recent_errors
from edgespec.backend.vocabulary import Vocabulary
from edgespec.errors import BackendError, ModelFileError, ModelLoadError, UsageError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.interrupts import held_interrupts

__all__ = [
    "Model",
    "ModelOptions",
    "quantize",
]


_ALL_LAYERS = 1 << 16


@dataclass(frozen=True)
class ModelOptions:
    """How a file is opened.

    Attributes:
        formats: types of tensors that our own kernels multiply, by name ("Q4_K"), as far as they
            can be used here; all others are llama.cpp's.
        threads: that pack weights for our kernels.
        repack: let llama.cpp rearrange the other weights for this processor's matrix kernels:
            faster batches, but a second copy in memory. Ignored if `Capabilities.amx`, where it
            could crash.
        vocabulary_only: load the tokenizer and no weights.
        embedding: accept models for embeddings too.
        mtp: load the layers that predict further tokens.
    """

    formats: frozenset[str] = frozenset()
    threads: int = 1
    repack: bool = True
    vocabulary_only: bool = False
    embedding: bool = False
    mtp: bool = False


class Model(Closing):
    """Weights and vocabulary of one file. Close it, or use it as a context manager.

    Args:
        path: a GGUF file; its header is checked before native code sees it.
        options: how to open it.
        progress: called with the loaded fraction, 0 to 1.

    Raises:
        ModelFileError: the file is not a usable GGUF, or not a text generation model.
        ModelLoadError: llama.cpp refused it; the message quotes it.
        KeyboardInterrupt: interrupted while loading; nothing stays open.
    """

    def __init__(
        self,
        path: str | Path,
        options: ModelOptions | None = None,
        *,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        options = options or ModelOptions()
        self.header: GGUFHeader = read_header(Path(path), embedding=options.embedding)
        self.path = self.header.path
        self.options = options
        initialize()
        self._placement = _place(self.header, options)
        self._pointer = _load(self.path, options, self._placement, progress)
        self.vocabulary = Vocabulary(lib.llama_model_get_vocab(self._pointer), self.path)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if not options.vocabulary_only:
                self._refuse_unsuitable()
            undo.pop_all()

    def _refuse_unsuitable(self) -> None:
        separate = self.header.eagle is not None or self.header.encoder
        encodes = lib.llama_model_has_encoder(self.pointer) and not separate
        if encodes or not lib.llama_model_has_decoder(self.pointer):
            raise ModelFileError(
                f"{self.path.name} is an encoder model ({self.header.architecture}): "
                "edgespec runs decoder-only text generation models"
            )
        if lib.llama_model_is_diffusion(self.pointer):
            raise ModelFileError(
                f"{self.path.name} is a diffusion model: it does not generate token by token"
            )

    @property
    def pointer(self) -> Any:
        """The native handle, for the other modules of this package.

        Raises:
            BackendError: the model was closed.
        """
        if self._pointer is None:
            raise BackendError(f"the model {self.path.name} was closed")
        return self._pointer

    @property
    def kernels(self) -> str:
        """Whose kernels multiply most weights: "edgespec" or "llama.cpp"."""
        return "edgespec" if self._placement else "llama.cpp"

    @property
    def exact_attention(self) -> bool:
        """Whether flash attention is ours, and so the same bit for bit in any batch."""
        if self._placement is None or not self._placement.attention:
            return False
        capping = self.metadata.get(f"{self.header.architecture}.attn_logit_softcapping", "0")
        return float(capping) == 0.0

    @property
    def exact_batches(self) -> bool:
        """Whether any batch has the bits of single tokens by construction, with our attention."""
        if self._placement is None or not self._placement.complete or self.has_state:
            return False
        biased = self.metadata.get(f"{self.header.architecture}.attention.max_alibi_bias", "0")
        return self.exact_attention and float(biased) == 0.0

    @property
    def context_length(self) -> int:
        """Longest context the model was trained for, in tokens."""
        return int(lib.llama_model_n_ctx_train(self.pointer))

    @property
    def embedding_length(self) -> int:
        """Width of the hidden state."""
        return int(lib.llama_model_n_embd(self.pointer))

    @property
    def block_count(self) -> int:
        """Number of layers."""
        return int(lib.llama_model_n_layer(self.pointer))

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata from llama.cpp: every value except arrays, as text."""
        keys, values = lib.llama_model_meta_key_by_index, lib.llama_model_meta_val_str_by_index
        count = lib.llama_model_meta_count(self.pointer)
        return {
            _text_of(keys, self.pointer, i): _text_of(values, self.pointer, i) for i in range(count)
        }

    @property
    def has_state(self) -> bool:
        """Whether some layers keep one recurrent state instead of an entry for each token."""
        return bool(
            lib.llama_model_is_recurrent(self.pointer) or lib.llama_model_is_hybrid(self.pointer)
        )

    @property
    def window(self) -> int:
        """Tokens that layers with sliding-window attention see; 0 where all see everything."""
        return int(lib.llama_model_n_swa(self.pointer))

    def close(self) -> None:
        """Free the weights. Close all contexts of this model first."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self.vocabulary.close()
            lib.llama_model_free(pointer)


def _text_of(write: Callable[..., int], *arguments: Any) -> str:
    """Return the text that a native function writes; the function returns the full length."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = write(*arguments, buffer, size)
        if length < size:
            return buffer.value.decode("utf-8", "replace")
        size = length + 1


def _place(header: GGUFHeader, options: ModelOptions) -> Placement | None:
    if not options.formats or options.vocabulary_only:
        return None
    return place_weights(header, options.formats, options.threads)


def _load(
    path: Path,
    options: ModelOptions,
    placement: Placement | None,
    progress: Callable[[float], None] | None,
) -> Any:
    interrupted: list[BaseException] = []

    # An exception cannot cross native frames: keep it, stop the load, raise it afterwards.
    @lib.llama_progress_callback  # type: ignore[untyped-decorator]
    def report(fraction: float, _user_data: Any) -> bool:
        try:
            if progress is not None:
                progress(fraction)
        except BaseException as error:
            interrupted.append(error)
        return not interrupted and not came()

    parameters = lib.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.use_extra_bufts = options.repack and not capabilities().amx
    parameters.vocab_only = options.vocabulary_only
    parameters.load_mtp = options.mtp
    parameters.progress_callback = report
    if placement is not None:
        # Packed weights are copies: mapped ones would be in memory twice.
        parameters.use_mmap = False
        parameters.tensor_buft_overrides = ctypes.addressof(placement.overrides)
        # Layers are ours, so that norms and the like are computed where their weights are.
        parameters.devices = ctypes.addressof(placement.devices)
        parameters.n_gpu_layers = _ALL_LAYERS
    recent_errors()
    pointer = None
    try:
        with held_interrupts() as came:
            pointer = lib.llama_model_load_from_file(bytes(path), parameters)
    except KeyboardInterrupt as error:
        interrupted.append(error)
    if interrupted:
        if pointer:
            lib.llama_model_free(pointer)
        raise interrupted[0]
    if not pointer:
        raise ModelLoadError(
            f"llama.cpp cannot load {path.name}: {recent_errors() or 'no reason given'}"
        )
    return pointer


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
