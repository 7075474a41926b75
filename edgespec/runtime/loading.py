"""Finding and opening what an engine needs: files, memory, models, contexts, the drafter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.backend import Context, ContextOptions, Model, ModelOptions
from edgespec.drafters import (
    Drafter,
    ForeignDrafter,
    ModelDrafter,
    NgramDrafter,
    NoDrafter,
    SharedTokens,
    share_tokens,
)
from edgespec.errors import PairingError
from edgespec.registry.header import GGUFHeader, read_header
from edgespec.registry.pairing import Pairing, check_pairing
from edgespec.registry.progress import Progress, silent
from edgespec.registry.resolve import ResolvedModel, resolve
from edgespec.runtime.memory import MemoryEstimate, estimate, require
from edgespec.runtime.options import EngineOptions
from edgespec.tuning.exactness import (
    PLAIN,
    Exactness,
    SettingFigures,
    choose_exactness,
    measure_setting,
)

__all__ = ["LoadProgress", "Plan", "make_plan", "open_drafter", "open_target", "pair_vocabularies"]

LoadProgress = Callable[[str, float], None]
"""Called with what is being done ("loading smollm2-135m") and the done fraction, 0 to 1."""

_BATCH = 256
_MEASURED_LENGTH = 512


@dataclass(frozen=True)
class Plan:
    """What will be opened, decided from files and headers alone.

    Attributes:
        target, header: the target's file and what its header says.
        drafter: name of the kind: "none", "ngram" or "model".
        draft, draft_header: the draft's file, for kind "model".
        pairing: why it fits, if its vocabulary is the target's.
        shared: the tokens that both have, if its vocabulary is another one.
    """

    target: ResolvedModel
    header: GGUFHeader
    drafter: str
    draft: ResolvedModel | None = None
    draft_header: GGUFHeader | None = None
    pairing: Pairing | None = None
    shared: SharedTokens | None = None

    @property
    def drafter_name(self) -> str:
        """What to show for the drafter: its kind, or the draft model's name."""
        return self.draft.name if self.draft else self.drafter

    @property
    def notice(self) -> str | None:
        """What the user should know about this choice of a draft."""
        if self.shared is None:
            return None
        return f"the draft {self.drafter_name} has another tokenizer: {self.shared}"


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
    plan = Plan(target, header, "ngram" if options.draft == "auto" else options.draft)
    if plan.drafter not in ("none", "ngram"):
        draft = resolve(options.draft, progress=download, offline=options.offline)
        draft_header = read_header(draft.path)
        pairing, shared = pair_vocabularies(header, draft_header)
        plan = Plan(target, header, "model", draft, draft_header, pairing, shared)
    _require_memory(plan, options)
    return plan


def pair_vocabularies(
    target: GGUFHeader, draft: GGUFHeader
) -> tuple[Pairing, None] | tuple[None, SharedTokens]:
    """How the draft's tokens relate to the target's: ids that are the same, or a table.

    Raises:
        PairingError: the vocabularies share too little.
        ModelLoadError: llama.cpp cannot load one of them, to compare tokens by their bytes.
    """
    try:
        return check_pairing(target, draft), None
    except PairingError:
        pass
    options = ModelOptions(vocabulary_only=True)
    with Model(target.path, options) as ours, Model(draft.path, options) as theirs:
        return None, share_tokens(ours.vocabulary, theirs.vocabulary)


def open_target(
    plan: Plan, options: EngineOptions, progress: LoadProgress | None, stack: ExitStack
) -> tuple[Context, Exactness]:
    """Load the target and open its context, both closed by the stack, in the settings chosen.

    Settings are measured the first time that they are wanted.
    """
    model = stack.enter_context(_load(plan.target, options, progress))
    speculative = options.k > 0 and plan.drafter != "none"
    settings = ContextOptions(
        length=options.context_for(model.context_length),
        threads=options.thread_count,
        batch=_BATCH,
        outputs=options.k + 1,
        # The last block is all that is ever taken back.
        checkpoints=int(speculative),
    )
    exactness = _choose(model, settings, options, progress) if speculative else PLAIN
    settings = replace(settings, flash_attention=exactness.flash_attention)
    return stack.enter_context(Context(model, settings)), exactness


def _choose(
    model: Model,
    settings: ContextOptions,
    options: EngineOptions,
    progress: LoadProgress | None,
) -> Exactness:
    def measure(flash_attention: bool) -> SettingFigures:
        if progress is not None:
            progress("measuring exact settings", 0.5 if flash_attention else 0.0)
        tried = replace(settings, length=_MEASURED_LENGTH, flash_attention=flash_attention)
        with Context(model, tried) as context:
            return measure_setting(context, options.k)

    chosen = choose_exactness(
        options.exact, options.k, lambda: measure(False), lambda: measure(True)
    )
    if progress is not None:
        progress("measuring exact settings", 1.0)
    return chosen


def open_drafter(
    plan: Plan,
    target: Context,
    options: EngineOptions,
    progress: LoadProgress | None,
    stack: ExitStack,
) -> Drafter:
    """Open the planned drafter; the stack closes it."""
    drafter: Drafter
    if plan.drafter == "model":
        drafter = _open_model_drafter(plan, target, options, progress)
    elif plan.drafter == "ngram":
        drafter = NgramDrafter(target.capacity)
    else:
        drafter = NoDrafter()
    stack.callback(drafter.close)
    return drafter


def _open_model_drafter(
    plan: Plan, target: Context, options: EngineOptions, progress: LoadProgress | None
) -> Drafter:
    assert plan.draft is not None
    budget = max(1, options.k)
    with ExitStack() as undo:
        model = undo.enter_context(_load(plan.draft, options, progress))
        context = Context(
            model,
            ContextOptions(
                length=target.capacity,
                threads=options.thread_count,
                batch=_BATCH,
                outputs=1,
                checkpoints=budget,
            ),
        )
        vocabulary = target.model.vocabulary
        drafter: Drafter
        if plan.shared is not None:
            drafter = ForeignDrafter(context, vocabulary, plan.shared, budget)
        else:
            assert plan.pairing is not None
            shared = plan.pairing.shared_vocabulary
            drafter = ModelDrafter(context, vocabulary.size, shared, budget)
        undo.pop_all()
    return drafter


def _load(found: ResolvedModel, options: EngineOptions, progress: LoadProgress | None) -> Model:
    def report(fraction: float) -> None:
        if progress is not None:
            progress(f"loading {found.name}", fraction)

    return Model(found.path, ModelOptions(repack=options.repack), progress=report)


def _require_memory(plan: Plan, options: EngineOptions) -> None:
    length = options.context_for(plan.header.context_length)

    def demand(header: GGUFHeader, outputs: int) -> Callable[[int], MemoryEstimate]:
        return lambda context: estimate(
            header,
            context=context,
            batch=_BATCH,
            outputs=outputs,
            flash_attention=False,
            repack=options.repack,
        )

    demands = {plan.target.name: demand(plan.header, options.k + 1)}
    if plan.draft is not None and plan.draft_header is not None:
        demands[f"draft {plan.draft.name}"] = demand(plan.draft_header, 1)
    require(demands, length)
