"""The drafter an engine opens, and the files that prompt lookup may copy from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from edgespec.backend import (
    Context,
    ContextOptions,
    FinalStates,
    HeadContext,
    Model,
    MTPContext,
    RecordedInputs,
    RecordedOutputs,
    Vocabulary,
    open_heads,
)
from edgespec.control.controller import draft_speedup
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import (
    ComposedDrafter,
    CrossVocabularyDrafter,
    Drafter,
    EagleDrafter,
    EarlierTexts,
    MedusaDrafter,
    ModelDrafter,
    MTPDrafter,
    NoDrafter,
    PromptLookupDrafter,
    RecycleDrafter,
    ReducedDrafter,
    SharedTokens,
)
from edgespec.drafters.growing import WIDEST
from edgespec.drafters.trees import GROWN, TreeDrafter
from edgespec.errors import UsageError
from edgespec.files import read_text
from edgespec.gguf.header import GGUFHeader
from edgespec.registry.pairing import Pairing
from edgespec.runtime.loading import LoadProgress, load_model
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.plan import BATCH, Plan
from edgespec.runtime.processors import spare_processors
from edgespec.tuning.drafting import (
    HEAD_BATCH,
    DraftCost,
    measure_draft,
    measure_head,
    measure_heads,
    measure_mtp,
)
from edgespec.tuning.exactness import Exactness
from edgespec.tuning.profile import Profile

__all__ = [
    "AnyModelDrafter",
    "draft_with",
    "index_texts",
    "medusa_with",
    "open_drafter",
    "prompt_lookup_of",
    "read_texts",
]

_MOST_BYTES = 4 << 20

_MOST_TOKENS = 1 << 18
"""Of all files together."""


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Return the texts of files.

    Raises:
        UsageError: one cannot be read, or is no text, or they are too long.
    """
    texts: list[str] = []
    left = _MOST_BYTES
    for path in paths:
        texts.append(read_text(path, left, "is too long to be looked up"))
        left = max(0, left - len(texts[-1].encode()))
    return texts


def index_texts(texts: Sequence[str], vocabulary: Vocabulary) -> EarlierTexts:
    """Index texts, in which control tokens have no meaning.

    Raises:
        UsageError: they have too many tokens.
    """
    tokens = [vocabulary.tokenize(text, add_special=False) for text in texts]
    size = sum(len(each) + 1 for each in tokens)
    if size > _MOST_TOKENS:
        raise UsageError(
            f"the files to look up have {size:,} tokens and {_MOST_TOKENS:,} fit: give fewer"
        )
    found = EarlierTexts(size)
    for each in tokens:
        found.add(each)
    found.settle()
    return found


def prompt_lookup_of(drafter: Drafter) -> PromptLookupDrafter | None:
    """Return the part of a drafter that copies, if it has one."""
    if isinstance(drafter, ComposedDrafter):
        return drafter.lookup
    return drafter if isinstance(drafter, PromptLookupDrafter) else None


_log = logging.getLogger("edgespec.runtime")

_WORTH_OPENING = 1.2
"""A draft that nobody asked for takes memory, its target hands out features for every token, and
prompt lookup brings a part of the gain without it: one expected to bring 1.08 brought 0.95."""

_OTHER_PROMPTS = 0.6
"""Acceptance on prompts of another hand, as a share of that on held-out answers: 0.31 of 0.55 for
the default model's first head; 0.40 of 0.48 for the present one (models/README.md). The lower is
kept, as prompt lookup has its share of the gain already."""

_OF_MTP = (0.8, 0.65, 0.5)
"""Acceptance that is expected of MTP layers, whose files do not state any. They were trained with
their model, on what it was trained on; 0.85 to 0.9 was published for the second token
(DeepSeek-AI 2024, "DeepSeek-V3 Technical Report")."""

AnyModelDrafter = (
    ModelDrafter
    | ReducedDrafter
    | CrossVocabularyDrafter
    | EagleDrafter
    | MedusaDrafter
    | MTPDrafter
)


