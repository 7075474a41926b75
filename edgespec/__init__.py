"""Faster answers from quantized GGUF models on CPUs, with exactly the target model's output.

import edgespec

with edgespec.load() as engine:
    for chunk in engine.generate("The sea is"):
        print(chunk.text, end="")
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from edgespec import errors

__version__ = "0.1.0"
__all__ = [
    "EarlierTexts",
    "Embedder",
    "Engine",
    "EngineOptions",
    "GenerationLimits",
    "Llama",
    "LlamaGrammar",
    "Message",
    "Origin",
    "Result",
    "SamplingParameters",
    "Session",
    "Statistics",
    "Stream",
    "TokenChunk",
    "TokenLogprobs",
    "Turn",
    "errors",
    "grammar_from_regex",
    "grammar_from_schema",
    "load",
    "load_embedder",
]

logging.getLogger("edgespec").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from pathlib import Path

    from edgespec.compat.llama import Llama, LlamaGrammar
    from edgespec.drafters.automaton import EarlierTexts
    from edgespec.grammars import grammar_from_regex, grammar_from_schema
    from edgespec.registry.fetch import Progress
    from edgespec.runtime.cycle import Origin, Statistics, TokenLogprobs
    from edgespec.runtime.embedding import Embedder, load_embedder
    from edgespec.runtime.engine import Engine
    from edgespec.runtime.loading import LoadProgress
    from edgespec.runtime.options import EngineOptions
    from edgespec.runtime.session import Message, Session, Turn
    from edgespec.runtime.stream import GenerationLimits, Result, Stream, TokenChunk
    from edgespec.sampling.parameters import SamplingParameters

_HOMES = {
    "EarlierTexts": "edgespec.drafters.automaton",
    "Embedder": "edgespec.runtime.embedding",
    "Engine": "edgespec.runtime.engine",
    "EngineOptions": "edgespec.runtime.plan",
    "GenerationLimits": "edgespec.runtime.stream",
    "Llama": "edgespec.compat.llama",
    "LlamaGrammar": "edgespec.compat.llama",
    "Message": "edgespec.runtime.session",
    "Origin": "edgespec.runtime.cycle",
    "Result": "edgespec.runtime.stream",
    "SamplingParameters": "edgespec.sampling.parameters",
    "Session": "edgespec.runtime.session",
    "Statistics": "edgespec.runtime.cycle",
    "Stream": "edgespec.runtime.stream",
    "TokenChunk": "edgespec.runtime.stream",
    "TokenLogprobs": "edgespec.runtime.cycle",
    "Turn": "edgespec.runtime.session",
    "grammar_from_regex": "edgespec.grammars",
    "grammar_from_schema": "edgespec.grammars",
    "load_embedder": "edgespec.runtime.embedding",
}
_RENAMED = {"Piece": "TokenChunk"}


def load(
    model: str | Path | None = None,
    options: EngineOptions | None = None,
    *,
    progress: LoadProgress | None = None,
    download: Progress | None = None,
) -> Engine:
    """Open a model with its drafter; see `Engine` for arguments and errors."""
    from edgespec.interrupts import held_interrupts

    with held_interrupts():
        from edgespec.runtime.engine import Engine
    return Engine(model, options, progress=progress, download=download)


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        old, name = name, _RENAMED[name]
        warnings.warn(f"edgespec.{old} is called {name} now", DeprecationWarning, stacklevel=2)
    # Numba and llama.cpp take half a second to import: only who needs them waits for them.
    if name in _HOMES:
        import importlib

        from edgespec.interrupts import held_interrupts

        with held_interrupts():
            return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
