"""Open a target in the best settings that are known, and remember what use taught about them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from edgespec.backend import (
    Context,
    ContextOptions,
    Model,
    ModelOptions,
    formats_of,
    kernel_status,
)
from edgespec.control.controller import AdaptivePolicy, FixedPolicy, Policy
from edgespec.control.costs import Achieved, CostTable
from edgespec.drafters import Drafter
from edgespec.errors import BackendError
from edgespec.gguf.header import read_header
from edgespec.registry.resolve import ResolvedModel
from edgespec.runtime.plan import BATCH, MAX_BLOCK, EngineOptions, Plan
from edgespec.runtime.processors import spare_processors
from edgespec.tuning.exactness import (
    ENOUGH_PROVED,
    PLAIN,
    Exactness,
    choose_exactness,
    exactness_of,
    faster_formats,
    published_figures,
)
from edgespec.tuning.measure import QUICK, prove_batches, token_seconds
from edgespec.tuning.profile import Profile, Usage, load_profile
from edgespec.tuning.setting import (
    SettingFigures,
    find_setting,
    forget_settings,
    load_setting,
    setting_of,
    store_setting,
)

__all__ = ["LoadProgress", "load_model", "make_policy", "open_target", "remember", "with_best"]

LoadProgress = Callable[[str, float], None]
"""Called with what is being done ("loading smollm2-135m") and the done fraction, 0 to 1."""

_PROVING_S = 1.5
_PROVING_LENGTH = 128


def open_target(
    plan: Plan,
    options: EngineOptions,
    profile: Profile,
    progress: LoadProgress | None,
    stack: ExitStack,
) -> tuple[Context, Exactness]:
    """Load the target and open its context, both closed by the stack, in the settings chosen."""
    options = with_best(options, profile)
    model = stack.enter_context(load_model(plan.target, options, progress))
    if options.flash_attention is None and model.exact_attention:
        options = replace(options, flash_attention=True)  # with speculation and without
    speculative = options.most > 0 and plan.drafter != "none"
    settings = ContextOptions(
        length=options.context_for(model.context_length),
        threads=options.thread_count,
        flash_attention=bool(options.flash_attention) or options.kv_type == "q8_0",
        batch=BATCH,
        outputs=options.most + 1,
        kv_type=options.kv_type,
        # The last block is all that is ever taken back.
        checkpoints=int(speculative),
        room=spare_processors().look,
    )
    exactness = PLAIN
    if speculative:
        exactness = _choose(model, settings, options)
        settings = replace(settings, flash_attention=exactness.flash_attention)
    context = stack.enter_context(Context(model, settings))
    return context, _to_scale(context, exactness, options.k is None)


def with_best(options: EngineOptions, profile: Profile) -> EngineOptions:
    """Return the options, filled in as `edgespec tune` found best where the user left a choice."""
    best = profile.best
    if best is None:
        return options
    flash, slower = options.flash_attention, best.kernels == "llama.cpp"
    if flash is None and options.exact == "auto" and options.kv_type != "q8_0":
        flash = best.flash_attention
    return replace(
        options,
        threads=options.threads or best.threads,
        repack=best.repack if options.repack is None else options.repack,
        kernels="llama.cpp" if options.kernels == "auto" and slower else options.kernels,
        flash_attention=flash,
    )


def _choose(model: Model, settings: ContextOptions, options: EngineOptions) -> Exactness:
    """Choose among settings by what is known of them, or can be proved at once."""
    adaptive = options.k is None
    needed = QUICK.needed if adaptive else options.most + 1

    def known(flash_attention: bool) -> SettingFigures | None:
        tried = replace(settings, flash_attention=flash_attention)
        return find_setting(model.path, setting_of(model, tried).name, needed)

    def figures(flash_attention: bool) -> SettingFigures:
        found = known(flash_attention)
        if found is not None and not (found.uncompared and found.identical <= ENOUGH_PROVED):
            return found
        return _unmeasured(model, replace(settings, flash_attention=flash_attention), options)

    if options.flash_attention is not None or options.kv_type == "q8_0":
        return exactness_of(
            options.exact, options.most, figures(settings.flash_attention), adaptive=adaptive
        )
    return choose_exactness(
        options.exact,
        options.most,
        lambda: figures(False),
        lambda: known(True),
        adaptive=adaptive,
    )


def _unmeasured(model: Model, settings: ContextOptions, options: EngineOptions) -> SettingFigures:
    """Return other machines' figures; how long batches may be is known, or proved here.

    llama.cpp's flash attention rounds alike in short caches only: nothing is proved of it.
    """
    setting, largest = setting_of(model, settings), options.most + 1
    isa = kernel_status().instruction_set
    if settings.flash_attention:
        identical = MAX_BLOCK + 1 if model.exact_batches else 1
        return published_figures(model.path, setting, isa, largest, identical)
    short = replace(settings, length=_PROVING_LENGTH, room=None, outputs=largest)
    with Context(model, short) as context:
        proof = prove_batches(context, largest, _PROVING_S)
    figures = published_figures(model.path, setting, isa, largest, proof.identical, proof.token_s)
    if proof.different is not None:
        difference = proof.different
        figures = replace(
            figures, logit_difference=difference.logit, total_variation=difference.variation
        )
    store_setting(model.path, figures)
    return figures


def _to_scale(context: Context, exactness: Exactness, adaptive: bool) -> Exactness:
    """Give published figures this machine's speed, by a few single tokens."""
    figures = exactness.setting
    if figures is None or not adaptive or load_setting(context) is not None:
        return exactness
    return replace(exactness, setting=figures.at_speed(token_seconds(context)))


