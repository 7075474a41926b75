"""How a `Llama` is opened: keywords of llama-cpp-python's class, and what each does here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from edgespec.errors import UnsupportedError, UsageError
from edgespec.gguf.header import read_header
from edgespec.registry.resolve import resolve
from edgespec.runtime.options import EngineOptions

__all__ = ["check_chat_format", "check_gpu_layers", "check_others", "engine_options"]

_ROTARY = "edgespec uses the rotary embedding of the model's file"
_OWN_TEMPLATE = "chat_template.default"

_WITHOUT_EFFECT = frozenset(
    (
        *("n_batch", "n_ubatch", "n_threads_batch", "use_mmap", "swa_full", "no_perf"),
        *("split_mode", "main_gpu", "tensor_split", "offload_kqv", "op_offload"),
        *("lora_scale", "logits_all", "f16_kv", "n_parts"),
    )
)
"""Keywords about how, not what, to compute: edgespec decides that, and always has logits."""

_IGNORED: dict[str, tuple[Any, str]] = {
    # LangChain's wrappers always give these two, and not the model's own.
    "rope_freq_base": (0.0, _ROTARY),
    "rope_freq_scale": (0.0, _ROTARY),
    "use_mlock": (False, "weights are mapped, and not locked into memory"),
    "numa": (False, "there is no NUMA policy"),
    "draft_model": (None, "edgespec drafts by itself: draft= and k= say how"),
}
"""Keywords without effect here: keyword -> its default, and what edgespec does instead."""

_REFUSED: dict[str, tuple[Any, str]] = {
    "vocab_only": (False, "edgespec loads whole models"),
    "lora_path": (None, "edgespec has no LoRA adapters: merge it into the model's file"),
    "lora_base": (None, "edgespec has no LoRA adapters: merge it into the model's file"),
    "kv_overrides": (None, "a model's metadata is taken as its file has it"),
    "tokenizer": (None, "edgespec uses the tokenizer of the model's file"),
    "chat_handler": (None, "edgespec uses the chat template of the model's file"),
    "attention_type": (-1, "edgespec uses the attention of the model's file"),
    "rope_scaling_type": (-1, _ROTARY),
    "yarn_ext_factor": (-1.0, _ROTARY),
    "yarn_attn_factor": (1.0, _ROTARY),
    "yarn_beta_fast": (32.0, _ROTARY),
    "yarn_beta_slow": (1.0, _ROTARY),
    "yarn_orig_ctx": (0, _ROTARY),
}
"""Keywords that are not supported: keyword -> the only value it may have, and why."""

_KV_TYPES = {None: "f16", 1: "f16", 0: "f32", 8: "q8_0"}
"""ggml's numbers of the types that a cache may have."""


def check_others(given: Mapping[str, Any]) -> None:
    """Check keywords that have no effect here: ignore them, warn, or refuse.

    Raises:
        UnsupportedError: a keyword asks for something that is not supported.
        UsageError: llama-cpp-python does not have that keyword either.
    """
    for name, value in given.items():
        if name in _WITHOUT_EFFECT:
            continue
        if name in _IGNORED:
            usual, instead = _IGNORED[name]
            if value not in (None, usual):
                warnings.warn(f"{name} is ignored: {instead}", UserWarning, stacklevel=3)
        elif name in _REFUSED:
            usual, reason = _REFUSED[name]
            if value not in (None, usual):
                raise UnsupportedError(f"{name}={value!r} is not supported: {reason}")
        else:
            raise UsageError(f"Llama has no keyword {name!r}")


def check_chat_format(chat_format: str | None) -> None:
    """Check that the chat format is the model's own template.

    Raises:
        UnsupportedError: it is another one.
    """
    if chat_format not in (None, _OWN_TEMPLATE):
        raise UnsupportedError(
            f"chat_format={chat_format!r} is not supported: leave it out, and the chat template of "
            "the model's file is used"
        )


def check_gpu_layers(count: int) -> None:
    """Warn where layers are wanted on a GPU: every tutorial asks for that."""
    if count:
        warnings.warn("n_gpu_layers is ignored: edgespec uses the CPU", UserWarning, stacklevel=3)


def engine_options(
    model: str,
    *,
    n_ctx: int,
    n_threads: int | None,
    flash_attn: bool,
    kv_types: tuple[int | None, int | None],
    draft: str,
    kernels: str,
    k: int | None,
) -> EngineOptions:
    """Return the options to open the engine with.

    Raises:
        UnsupportedError: the cache's types are not supported.
        UsageError: a value is out of range.
        Errors of `resolve` and `read_header`, if `n_ctx` is 0, which means the model's own length.
    """
    first, second = kv_types
    if first not in _KV_TYPES or second not in _KV_TYPES or _KV_TYPES[first] != _KV_TYPES[second]:
        raise UnsupportedError(
            f"type_k={first}, type_v={second} is not supported: give both the type F16, F32 or Q8_0"
        )
    return EngineOptions(
        draft=draft,
        kernels=kernels,
        k=k,
        context=n_ctx or read_header(resolve(model).path, embedding=True).context_length,
        threads=n_threads or 0,
        flash_attention=True if flash_attn else None,
        kv_type=_KV_TYPES[first],
    )
