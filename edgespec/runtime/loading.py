"""Open a target in the best settings known, compiling kernels meanwhile; keep what use taught."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import (
    Context,
    ContextOptions,
    Model,
    ModelOptions,
    formats_of,
    kernel_status,
)
from edgespec.control.controller import AdaptivePolicy, CycleTiming, FixedPolicy, Policy
from edgespec.control.costs import CostTable, make_cost_table
from edgespec.control.speedup import Achieved
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import Drafter, EarlierTexts, PromptLookupDrafter
from edgespec.drafters.protocol import draft_token
from edgespec.errors import BackendError
from edgespec.gguf.header import read_header
from edgespec.registry.resolve import ResolvedModel
from edgespec.runtime.options import MAX_BLOCK, EngineOptions
from edgespec.runtime.plan import BATCH, SNAPSHOTS, Plan
from edgespec.runtime.processors import spare_processors
from edgespec.sampling.filters import filtered, make_workspace, truncated
from edgespec.sampling.kernel import Workspace, cache_folder, release_compiler
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.penalties import allowed_set, apply_bias, apply_dry, apply_penalties
from edgespec.sampling.selection import PURPOSE_TARGET
from edgespec.speculation.acceptance import DrawSettings, choose, draw_settings, verify_chain
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

__all__ = [
    "LoadProgress",
    "compile_half",
    "load_model",
    "make_policy",
    "open_target",
    "remember",
    "warm_up",
    "with_best",
]

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
    mtp = plan.drafter == "mtp"
    model = stack.enter_context(load_model(plan.target, options, progress, mtp=mtp))
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
        snapshots=min(options.most, SNAPSHOTS) if speculative else 0,
        room=spare_processors().look,
    )
    exactness = PLAIN
    if speculative:
        exactness = _choose(model, settings, options)
        settings = replace(settings, flash_attention=exactness.flash_attention)
    release_compiler()  # before the caches are filled, when a process is largest
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
    found: ResolvedModel,
    options: EngineOptions,
    progress: LoadProgress | None,
    *,
    mtp: bool = False,
) -> Model:
    """Load a model's weights, with its MTP layers or without, and tell how far that is."""

    def report(fraction: float) -> None:
        if progress is not None:
            progress(f"loading {found.name}", fraction)

    threads = options.thread_count
    formats = _formats(found.path, options)
    opened = ModelOptions(formats, threads, repack=options.repack is not False, mtp=mtp)
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
    if learned.model is not None and plan.draft_path is not None:
        known = profile.draft(plan.draft_path)
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


_NOTICE_AFTER_S = 1.0

_VOCABULARY = 8

_PROGRAM = "from edgespec.runtime.loading import compile_half; compile_half()"

_running = threading.Lock()


def warm_up(notice: Callable[[], None] | None = None, *, drafting: bool = True) -> None:
    """Run every kernel once: compiled at the first start after an installation, else loaded.

    Args:
        notice: called (from another thread) if it takes longer than loading them would.
        drafting: those of draft models too.

    A second caller waits for the first.
    """
    timer = threading.Timer(_NOTICE_AFTER_S, notice or (lambda: None))
    timer.daemon = True
    timer.start()
    try:
        with _running, _another_process() as wait_for_filters:
            arrays = _Arrays.make()
            _edit_logits(arrays)
            wait_for_filters()
            _verify(arrays)
        with _running:
            _decide()
            if drafting:
                _draft(arrays)
    finally:
        timer.cancel()


def compile_half() -> None:
    """Compile into the cache, in the second process, what `warm_up` needs last."""
    arrays = _Arrays.make()
    row, p, settings = arrays.logits[0], arrays.p, arrays.settings
    filtered(row, settings.arguments, False, p, arrays.workspace)
    choose(p, arrays.workspace.tokens, 1, settings.rule, settings.seed, 1, PURPOSE_TARGET)
    sys.stdout.write("filters\n")
    sys.stdout.flush()
    _decide()


@contextmanager
def _another_process() -> Iterator[Callable[[], object]]:
    """Start it where there is something to compile; yield what waits for its first part.

    At the end of the block it has compiled everything, or failed.
    """
    folder = cache_folder("drafters")
    frozen = not sys.executable or getattr(sys, "frozen", False)
    if frozen or folder is None or next(folder.rglob("*.nbi"), None) is not None:
        yield lambda: None
        return
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # no process can be started
        yield lambda: None
        return
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline
            process.wait()
        except BaseException:
            with suppress(OSError):
                process.kill()
            raise


class _Arrays(NamedTuple):
    """Small arguments, of the types that the loop's have."""

    settings: DrawSettings
    workspace: Workspace
    logits: Float32Array
    p: Float32Array
    q: Float32Array
    history: Int32Array
    out: Int32Array

    @classmethod
    def make(cls) -> _Arrays:
        return cls(
            draw_settings(SamplingParameters(), "auto"),
            make_workspace(_VOCABULARY),
            np.zeros((2, _VOCABULARY), np.float32),
            np.zeros(_VOCABULARY, np.float32),
            np.zeros((1, _VOCABULARY), np.float32),
            np.zeros(8, np.int32),
            np.zeros(2, np.int32),
        )


def _edit_logits(arrays: _Arrays) -> None:
    row, history, workspace = arrays.logits[0], arrays.history, arrays.workspace
    arguments = arrays.settings.arguments
    apply_bias(row, arguments, workspace)
    apply_penalties(row, history, 1, arguments, 0, workspace)
    apply_dry(row, history, 1, arguments, 0, workspace)
    truncated(row, 1.0, 5.0, arrays.p, workspace)


def _verify(arrays: _Arrays) -> None:
    settings, logits, p, q, history = (
        arrays.settings,
        arrays.logits,
        arrays.p,
        arrays.q,
        arrays.history,
    )
    verify_chain(logits, history, 1, 1, q, settings, p, arrays.workspace, arrays.out)


def _decide() -> None:
    """Compile prompt lookup, and what a cycle may spend."""
    history = np.zeros(8, np.int32)
    drafter, earlier = PromptLookupDrafter(8), EarlierTexts(8)
    earlier.add(history[:2])
    drafter.consult([earlier])
    drafter.commit(history, 4)
    allowed_set(history, 1)
    policy = AdaptivePolicy(make_cost_table([1.0], [1], [[1.0]], [0.0], 2), 1)
    drafter.propose(history, 4, policy.budget(4, 1))
    policy.observe(CycleTiming(4, 1, 0, 1, 0.0, 1.0))


def _draft(arrays: _Arrays) -> None:
    row, q = arrays.logits[0, :_VOCABULARY], arrays.q[0, :_VOCABULARY]
    draft_token(row, arrays.history, 1, arrays.settings, q, arrays.workspace)
    policy = AdaptivePolicy(make_cost_table([1.0], [1], [[1.0]], [0.0], 2), 1)
    stopping = DraftStopping(1.0, 1.0, 1)
    stopping.begin(policy.budget(4, 1), 0, 0)
    stopping.another()
    stopping.add(1.0)
    stopping.learn(1, 1)
