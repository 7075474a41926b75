"""Finding and opening what an engine needs: files, memory, models, contexts, the drafter."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.backend import Context, ContextOptions, Model, ModelOptions
from edgespec.control.budget import draft_speedup
from edgespec.control.controller import AdaptivePolicy, FixedPolicy, Policy
from edgespec.drafters import (
    ComposedDrafter,
    Drafter,
    NoDrafter,
    PromptLookupDrafter,
    SharedTokens,
    share_tokens,
)
from edgespec.errors import EdgespecError, ModelFileError, PairingError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.registry.fetch import Progress, silent
from edgespec.registry.pairing import Pairing
from edgespec.registry.resolve import ResolvedModel, resolve
from edgespec.runtime.drafting import HEAD_BATCH, AnyModelDrafter, draft_with, pair, why_no_heads
from edgespec.runtime.memory import MemoryEstimate, estimate, require
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.warmup import warm_up
from edgespec.tuning.exactness import (
    PLAIN,
    Exactness,
    choose_exactness,
    exactness_of,
    measure_setting,
)
from edgespec.tuning.measure import GLANCE, QUICK, Effort
from edgespec.tuning.profile import Profile
from edgespec.tuning.setting import SettingFigures, load_setting

__all__ = [
    "LoadProgress",
    "Plan",
    "make_plan",
    "make_policy",
    "open_drafter",
    "open_target",
    "pair_vocabularies",
    "with_best",
]

LoadProgress = Callable[[str, float], None]
"""Called with what is being done ("loading smollm2-135m") and the done fraction, 0 to 1."""

_log = logging.getLogger("edgespec.runtime")

_BATCH = 256
_MEASURED_LENGTH = 512

_WORTH_OPENING = 1.05
"""A draft that nobody asked for takes memory, and what it reads of every text takes time."""


@dataclass(frozen=True)
class Plan:
    """What will be opened, decided from files and headers alone.

    Attributes:
        target, header: the target's file and what its header says.
        drafter: name of the kind: "none", "ngram" or "model".
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
    if options.draft in ("none", "ngram"):
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
    """Prompt lookup, and beside it the draft that the registry has for the target."""
    ngram = Plan(target, header, "ngram")
    known = target.entry.drafts if target.entry else ()
    if not known or options.k is not None:  # a fixed number of proposals: one drafter
        return ngram
    try:
        plan = _with_draft(target, header, known[0], options, download)
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
    pairing, shared = pair_vocabularies(header, draft_header)
    if draft_header.eagle and (reason := why_no_heads()):
        return Plan(target, header, "ngram", remark=reason)
    return Plan(target, header, "model", draft, draft_header, pairing, shared)


def pair_vocabularies(
    target: GGUFHeader, draft: GGUFHeader
) -> tuple[Pairing, None] | tuple[None, SharedTokens]:
    """How the draft's tokens relate to the target's: ids that are the same, or a table.

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


def open_target(
    plan: Plan,
    options: EngineOptions,
    profile: Profile,
    progress: LoadProgress | None,
    stack: ExitStack,
) -> tuple[Context, Exactness]:
    """Load the target and open its context, both closed by the stack, in the settings chosen.

    Settings are measured the first time that they are wanted.
    """
    options = with_best(options, profile)
    model = stack.enter_context(_load(plan.target, options, progress))
    speculative = options.most > 0 and plan.drafter != "none"
    settings = ContextOptions(
        length=options.context_for(model.context_length),
        threads=options.thread_count,
        flash_attention=bool(options.flash_attention) or options.kv_type == "q8_0",
        batch=_BATCH,
        outputs=options.most + 1,
        kv_type=options.kv_type,
        # The last block is all that is ever taken back.
        checkpoints=int(speculative),
    )
    exactness = PLAIN
    if speculative:
        exactness = _choose(model, settings, options, progress)
        settings = replace(settings, flash_attention=exactness.flash_attention)
    return stack.enter_context(Context(model, settings)), exactness


def with_best(options: EngineOptions, profile: Profile) -> EngineOptions:
    """What the user left open is opened as `edgespec tune` found best."""
    best = profile.best
    if best is None:
        return options
    flash = options.flash_attention
    if flash is None and options.exact == "auto" and options.kv_type != "q8_0":
        flash = best.flash_attention
    return replace(
        options,
        threads=options.threads or best.threads,
        repack=best.repack if options.repack is None else options.repack,
        flash_attention=flash,
    )


def _choose(
    model: Model,
    settings: ContextOptions,
    options: EngineOptions,
    progress: LoadProgress | None,
) -> Exactness:
    adaptive = options.k is None
    needed = QUICK.needed if adaptive else options.most + 1

    def measure(flash_attention: bool, effort: Effort = QUICK) -> SettingFigures:
        effort = effort._replace(needed=needed, largest=max(effort.largest, needed))
        if progress is not None:
            progress("measuring this machine", 0.5 if flash_attention else 0.0)
        tried = replace(
            settings,
            length=_MEASURED_LENGTH,
            flash_attention=flash_attention,
            outputs=effort.largest,
        )
        with Context(model, tried) as context:
            stored = load_setting(context, effort.needed)
            if stored is not None:
                return stored
            warm_up()  # a compiler at work beside it would be measured too
            return measure_setting(context, effort)

    if options.flash_attention is not None or options.kv_type == "q8_0":
        chosen = exactness_of(
            options.exact,
            options.most,
            measure(settings.flash_attention),
            adaptive=adaptive,
        )
    else:
        chosen = choose_exactness(
            options.exact,
            options.most,
            lambda: measure(False),
            lambda: measure(True, GLANCE),
            adaptive=adaptive,
        )
    if progress is not None:
        progress("measuring this machine", 1.0)
    return chosen


def make_policy(options: EngineOptions, exactness: Exactness, profile: Profile) -> Policy:
    """What bounds each cycle: the user's k, or measured costs."""
    k = exactness.largest_k
    if options.k is not None or exactness.setting is None:
        return FixedPolicy(k)
    costs = exactness.setting.cost_table(k + 1)
    learned = profile.shapes.get(exactness.setting.name)
    if learned is not None and len(learned) == len(costs.shape):
        costs.shape[:] = learned
    return AdaptivePolicy(costs, k)