def open_drafter(
    plan: Plan,
    target: Context,
    options: EngineOptions,
    profile: Profile,
    exactness: Exactness,
    progress: LoadProgress | None,
    stack: ExitStack,
) -> tuple[Drafter, Plan]:
    """Open the planned drafter, closed by the stack; return the plan as it was carried out.

    A model, or recycled logits, drafts alone when the number of its proposals is fixed, and beside
    prompt lookup where costs decide. One that nobody asked for is closed again where it will not
    pay.
    """
    drafter: Drafter = NoDrafter()
    if plan.drafter in ("model", "mtp", "ngram", "recycle"):
        drafter = ngram = PromptLookupDrafter(target.capacity)
        ngram.trust(profile.ngram)
    if plan.drafter == "recycle":
        recycle = RecycleDrafter(target.model.vocabulary.size)
        drafter = ComposedDrafter(ngram, recycle) if options.k is None else recycle
    if plan.optional and not _pays(plan, exactness, 0.0):  # not even if its steps cost nothing
        plan = Plan(plan.target, plan.header, "ngram")
    if plan.drafter in ("model", "mtp"):
        model: AnyModelDrafter
        if plan.drafter == "mtp":
            model = _open_mtp_drafter(plan, target, options, profile)
        else:
            model = _open_model_drafter(plan, target, options, profile, progress)
        if plan.optional and not _pays(plan, exactness, model.stopping.token_s):
            model.close()
            plan = Plan(plan.target, plan.header, "ngram")
        else:
            _let_branch(model, target, options)
            drafter = ComposedDrafter(ngram, model) if options.k is None else model
    if options.widths and plan.drafter not in ("model", "mtp"):
        raise UsageError(f"tree {options.tree} needs a draft model: name one with --draft")
    stack.callback(drafter.close)
    return drafter, plan


def _let_branch(drafter: AnyModelDrafter, target: Context, options: EngineOptions) -> None:
    """Have it propose trees where both contexts can evaluate them.

    Raises:
        UsageError: a shape was asked for, and they cannot.
    """
    if options.tree == "none" or (options.k is not None and not options.widths):
        return
    if isinstance(drafter, MedusaDrafter) and len(options.widths) > drafter.heads:
        heads = drafter.heads
        drafter.close()
        raise UsageError(
            f"tree {options.tree} has {len(options.widths)} levels, and the draft {heads} heads: "
            "give as many levels or fewer"
        )
    if isinstance(drafter, TreeDrafter) and drafter.context.branches and target.can_branch():
        drafter.shape = options.widths or GROWN
    elif options.widths:
        drafter.close()
        raise UsageError(
            "trees need edgespec's kernels for target and draft, a cache of f16 or f32, and a "
            "draft of the target's own vocabulary: use --tree none"
        )


def _pays(plan: Plan, exactness: Exactness, step_s: float) -> bool:
    """Return whether the draft's held-out acceptance is worth its cost at any temperature."""
    expected = _expected(plan)
    if not expected or exactness.setting is None:
        return False
    costs = exactness.setting.cost_table(exactness.largest_k + 1)
    speedups = [draft_speedup(acceptance, costs, step_s) for acceptance in expected]
    _log.info("%s is expected to bring %.2f times the speed", plan.drafter_name, max(speedups))
    return max(speedups) >= _WORTH_OPENING


def _expected(plan: Plan) -> list[Sequence[float]]:
    """Return the acceptance that is expected of a draft by position, greedy and sampled."""
    if plan.drafter == "mtp":
        return [_OF_MTP]
    held_out = plan.draft_header.held_out if plan.draft_header else None
    if held_out is None:
        return []
    both = (held_out.greedy, held_out.sampled)
    return [[_OTHER_PROMPTS * each for each in acceptance] for acceptance in both]


