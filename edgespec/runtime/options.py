"""How an engine is opened, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.runtime.processors import default_threads

__all__ = [
    "ANSWER_TOKENS",
    "EXACTNESS_MODES",
    "KERNELS",
    "MAX_BLOCK",
    "NO_LIMIT",
    "EngineOptions",
]

EXACTNESS_MODES = ("auto", "bitwise", "distribution")

MAX_BLOCK = 32
"""The longest block of proposals, in tokens."""

ADAPTIVE_BLOCK = 15
"""The longest block of proposals where costs decide."""

TREES = ("auto", "none")

KV_TYPES = ("f16", "f32", "q8_0")

KERNELS = ("auto", "edgespec", "llama.cpp")

ANSWER_TOKENS = 2048
"""The most that the command line and the server let an answer have where nobody says more."""

NO_LIMIT = -1
"""In the place of a number of tokens: until the context is full."""

_DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class EngineOptions:
    """Choices that hold for the life of an engine.

    Attributes:
        draft: "auto", "none", "ngram", "recycle", "mtp" (layers of the model's own file), or a
            model: a path, a registry name, an hf: reference.
            "auto" is "ngram", and beside it the registry's draft or the file's MTP layers where
            they are expected to pay.
        k: proposals of a cycle, 0 to `MAX_BLOCK`; None lets every cycle decide from what
            evaluations cost here whether and how much to propose.
        tree: "auto" lets a draft model propose trees that grow while that pays, where the
            target can evaluate them; "none" keeps to chains; "4,2,2,1" gives the text four
            continuations, each of these two, and so on: `k` is then their number.
        context: tokens the caches hold; 0 is the model's own length, but at most 4096.
        threads: 0 is what `edgespec tune` found best, without that one for each physical core
            this process may use.
        kernels: "auto" multiplies a file's weights by edgespec's own kernels where these were
            measured to be faster, "edgespec" wherever they can be, "llama.cpp" nowhere.
        repack: let llama.cpp rearrange weights for this processor; None as `threads`, else yes.
        flash_attention: None as `threads`, else on where it is exact; where it is not, if `exact`
            allows it and `edgespec tune` found it faster.
        kv_type: of the keys and values in the target's cache: "f16", "f32", or "q8_0", which
            needs flash attention and changes what the model says a little.
        lookup: text files that prompt lookup may copy from too, whatever is asked.
        offline: never download anything.
        exact: "bitwise" uses only settings and block lengths that are proved to give the
            logits of plain decoding bit for bit; "distribution" may use faster ones; "auto" is
            bitwise where this build can be, unless `edgespec tune` found that it costs over 5%.
        trace: a file that a line of JSON is appended to for every cycle; it holds prompts and
            answers.
        prompt_cache: MiB of memory for caches of conversations that others took turns with; 0
            keeps none.
        probe: try a file that was never seen in a process of its own first, because a damaged one
            may end the process.

    Raises:
        UsageError: a value is out of range.
    """

    draft: str = "auto"
    k: int | None = None
    tree: str = "auto"
    context: int = 0
    threads: int = 0
    kernels: str = "auto"
    repack: bool | None = None
    flash_attention: bool | None = None
    kv_type: str = "f16"
    lookup: tuple[Path, ...] = ()
    offline: bool = False
    exact: str = "auto"
    trace: Path | None = None
    prompt_cache: int = 512
    probe: bool = True

    def __post_init__(self) -> None:
        if self.k is not None and not 0 <= self.k <= MAX_BLOCK:
            raise UsageError(f"k is {self.k}: it has to be between 0 and {MAX_BLOCK}")
        if self.widths:
            nodes = sum(accumulate(self.widths, mul))
            if self.k not in (None, nodes) or nodes > MAX_BLOCK:
                raise UsageError(
                    f"tree {self.tree} has {nodes} nodes: it may have {MAX_BLOCK}, and leave k out"
                )
            object.__setattr__(self, "k", nodes)
        if self.context < 0:
            raise UsageError(f"context is {self.context}: it has to be 0 (automatic) or more")
        if not 0 <= self.threads <= 512:
            raise UsageError(f"threads is {self.threads}: it has to be between 0 and 512")
        if self.exact not in EXACTNESS_MODES:
            raise UsageError(f"exact is {self.exact!r}: it is one of {', '.join(EXACTNESS_MODES)}")
        if self.kernels not in KERNELS:
            raise UsageError(f"kernels is {self.kernels!r}: it is one of {', '.join(KERNELS)}")
        if self.kv_type not in KV_TYPES:
            raise UsageError(f"KV type is {self.kv_type!r}: it is one of {', '.join(KV_TYPES)}")
        if self.kv_type == "q8_0" and self.flash_attention is False:
            raise UsageError("a q8_0 KV cache needs flash attention")
        if self.prompt_cache < 0:
            raise UsageError(f"prompt cache is {self.prompt_cache} MiB: it has to be 0 or more")
        if not self.draft:
            raise UsageError("the draft's name is empty: use auto, none, ngram, or a model")

    @property
    def widths(self) -> tuple[int, ...]:
        """Children of each node by level, if a tree's shape was given.

        Raises:
            UsageError: `tree` is neither "auto" nor "none" nor numbers from 1 on.
        """
        if self.tree in TREES:
            return ()
        parts = self.tree.split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            raise UsageError(
                f"tree is {self.tree!r}: it is auto, none, or children by level as in 4,2,2,1"
            )
        return tuple(int(part) for part in parts)

    def context_for(self, trained: int) -> int:
        """Return the length to open a context with, for a model trained on `trained` tokens."""
        return self.context or min(trained, _DEFAULT_CONTEXT)

    @property
    def most(self) -> int:
        """The longest block that may be proposed."""
        return ADAPTIVE_BLOCK if self.k is None else self.k

    @property
    def thread_count(self) -> int:
        """Threads to use."""
        return self.threads or default_threads()
