"""How an engine is opened: its options, checked once, and the plan made from files and headers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from pathlib import Path

from edgespec.backend import (
    Model,
    ModelOptions,
    can_tap,
    capabilities,
    require_sound,
)
from edgespec.drafters import (
    SharedTokens,
    share_tokens,
)
from edgespec.errors import EdgespecError, ModelFileError, PairingError, UsageError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.registry.fetch import Progress, silent
from edgespec.registry.pairing import Pairing, check_pairing
from edgespec.registry.resolve import ResolvedModel, resolve
from edgespec.runtime.memory import MemoryEstimate, estimate, require
from edgespec.runtime.processors import default_threads
from edgespec.tuning.drafting import HEAD_BATCH

__all__ = [
    "ANSWER_TOKENS",
    "BATCH",
    "EXACTNESS_MODES",
    "KERNELS",
    "MAX_BLOCK",
    "NO_LIMIT",
    "EngineOptions",
    "Plan",
    "make_plan",
    "pair",
    "pair_vocabularies",
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
        draft: "auto", "none", "ngram", "recycle", or a model: a path, a registry name, an hf:
            reference.
            "auto" is "ngram", and the registry's draft beside it where it is expected to pay.
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


_log = logging.getLogger("edgespec.runtime")

BATCH = 256
"""Tokens of a prompt that are evaluated together."""


@dataclass(frozen=True)
class Plan:
    """What will be opened, decided from files and headers alone.

    Attributes:
        target, header: the target's file and what its header says.
        drafter: name of the kind: "none", "ngram", "recycle" or "model".
        draft, draft_header: the draft's file, for kind "model".
        pairing: why it fits, if its vocabulary is the target's.
        shared: the tokens that both have, if its vocabulary is another one.
        remark: why the drafter is not the one that was asked for.
        optional: nobody asked for this draft; it is used where it is expected to pay.
    """

    target: ResolvedModel
    header: GGUFHeader
    drafter: str
    draft: ResolvedModel | None = None
    draft_header: GGUFHeader | None = None
    pairing: Pairing | None = None
    shared: SharedTokens | None = None
    remark: str | None = None
    optional: bool = False

    @property
    def drafter_name(self) -> str:
        """What to show for the drafter: its kind, or the draft model's name."""
        return self.draft.name if self.draft else self.drafter

    @property
    def notice(self) -> str | None:
        """What the user should know about this choice of a draft."""
        if self.shared is None:
            return self.remark
        return (
            f"the draft {self.drafter_name} has another tokenizer and proposes only what both "
            f"have: {self.shared}"
        )

    def unsaid(self) -> str | None:
        """Say what the target's file leaves to guesses."""
        if not self.header.unsaid:
            return None
        return (
            f"{self.target.name} does not say {', '.join(self.header.unsaid)}: answers may be "
            "worse, or not end; convert it again"
        )

    def beyond(self, context: int) -> str | None:
        """Say if texts of a context may get longer than those a model was trained on."""
        trained = self.draft_header.context_length if self.draft_header else 0
        if context > self.header.context_length:
            return (
                f"the context of {context} tokens is longer than the "
                f"{self.header.context_length} that {self.target.name} was trained on: expect "
                "worse text behind them, or lower --ctx"
            )
        if 0 < trained < context:
            return (
                f"the draft {self.drafter_name} was trained on {trained} tokens, and the context "
                f"has {context}: its proposals may be worse behind them"
            )
        return None


def make_plan(
    model: str | Path | None, options: EngineOptions, download: Progress = silent
) -> Plan:
    """Resolve target and draft, check that they fit each other and the memory.

    Raises:
        UnknownModelError, DownloadError, ModelFileError: a file cannot be had.
        PairingError: the draft does not fit the target.
        InsufficientMemoryError: they would not fit into free memory.
    """
    target = resolve(model, progress=download, offline=options.offline)
    header = read_header(target.path)
    if header.reduced or header.eagle:
        raise ModelFileError(f"{target.path} is a draft for another model: give it as --draft")
    _require_memory(Plan(target, header, "none"), options)
    _probe(target, header, options)
    if options.draft in ("none", "ngram", "recycle"):
        plan = Plan(target, header, options.draft)
    elif options.draft == "auto":
        plan = _automatic(target, header, options, download)
    else:
        plan = _with_draft(target, header, options.draft, options, download)
    _require_memory(plan, options)
    return plan


