"""What the installed build of the native library can do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgespec.backend.native import initialize, lib

__all__ = ["FINAL_TAP", "LAYER_TAPS", "Capabilities", "capabilities"]

LAYER_TAPS = (
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
)
FINAL_TAP = (
    "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
)
_EXTENDED_BATCH = (
    "llama_process",
    "llama_batch_ext_init",
    "llama_batch_ext_free",
    "llama_batch_ext_clear",
    "llama_batch_ext_add_token",
    "llama_batch_ext_add_embd",
    "llama_batch_ext_set_embd_token",
    "llama_batch_ext_set_pos",
    "llama_batch_ext_set_output_logits",
)


@dataclass(frozen=True)
class Capabilities:
    """Facts about a build.

    Attributes:
        binding: version of llama-cpp-python.
        features: instruction sets and options compiled in, e.g. ``{"AVX2", "REPACK"}``.
        tinyblas: has llama.cpp's LLAMAFILE matrix kernels. They round a batch differently from a
            single token, so that batches are not bit-identical to single tokens.
        amx: has llama.cpp's AMX matrix kernels. With some compilers they crash the process at the
            first evaluation (the tile configuration is only partly written), so this package opens
            models without weight repacking in such a build.
        layer_taps: the input of any layer can be read (EAGLE-3 features).
        final_tap: the hidden state before the output matrix can be read.
        extended_batch: tokens and embeddings can be evaluated together.
        gpu_offload: was compiled with a GPU backend.
    """

    binding: str
    features: frozenset[str]
    tinyblas: bool
    amx: bool
    layer_taps: bool
    final_tap: bool
    extended_batch: bool
    gpu_offload: bool

    @property
    def eagle(self) -> bool:
        """Whether EAGLE-3 heads can be run."""
        return self.layer_taps and self.final_tap and self.extended_batch


def capabilities() -> Capabilities:
    """Ask the library what it can do; this is cheap."""
    initialize()
    info = lib.llama_print_system_info().decode("ascii", "replace")
    features = frozenset(re.findall(r"(\w+) = 1", info))
    return Capabilities(
        binding=lib.__version__,
        features=features,
        tinyblas="LLAMAFILE" in features,
        amx="AMX_INT8" in features,
        layer_taps=_exports(LAYER_TAPS),
        final_tap=_exports(FINAL_TAP),
        extended_batch=all(hasattr(lib, name) for name in _EXTENDED_BATCH),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
    )


def _exports(symbols: tuple[str, ...]) -> bool:
    native = lib.llama_cpp._lib
    return all(hasattr(native, symbol) for symbol in symbols)
