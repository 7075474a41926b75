"""Check trees of proposals, and measure by how much typical acceptance changes what is emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array, Int64Array
from edgespec.backend import Context
from edgespec.drafters import ComposedDrafter, Drafter
from edgespec.drafters.trees import GROWN, TreeDrafter
from edgespec.sampling.filters import Workspace
from edgespec.sampling.kernel import kernel
from edgespec.speculation.acceptance import (
    ACCEPT_TYPICAL,
    TYPICAL_DELTA,
    TYPICAL_EPSILON,
    DrawSettings,
)
from edgespec.speculation.trees import ONE_HOT, DraftTree, draw_sibling, verify_tree
from edgespec.verification.checks import (
    CheckResult,
    GTest,
    Progress,
    Prompt,
    holm_rejects,
    not_applicable,
    silent,
    total_variation,
)
from edgespec.verification.rejection import (
    FALSE_ALARM_RATE,
    Tally,
    Trial,
    check_rejection,
    tally_first_tokens,
    tally_trials,
)

__all__ = [
    "Loss",
    "check_trees",
    "check_typical",
    "loss_of",
    "proposing_trees",
    "tally_siblings",
    "tree_drafter",
    "typical_distribution",
]

_SHAPE = (3, 2, 1)  # proposed where trees would grow: checks ask for a fixed number of proposals
_NODES = 16
_REACH = 6  # a node's parent is one of so many before it
_SIBLINGS = 3


def tree_drafter(drafter: Drafter) -> TreeDrafter | None:
    """Return the part of a drafter that proposes trees, if it does."""
    model = drafter.model if isinstance(drafter, ComposedDrafter) else drafter
    return model if isinstance(model, TreeDrafter) and model.shape is not None else None


@contextmanager
def proposing_trees(drafter: Drafter) -> Iterator[None]:
    """Have a drafter whose trees grow propose such of a fixed shape instead."""
    model = tree_drafter(drafter)
    if model is None or model.shape != GROWN:
        yield
        return
    model.shape = _SHAPE
    try:
        yield
    finally:
        model.shape = GROWN


class _Compared(NamedTuple):
    """What was wrong in a tree: nodes with other bits than chains, and kept paths that were not."""

    prompt: str
    nodes: int
    different: list[int]
    kept: int
    lost: list[int]


def check_trees(
    target: Context,
    prompts: Sequence[Prompt],
    trials: Sequence[Trial],
    draws: int,
    *,
    threads: int = 1,
    tally: Tally | None = None,
    progress: Progress = silent,
) -> CheckResult:
    """Compare a random tree behind each prompt with its paths, and draw first tokens of siblings.

    Each node has to have the bits of its path evaluated one token at a time, and so have the
    logits behind a path that was kept. Frequencies are tested as by `check_rejection`.

    Args:
        target: its cache's content is lost.
        prompts: one tree behind each.
        trials: from `make_trials`.
        draws: of each trial.
        threads: how many to draw with.
        tally: the loop around the acceptance kernel, `tally_siblings`.
        progress: told each part.
    """
    if not target.can_branch():
        return not_applicable("trees", "this context evaluates chains only")
    compared = []
    for seed, prompt in enumerate(prompts):
        progress(f"a tree behind {prompt.name}")
        compared.append(_compare(target, prompt, np.random.default_rng(seed)))
    drawn = check_rejection(
        trials, draws, threads=threads, tally=tally or tally_siblings, progress=progress
    )
    nodes, kept = sum(one.nodes for one in compared), sum(one.kept for one in compared)
    different = sum(len(one.different) for one in compared)
    lost = sum(len(one.lost) for one in compared)
    bits = f"{nodes} nodes of {len(compared)} trees "
    bits += "have the bits of chains" if different == 0 else f"differ from chains in {different}"
    cells = "all caches right" if lost == 0 else f"{lost} caches wrong"
    return CheckResult(
        "trees",
        different == 0 and lost == 0 and drawn.holds,
        f"{bits}; {kept} paths kept, {cells}; siblings: {drawn.summary}",
        {
            "nodes": nodes,
            "different_nodes": different,
            "kept_paths": kept,
            "wrong_caches": lost,
            "siblings": drawn.figures,
        },
        (*(line for one in compared for line in _details(one)), *drawn.details),
    )


def _details(one: _Compared) -> Iterator[str]:
    if one.different:
        yield f"{one.prompt}: other bits than their chains have nodes {one.different}"
    if one.lost:
        yield f"{one.prompt}: logits are wrong behind the kept paths to nodes {one.lost}"


# -- nodes and kept paths -----------------------------------------------------------------------


def _compare(target: Context, prompt: Prompt, random: np.random.Generator) -> _Compared:
    before = prompt.tokens
    room = (target.capacity - len(before) - 1, target.options.outputs, target.options.batch)
    count = max(1, min(_NODES, *room))
    tokens = random.integers(0, target.model.vocabulary.size, count).astype(np.int32)
    parents = np.array(
        [int(random.integers(max(-1, node - _REACH), node)) for node in range(count)], np.int32
    )
    paths = [_path_to(parents, node) for node in range(count)]
    target.clear()
    target.prefill(before)
    rows = target.evaluate_tree(tokens, parents, count).copy()
    target.truncate(len(before))
    # In this order every node's path is in the cache when its turn comes.
    different = [
        node
        for node in sorted(range(count), key=paths.__getitem__)
        if not np.array_equal(_alone(target, len(before), tokens, paths[node]), rows[node])
    ]
    chosen = [max(range(count), key=lambda node: len(paths[node])), count - 1]
    lost = [node for node in chosen if not _keeps(target, len(before), tokens, parents, node)]
    return _Compared(prompt.name, count, sorted(different), len(chosen), lost)


def _path_to(parents: Int32Array, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = int(parents[node])
    return path


def _alone(target: Context, base: int, tokens: Int32Array, path: list[int]) -> Float32Array:
    """Return the logits of a node, evaluated alone behind its path; a view."""
    target.truncate(base + len(path) - 1)
    row: Float32Array = target.evaluate(tokens[path[-1:]], 1)[0]
    return row


def _keeps(target: Context, base: int, tokens: Int32Array, parents: Int32Array, node: int) -> bool:
    """Whether the cache behind a kept path is as the path's own, evaluated token by token."""
    path, probe = _path_to(parents, node), tokens[:1]
    target.truncate(base)
    for depth in range(len(path)):
        target.evaluate(tokens[path[depth] :][:1], 1)
    expected = target.evaluate(probe, 1).copy()
    target.truncate(base)
    target.evaluate_tree(tokens, parents, len(tokens))
    target.keep_path(base, np.array(path, np.int32))
    in_step = target.length == target.native_length() == base + len(path)
    return in_step and np.array_equal(target.evaluate(probe, 1), expected)