def make_policy(options: EngineOptions, exactness: Exactness, profile: Profile) -> Policy:
    """Return what bounds each cycle: the user's k, or measured costs."""
    k = exactness.largest_k
    if options.k is not None or exactness.setting is None:
        return FixedPolicy(k)
    costs = exactness.setting.cost_table(k + 1)
    learned = profile.shapes.get(exactness.setting.name)
    if learned is not None and len(learned) == len(costs.shape):
        costs.shape[:] = learned
    return AdaptivePolicy(costs, k)


def load_model(
    found: ResolvedModel, options: EngineOptions, progress: LoadProgress | None
) -> Model:
    """Load a model's weights, and tell how far that is."""

    def report(fraction: float) -> None:
        if progress is not None:
            progress(f"loading {found.name}", fraction)

    threads = options.thread_count
    formats = _formats(found.path, options)
    opened = ModelOptions(formats, threads, repack=options.repack is not False)
    return Model(found.path, opened, progress=report)


def _formats(path: Path, options: EngineOptions) -> frozenset[str]:
    """Return the types of tensors that our kernels are to multiply.

    Raises:
        BackendError: the user insists on them, and they cannot be used here.
    """
    if options.kernels == "llama.cpp":
        return frozenset()
    header = read_header(path)
    if options.kernels == "auto":
        return faster_formats(header)
    status = kernel_status()
    if status.instruction_set is None:
        raise BackendError(f"edgespec's kernels cannot be used: {status.reason}")
    return formats_of(header)


_ENOUGH_CYCLES = 50

_MOST_DRIFT = 0.5  # in log: the machine is 1.65 times as fast or slow as when it was measured


def remember(
    plan: Plan, exactness: Exactness, policy: Policy, drafter: Drafter, usage: Usage
) -> None:
    """Write what was learned. The file is read first: another process may have changed it."""
    profile = load_profile(plan.target.path)
    profile.usage = usage
    achieved, costs, setting = policy.achieved, policy.costs, exactness.setting
    if costs is not None and setting is not None:
        calm = spare_processors().look() >= setting.threads
        telling = calm and achieved.cycles >= _ENOUGH_CYCLES
        keep_costs(plan.target.path, profile, setting, costs, telling=telling)
    learned = drafter.learned()
    if learned.lookup is not None:
        profile.ngram.update(learned.lookup)
    known = profile.ngram
    if learned.model is not None and plan.draft is not None:
        known = profile.draft(plan.draft.path)
        known.update(learned.model)
    if achieved.tokens:
        known["achieved"] = (Achieved.from_json(known.get("achieved")) + achieved).as_json()
    profile.save()


def keep_costs(
    model: Path, profile: Profile, setting: SettingFigures, costs: CostTable, *, telling: bool
) -> None:
    """Keep what use taught of a setting's costs.

    Figures that were not measured here are replaced by what use made of them. Measured ones that
    disagree with use so much that they are wrong (taken beside another program, say) are forgotten,
    whoever took them.

    Args:
        telling: it was used for long enough, and no other program took processors from it.
    """
    wrong = setting.measured and abs(float(costs.drift[0])) > _MOST_DRIFT
    if telling and wrong:
        forget_settings(model, setting.name)
        profile.shapes.pop(setting.name, None)
        profile.tuned = {}
    elif telling and not setting.measured:
        store_setting(model, setting.corrected(costs))
        profile.shapes.pop(setting.name, None)
    elif not wrong and setting.measured:
        profile.shapes[setting.name] = costs.shape.round(4).tolist()