def _automatic(
    target: ResolvedModel, header: GGUFHeader, options: EngineOptions, download: Progress
) -> Plan:
    """Plan prompt lookup, and beside it the draft that the registry has for the target."""
    ngram = Plan(target, header, "ngram")
    known = target.entry.drafts if target.entry else ()
    if not known or options.k is not None:  # a fixed number of proposals: one drafter
        return ngram
    try:
        # A sibling is not fetched unasked: it may be larger than what it saves.
        here = replace(options, offline=True)
        plan = _with_draft(target, header, known[0], here, download)
        _require_memory(plan, options)
    except EdgespecError as error:
        _log.info("%s is left out: %s", known[0], error)
        return ngram
    return replace(plan, optional=True) if plan.drafter == "model" else ngram


def _with_draft(
    target: ResolvedModel,
    header: GGUFHeader,
    name: str,
    options: EngineOptions,
    download: Progress,
) -> Plan:
    draft = resolve(name, progress=download, offline=options.offline)
    draft_header = read_header(draft.path)
    _probe(draft, draft_header, options)
    pairing, shared = pair_vocabularies(header, draft_header)
    if draft_header.eagle and (reason := _why_no_heads()):
        return Plan(target, header, "ngram", remark=reason)
    return Plan(target, header, "model", draft, draft_header, pairing, shared)


def _probe(found: ResolvedModel, header: GGUFHeader, options: EngineOptions) -> None:
    """Try a file in a process of its own, unless the registry knows it by its checksum."""
    if options.probe and (found.entry is None or found.entry.sha256 is None):
        require_sound(header)


def pair_vocabularies(
    target: GGUFHeader, draft: GGUFHeader
) -> tuple[Pairing, None] | tuple[None, SharedTokens]:
    """Return how the draft's tokens relate to the target's: by the same ids, or by a table.

    Raises:
        PairingError: the vocabularies share too little.
        ModelLoadError: llama.cpp cannot load one of them, to compare tokens by their bytes.
    """
    try:
        return pair(target, draft), None
    except PairingError:
        if draft.reduced or draft.eagle:
            raise
    options = ModelOptions(vocabulary_only=True)
    with Model(target.path, options) as ours, Model(draft.path, options) as theirs:
        return None, share_tokens(ours.vocabulary, theirs.vocabulary)


def pair(target: GGUFHeader, draft: GGUFHeader) -> Pairing:
    """Check as `check_pairing` does, and that an EAGLE-3 head finds the hidden states it needs.

    Raises:
        PairingError: the draft does not fit.
    """
    pairing = check_pairing(target, draft)
    if draft.eagle and not can_tap(target.architecture):
        raise PairingError(
            "the EAGLE-3 head does not fit: llama.cpp hands out no hidden states of "
            f"{target.architecture} models"
        )
    return pairing


def _why_no_heads() -> str | None:
    """Return why this build cannot run EAGLE-3 heads, if so."""
    if capabilities().eagle:
        return None
    return (
        "this build of llama.cpp gives no access to hidden states, so that the EAGLE-3 head "
        "cannot be used: drafting by prompt lookup; install llama-cpp-python 0.3.36 or newer"
    )


def _require_memory(plan: Plan, options: EngineOptions) -> None:
    length = options.context_for(plan.header.context_length)

    def demand(header: GGUFHeader, outputs: int) -> Callable[[int], MemoryEstimate]:
        return lambda context: estimate(
            header,
            context=context,
            batch=HEAD_BATCH if header.eagle else BATCH,
            outputs=outputs,
            flash_attention=False,
            repack=options.repack is not False,
        )

    demands = {plan.target.name: demand(plan.header, options.most + 1)}
    if plan.draft is not None and plan.draft_header is not None:
        demands[f"draft {plan.draft.name}"] = demand(
            plan.draft_header, HEAD_BATCH if plan.draft_header.eagle else 1
        )
    require(demands, length)