# -- frequencies --------------------------------------------------------------------------------


@kernel
def tally_siblings(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    source: Float32Array,
    source_tokens: Int32Array,
    q: Float32Array,
    settings: DrawSettings,
    first_seed: int,
    draws: int,
    p: Float32Array,
    workspace: Workspace,
    counts: Int64Array,
) -> int:
    """Propose siblings and verify them, as `tally_first_tokens` does one token.

    Three are drawn; where nothing is drawn, there is one that was copied.
    """
    accepted = 0
    out, path = np.empty(2, np.int32), np.empty(1, np.int32)
    tokens, parents = np.empty(_SIBLINGS, np.int32), np.full(_SIBLINGS, -1, np.int32)
    rows = np.full(_SIBLINGS, 0 if len(q) > 0 else ONE_HOT, np.int32)
    for seed in range(first_seed, first_seed + draws):
        own = DrawSettings(
            settings.rule, settings.arguments, seed, settings.stream_offset, settings.mu
        )
        size = 0
        if len(q) == 0:
            tokens[0], size = source_tokens[0], 1
        else:
            position = length + own.stream_offset
            while size < min(_SIBLINGS, len(source_tokens)):
                token = draw_sibling(
                    source, source_tokens, len(source_tokens), tokens, size, seed, position
                )
                if token < 0:
                    break
                tokens[size] = token
                size += 1
        tree = DraftTree(tokens[:size], parents[:size], rows[:size], q)
        above = np.empty((size + 1, logits.shape[1]), np.float32)
        above[:] = logits[0]
        status = verify_tree(above, history, length, tree, own, p, workspace, out, path)
        if status < 0:
            return status
        accepted += status
        counts[out[0]] += 1
    return accepted


