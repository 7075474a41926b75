"""What an engine will open, decided from files and headers alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from edgespec.errors import EdgespecError, ModelFileError, PairingError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.registry.fetch import Progress, silent
from edgespec.registry.pairing import Pairing, check_pairing
from edgespec.registry.resolve import ResolvedModel, resolve
from edgespec.runtime.memory import MemoryEstimate, estimate, require
from edgespec.runtime.options import EngineOptions
from edgespec.tuning.drafting import HEAD_BATCH

__all__ = [
    "BATCH",
    "SNAPSHOTS",
    "Plan",
    "make_plan",
    "pair",
    "pair_vocabularies",
]

_log = logging.getLogger("edgespec.runtime")

BATCH = 256
"""Tokens of a prompt that are evaluated together."""

SNAPSHOTS = 4
"""Rejected tokens that recurrent layers can take back without a copy; each is a state more."""


@dataclass(frozen=True)
class Plan:
    """What will be opened, decided from files and headers alone.

    Attributes:
        target, header: the target's file and what its header says.
        drafter: name of the kind: "none", "ngram", "recycle", "mtp" or "model".
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
    def draft_path(self) -> Path | None:
        """The file that drafts: a draft's, or the target's own with its MTP layers."""
        if self.drafter == "mtp":
            return self.target.path
        return self.draft.path if self.draft else None

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
    if header.drafts_only:
        raise ModelFileError(f"{target.path} is a draft for another model: give it as --draft")
    _require_memory(Plan(target, header, "none"), options)
    _probe(target, header, options)
    if options.draft in ("none", "ngram", "recycle"):
        plan = Plan(target, header, options.draft)
    elif options.draft == "mtp":
        plan = _with_mtp(target, header, options)
    elif options.draft == "auto":
        plan = _automatic(target, header, options, download)
    else:
        plan = _with_draft(target, header, options.draft, options, download)
    _require_memory(plan, options)
    return plan


def _automatic(
    target: ResolvedModel, header: GGUFHeader, options: EngineOptions, download: Progress
) -> Plan:
    """Plan prompt lookup, and beside it the registry's draft for the target or its MTP layers."""
    ngram = Plan(target, header, "ngram")
    known = target.entry.drafts if target.entry else ()
    if options.k is not None:  # a fixed number of proposals: one drafter
        return ngram
    if not known:
        return _automatic_mtp(target, header, options) or ngram
    try:
        # A sibling is not fetched unasked: it may be larger than what it saves.
        here = replace(options, offline=True)
        plan = _with_draft(target, header, known[0], here, download)
        _require_memory(plan, options)
    except EdgespecError as error:
        _log.info("%s is left out: %s", known[0], error)
        return ngram
    return replace(plan, optional=True) if plan.drafter == "model" else ngram


def _automatic_mtp(
    target: ResolvedModel, header: GGUFHeader, options: EngineOptions
) -> Plan | None:
    """Plan drafting with the target's MTP layers, if that is possible."""
    if header.mtp is None:
        return None
    try:
        plan = _with_mtp(target, header, options)
        _require_memory(plan, options)
    except EdgespecError as error:
        _log.info("the MTP layers are left out: %s", error)
        return None
    return replace(plan, optional=True) if plan.drafter == "mtp" else None


def _with_mtp(target: ResolvedModel, header: GGUFHeader, options: EngineOptions) -> Plan:
    """Plan drafting with the target's MTP layers.

    Raises:
        PairingError: it has none that can be used.
        ModelFileError: trying them failed.
    """
    if header.mtp is None:
        raise PairingError(f"{target.name} has no MTP layers: use another --draft")
    if header.mtp.unusable is not None:
        raise PairingError(
            f"the MTP layers of {target.name} cannot be used, {header.mtp.unusable}: use another "
            "--draft"
        )
    if not capabilities().mtp:
        reason = (
            "this build of llama.cpp cannot run MTP layers: drafting by prompt lookup; install "
            "llama-cpp-python 0.3.36 or newer"
        )
        return Plan(target, header, "ngram", remark=reason)
    if options.probe:
        require_sound(header, mtp=True)
    return Plan(target, header, "mtp")


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
    """Try a file in a process of its own, unless the registry knows it by its checksum.

    llama.cpp never sees Medusa heads: they are all checked.
    """
    if (
        header.medusa is None
        and options.probe
        and (found.entry is None or found.entry.sha256 is None)
    ):
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
        if draft.drafts_only:
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

    def demand(
        header: GGUFHeader, outputs: int, *, mtp: bool = False, snapshots: int = 0
    ) -> Callable[[int], MemoryEstimate]:
        return lambda context: estimate(
            header,
            context=context,
            batch=HEAD_BATCH if header.eagle else BATCH,
            outputs=outputs,
            flash_attention=False,
            repack=options.repack is not False,
            mtp=mtp,
            snapshots=snapshots,
        )

    mtp = plan.drafter == "mtp"
    snapshots = 0 if plan.drafter == "none" else min(options.most, SNAPSHOTS)
    target = demand(plan.header, options.most + 1, mtp=mtp, snapshots=snapshots)
    demands = {plan.target.name: target}
    if plan.draft is not None and plan.draft_header is not None:
        demands[f"draft {plan.draft.name}"] = demand(
            plan.draft_header, HEAD_BATCH if plan.draft_header.eagle else 1
        )
    require(demands, length)