def open_drafter(
    plan: Plan,
    target: Context,
    options: EngineOptions,
    profile: Profile,
    exactness: Exactness,
    progress: LoadProgress | None,
    stack: ExitStack,
) -> tuple[Drafter, Plan]:
    """Open the planned drafter, closed by the stack; the plan again, as it was carried out.

    A model drafts alone when the number of its proposals is fixed, and beside prompt lookup
    where costs decide. One that nobody asked for is closed again where it will not pay.
    """
    drafter: Drafter = NoDrafter()
    if plan.drafter in ("model", "ngram"):
        drafter = ngram = PromptLookupDrafter(target.capacity)
        ngram.trust(profile.ngram)
    if plan.optional and not _pays(plan, exactness, 0.0):  # not even if its steps cost nothing
        plan = Plan(plan.target, plan.header, "ngram")
    if plan.drafter == "model":
        model = _open_model_drafter(plan, target, options, profile, progress)
        if plan.optional and not _pays(plan, exactness, model.stopping.step_s):
            model.close()
            plan = Plan(plan.target, plan.header, "ngram")
        else:
            drafter = ComposedDrafter(ngram, model) if options.k is None else model
    stack.callback(drafter.close)
    return drafter, plan


def _pays(plan: Plan, exactness: Exactness, step_s: float) -> bool:
    """Whether the draft's held-out acceptance is worth its cost at any temperature."""
    held_out = plan.draft_header.held_out if plan.draft_header else None
    if held_out is None or exactness.setting is None:
        return False
    costs = exactness.setting.cost_table(exactness.largest_k + 1)
    speedups = [
        draft_speedup(acceptance, costs, step_s)
        for acceptance in (held_out.greedy, held_out.sampled)
    ]
    _log.info("%s is expected to bring %.2f times the speed", plan.drafter_name, max(speedups))
    return max(speedups) >= _WORTH_OPENING


def _open_model_drafter(
    plan: Plan,
    target: Context,
    options: EngineOptions,
    profile: Profile,
    progress: LoadProgress | None,
) -> AnyModelDrafter:
    assert plan.draft is not None
    longest = max(1, options.most)
    learned = profile.draft(plan.draft.path)
    with ExitStack() as undo:
        model = undo.enter_context(_load(plan.draft, options, progress))
        settings = ContextOptions(
            length=target.capacity,
            threads=options.threads or learned.get("threads") or options.thread_count,
            batch=_BATCH,
            outputs=1,
            checkpoints=longest,
        )
        found = plan.pairing or plan.shared
        assert found is not None
        drafter = draft_with(model, target, found, settings, longest)
        drafter.stopping.restore(learned)
        undo.pop_all()
    return drafter


def _load(found: ResolvedModel, options: EngineOptions, progress: LoadProgress | None) -> Model:
    def report(fraction: float) -> None:
        if progress is not None:
            progress(f"loading {found.name}", fraction)

    return Model(found.path, ModelOptions(repack=options.repack is not False), progress=report)


def _require_memory(plan: Plan, options: EngineOptions) -> None:
    length = options.context_for(plan.header.context_length)

    def demand(header: GGUFHeader, outputs: int) -> Callable[[int], MemoryEstimate]:
        return lambda context: estimate(
            header,
            context=context,
            batch=HEAD_BATCH if header.eagle else _BATCH,
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
