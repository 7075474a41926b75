"""What the keywords of a `Llama` and of its calls ask for, in edgespec's terms."""

from __future__ import annotations

import random
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from edgespec._types import Float32Array, Int32Array
from edgespec.compat.openai.tools import parameters_of
from edgespec.errors import EndedError, UnsupportedError, UsageError
from edgespec.gguf.header import read_header
from edgespec.grammars import grammar_from_schema, grammar_of_json
from edgespec.registry.resolve import resolve
from edgespec.runtime.decoder import Edit
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters

__all__ = [
    "Asked",
    "Seeds",
    "callbacks_of",
    "check_chat_format",
    "check_gpu_layers",
    "check_others",
    "engine_options",
    "named_tool",
    "response_grammar",
    "rules_of",
    "tools_of",
]

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


_ANY_SEED = (-1, 0xFFFFFFFF)
_SEEDS = 2**32


class Seeds:
    """Seeds of calls that give none: a sequence from the first seed, or the last one given."""

    def __init__(self, seed: int) -> None:
        self._last = seed

    def set(self, seed: int) -> None:
        """Continue from this seed."""
        self._last = seed

    def next(self, given: int | None) -> int:
        """Return the seed of a call; -1 means a random one."""
        self._last = random.Random(self._last).randrange(_SEEDS) if given is None else given
        return secrets.randbelow(_SEEDS) if self._last in _ANY_SEED else self._last


class Asked(NamedTuple):
    """The arguments that completions and chats have in common, by llama-cpp-python's names."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    temperature: float
    top_p: float
    min_p: float
    typical_p: float
    top_k: int
    frequency_penalty: float
    presence_penalty: float
    repeat_penalty: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: Mapping[Any, float] | None

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Asked:
        """Pick them out of all arguments of a call."""
        return cls(**{name: given[name] for name in cls._fields})

    def sampling(self, seed: int, window: int) -> SamplingParameters:
        """Return filters and seed.

        Raises:
            UsageError: a value is out of range.
        """
        return SamplingParameters(
            temperature=self.temperature,
            top_k=max(0, self.top_k),
            typical_p=self.typical_p,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            penalty_window=window,
            logit_bias=_bias(self.logit_bias or {}),
            seed=seed,
            mirostat=self.mirostat_mode if self.temperature > 0 else 0,
            mirostat_tau=self.mirostat_tau,
            mirostat_eta=self.mirostat_eta,
        )

    def limits(self) -> GenerationLimits:
        """Return the limits; without a number of tokens, or below 1, the context is the limit."""
        most = self.max_tokens if self.max_tokens is not None and self.max_tokens > 0 else None
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        stops = tuple(one for one in stop if one)
        return GenerationLimits(max_tokens=most, stop=stops, allow_loops=True)


def callbacks_of(processors: Any, criteria: Any = None) -> Edit | None:
    """Return what functions that see logits do, one call after the other; None without any.

    Args:
        processors: functions, or one, of tokens and logits that return other logits.
        criteria: functions, or one, of tokens and logits that return whether to end.

    Raises:
        UsageError: they are no functions.
    """
    changing = _functions("logits_processor", processors)
    ending = _functions("stopping_criteria", criteria)
    if not changing and not ending:
        return None

    def edit(tokens: Int32Array, logits: Float32Array) -> None:
        seen = tokens.copy()
        for change in changing:
            logits[:] = change(seen, logits.copy())
        if any(end(seen, logits.copy()) for end in ending):
            raise EndedError("a stopping criterion was met")

    return edit


def _functions(name: str, given: Any) -> list[Any]:
    if given is None:
        return []
    try:
        # llama-cpp-python's lists of functions are functions too.
        found = list(given) if isinstance(given, Iterable) else [given]
    except TypeError:
        found = [given]
    if not all(map(callable, found)):
        raise UsageError(f"{name} has to be a list of functions of tokens and logits")
    return found


def rules_of(grammar: Any) -> str | None:
    """Return the text of a grammar: itself, or that of a LlamaGrammar.

    Raises:
        UsageError: it is neither.
    """
    text = getattr(grammar, "_grammar", grammar)
    if text is not None and not isinstance(text, str):
        raise UsageError("a grammar has to be a LlamaGrammar, or its rules as text")
    return text


def response_grammar(wanted: Mapping[str, Any] | None) -> str | None:
    """Return the grammar of a ``response_format``; None for any text.

    Raises:
        UsageError: it is not of a known form.
        GrammarError: its schema makes no grammar.
    """
    if wanted is None:
        return None
    form = wanted if isinstance(wanted, Mapping) else {}
    kind, described = form.get("type"), form.get("json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = form.get("schema")
        return grammar_of_json() if schema is None else grammar_from_schema(schema)
    if kind != "json_schema" or not isinstance(described, Mapping) or "schema" not in described:
        raise UsageError(
            'response_format has to be {"type": "json_object", "schema": ...}, '
            '{"type": "json_schema", "json_schema": {"schema": ...}} or {"type": "text"}'
        )
    return grammar_from_schema(described["schema"])


def tools_of(
    tools: Sequence[Mapping[str, Any]] | None,
    choice: Any,
    functions: Sequence[Mapping[str, Any]] | None,
    function_call: Any,
) -> tuple[Sequence[Mapping[str, Any]] | None, Any]:
    """Return ``tools`` and ``tool_choice``, from those or from their older form."""
    if functions is not None:
        tools = [{"type": "function", "function": one} for one in functions]
    if isinstance(function_call, Mapping) and "name" in function_call:
        choice = {"type": "function", "function": {"name": function_call["name"]}}
    elif function_call is not None:
        choice = function_call
    return tools, choice


def named_tool(
    tools: Sequence[Mapping[str, Any]] | None, choice: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the name of the tool that has to be called, and the grammar of its arguments.

    Raises:
        UsageError: the choice names no tool that was offered.
        GrammarError: its parameters make no grammar.
    """
    name = _function(choice).get("name")
    for tool in tools or ():
        function = _function(tool)
        if function.get("name") == name and isinstance(name, str):
            return name, grammar_from_schema(parameters_of(function))
    raise UsageError(f"Tool choice {name!r} not found in tools.")


def _bias(given: Mapping[Any, float]) -> dict[int, float]:
    try:
        return {int(token): float(value) for token, value in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise UsageError("logit_bias has to be {token id: number}") from None


def _function(value: Any) -> Mapping[str, Any]:
    """Return the function of a tool, or of a choice; empty if it has another form."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return function if isinstance(function, Mapping) else {}
