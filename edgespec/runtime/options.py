"""How an engine is opened, checked once."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from edgespec.errors import UsageError

__all__ = ["EXACTNESS_MODES", "MAX_BLOCK", "EngineOptions", "default_threads"]

EXACTNESS_MODES = ("auto", "bitwise", "distribution")

MAX_BLOCK = 32
"""The longest block of proposals, in tokens."""

_DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class EngineOptions:
    """Choices that hold for the life of an engine.

    Attributes:
        draft: "auto", "none", "ngram", or a model: a path, a registry name, an hf: reference.
        k: proposals of a cycle, 0 to `MAX_BLOCK`.
        context: tokens the caches hold; 0 is the model's own length, but at most 4096.
        threads: 0 is one for each physical core this process may use.
        repack: let llama.cpp rearrange weights for this processor.
        offline: never download anything.
        exact: "bitwise" uses only settings and block lengths that were measured to give the
            logits of plain decoding bit for bit; "distribution" may use faster ones; "auto" is
            bitwise wherever that costs less than 5%.

    Raises:
        UsageError: a value is out of range.
    """

    draft: str = "auto"
    k: int = 3
    context: int = 0
    threads: int = 0
    repack: bool = True
    offline: bool = False
    exact: str = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.k <= MAX_BLOCK:
            raise UsageError(f"k is {self.k}: it has to be between 0 and {MAX_BLOCK}")
        if self.context < 0:
            raise UsageError(f"context is {self.context}: it has to be 0 (automatic) or more")
        if not 0 <= self.threads <= 512:
            raise UsageError(f"threads is {self.threads}: it has to be between 0 and 512")
        if self.exact not in EXACTNESS_MODES:
            raise UsageError(f"exact is {self.exact!r}: it is one of {', '.join(EXACTNESS_MODES)}")
        if not self.draft:
            raise UsageError("the draft's name is empty: use auto, none, ngram, or a model")

    def context_for(self, trained: int) -> int:
        """Tokens to open a context with, for a model trained on `trained`."""
        return self.context or min(trained, _DEFAULT_CONTEXT)

    @property
    def thread_count(self) -> int:
        """Threads to use."""
        return self.threads or default_threads()


def default_threads() -> int:
    """Physical cores, but no more than the processors this process may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 1, allowed or 1))