class Loss(NamedTuple):
    """How far the first token of a cycle is from plain sampling's.

    Attributes:
        variation: total variation between their distributions.
        divergence: Kullback-Leibler, of what is emitted from p, in nats.
        agreement: probability that plain sampling emits the same token with the same seed.
    """

    variation: float
    divergence: float
    agreement: float


def typical_distribution(p: Float64Array, source: Float64Array) -> Float64Array:
    """Return what typical acceptance emits for one proposal that is drawn from `source`."""
    passing = _passing(p)
    emitted: Float64Array = np.where(passing, source, 0.0) + source[~passing].sum() * p
    return emitted


def loss_of(p: Float64Array, source: Float64Array) -> Loss:
    """Return by how much that differs from p."""
    emitted, passing = typical_distribution(p, source), _passing(p)
    there = emitted > 0.0
    divergence = float((emitted[there] * np.log(emitted[there] / p[there])).sum())
    # A refused proposal leaves plain sampling's own draw; others know nothing of it.
    agreement = float(source[~passing].sum() + (source * p)[passing].sum())
    return Loss(total_variation(emitted, p), max(0.0, divergence), agreement)


def _passing(p: Float64Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mass = p[p > 0.0]
    entropy = -float((mass * np.log(mass)).sum())
    passing: np.ndarray[Any, np.dtype[np.bool_]] = p >= min(
        TYPICAL_EPSILON, TYPICAL_DELTA * np.exp(-entropy)
    )
    return passing


def check_typical(
    trials: Sequence[Trial],
    draws: int,
    *,
    threads: int = 1,
    tally: Tally = tally_first_tokens,
    progress: Progress = silent,
) -> CheckResult:
    """Tell what the rule changes; it holds if frequencies fit what the rule is said to emit.

    Args: as `check_rejection`, with the trials that it has.
    """
    lossy, losses = [], []
    for trial in trials:
        source = trial.source.astype(np.float64)
        source /= source.sum()
        losses.append(loss_of(trial.expected, source))
        settings = trial.settings._replace(rule=ACCEPT_TYPICAL)
        emitted = typical_distribution(trial.expected, source)
        lossy.append(replace(trial, settings=settings, expected=emitted))
    outcomes = tally_trials(lossy, draws, threads, tally, progress)
    rejected = holm_rejects([test.p_value for _, test, _ in outcomes], FALSE_ALARM_RATE)
    mean = Loss(*np.mean(losses, axis=0).tolist())
    wrong = sum(rejected)
    fit = "frequencies fit the rule" if wrong == 0 else f"{wrong} frequencies do not fit the rule"
    return CheckResult(
        "typical",
        wrong == 0,
        f"lossy: first tokens are off p by a total variation of {mean.variation:.3f} on average, "
        f"KL {mean.divergence:.3f}, and {mean.agreement:.0%} are plain sampling's with the seed; "
        f"{fit}",
        {
            "lossy": True,
            "epsilon": TYPICAL_EPSILON,
            "delta": TYPICAL_DELTA,
            **mean._asdict(),
            "tests": [
                _figures(*outcome, loss, bad)
                for outcome, loss, bad in zip(outcomes, losses, rejected, strict=True)
            ],
        },
    )


def _figures(
    trial: Trial, test: GTest, acceptance: float, loss: Loss, rejected: bool
) -> dict[str, Any]:
    return {
        "prefix": trial.prefix,
        "filters": trial.filters,
        "proposals": "drawn" if len(trial.q) else "one-hot",
        **loss._asdict(),
        "acceptance_observed": acceptance,
        "p_value": test.p_value,
        "rejected": rejected,
    }