def _open_mtp_drafter(
    plan: Plan, target: Context, options: EngineOptions, profile: Profile
) -> MTPDrafter:
    longest = max(1, options.most)
    learned = profile.draft(plan.target.path)
    settings = ContextOptions(
        length=target.capacity,
        threads=options.threads or learned.get("threads") or options.thread_count,
        flash_attention=target.model.exact_attention,
        batch=BATCH,
        outputs=max(WIDEST, longest),
        room=spare_processors().look,
    )
    with ExitStack() as undo:
        context = undo.enter_context(MTPContext(target.model, settings))
        stopping = DraftStopping(*measure_mtp(context), longest)
        stopping.restore(learned)
        drafter = MTPDrafter(context, RecordedOutputs(target), longest, stopping)
        undo.pop_all()
    return drafter


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
    if plan.draft_header is not None and plan.draft_header.medusa is not None:
        ours = options.kernels != "llama.cpp"
        heads = medusa_with(plan.draft_header, target, options.thread_count, longest, ours=ours)
        heads.stopping.restore(learned)
        return heads
    with ExitStack() as undo:
        model = undo.enter_context(load_model(plan.draft, options, progress))
        settings = ContextOptions(
            length=target.capacity,
            threads=options.threads or learned.get("threads") or options.thread_count,
            flash_attention=model.exact_attention,
            batch=BATCH,
            outputs=max(WIDEST, longest),
            checkpoints=longest,
            room=spare_processors().look,
        )
        found = plan.pairing or plan.shared
        assert found is not None
        drafter = draft_with(model, target, found, settings, longest)
        drafter.stopping.restore(learned)
        undo.pop_all()
    return drafter


def draft_with(
    model: Model,
    target: Context,
    found: Pairing | SharedTokens,
    options: ContextOptions,
    longest: int,
) -> AnyModelDrafter:
    """Open a context of the draft, measure it, and make the drafter, which owns both.

    Args:
        model: the draft's; left open if this fails.
        target: an open context.
        found: how its tokens relate to the target's.
        options: of the draft's context.
        longest: the longest block.
    """
    size = target.model.vocabulary.size
    with ExitStack() as undo:
        if model.header.eagle is not None:
            assert isinstance(found, Pairing)
            options = replace(options, batch=HEAD_BATCH, outputs=HEAD_BATCH)
            head = undo.enter_context(HeadContext(model, options, target))
            stopping = DraftStopping(*_measured(head), longest)
            features = RecordedInputs(target, model.header.eagle.layers)
            undo.pop_all()
            return EagleDrafter(head, features, size, found.shared_vocabulary, longest, stopping)
        context = undo.enter_context(Context(model, options))
        stopping = DraftStopping(*measure_draft(context), longest)
        drafter: AnyModelDrafter
        if isinstance(found, SharedTokens):
            drafter = CrossVocabularyDrafter(
                context, target.model.vocabulary, found, longest, stopping
            )
        elif model.header.reduced is not None:
            drafter = ReducedDrafter(context, size, model.header.reduced, longest, stopping)
        else:
            drafter = ModelDrafter(context, size, found.shared_vocabulary, longest, stopping)
        undo.pop_all()
    return drafter


def medusa_with(
    header: GGUFHeader, target: Context, threads: int, longest: int, *, ours: bool = True
) -> MedusaDrafter:
    """Load Medusa heads, measure them, and make the drafter, which owns them.

    Args:
        header: of their file.
        target: an open context.
        threads: the most they may use.
        longest: the longest block.
        ours: by our kernels where they can be used.
    """
    assert header.medusa is not None
    with ExitStack() as undo:
        heads = open_heads(header, threads, ours=ours)
        undo.callback(heads.close)
        costs = {count: measure_heads(heads, count) for count in sorted({1, threads})}
        fastest = min(costs, key=lambda count: costs[count])
        heads.use_threads(fastest)
        stopping = DraftStopping(0.0, 0.0, longest, costs[fastest])
        states = FinalStates(target)
        undo.pop_all()
    ids = header.medusa.target_ids
    return MedusaDrafter(heads, header.path, states, target, ids, longest, stopping)


def _measured(head: HeadContext) -> DraftCost:
    """Measure a head whose single steps have one thread or all, and leave it as it is faster."""
    costs = []
    for threads in sorted({1, head.options.threads}):
        head.alone = threads
        costs.append((measure_head(head), threads))
    cost, head.alone = min(costs, key=lambda each: each[0].step_s)
    return cost
