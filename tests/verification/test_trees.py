"""Trees at real prefixes, right ones and such with one mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model, ModelOptions, formats_of
from edgespec.drafters.trees import GROWN
from edgespec.gguf.header import read_header
from edgespec.sampling.filters import distribution
from edgespec.sampling.kernel import kernel
from edgespec.sampling.selection import PURPOSE_ACCEPT, PURPOSE_TARGET, uniform
from edgespec.speculation.acceptance import choose
from edgespec.speculation.trees import draw_sibling
from edgespec.verification.cache import check_cache
from edgespec.verification.rejection import make_trials
from edgespec.verification.trees import check_trees, proposing_trees, tree_drafter

DRAWS = 5_000
OPTIONS = ContextOptions(length=512, threads=2, outputs=16, flash_attention=True)


class DeadCells(Context):
    """Keeps the cell of a node beside the path."""

    def keep_path(self, base: int, path: Any) -> None:
        wrong = path.copy()
        wrong[-1] = path[-1] - 1 if path[-1] else 1
        super().keep_path(base, wrong)


@pytest.fixture(scope="module")
def ours(default_model: Any) -> Any:
    """The default model with edgespec's kernels, which evaluate trees."""
    with Model(default_model, ModelOptions(formats_of(read_header(default_model)), 2)) as model:
        yield model


@pytest.fixture(scope="module")
def trunk(ours: Any) -> Any:
    with Context(ours, OPTIONS) as context:
        yield context


@pytest.fixture(scope="module")
def trials(trunk: Context, draft: Context, make_drafter: Any, questions: list[Any]) -> Any:
    draft.clear()
    return make_trials(trunk, make_drafter(draft), questions)


@kernel
def judged_by_the_first_p(
    logits, history, length, source, source_tokens, q, settings, first_seed, draws, p, workspace,
    counts,
):  # fmt: skip
    """`tally_siblings` around a rule that does not update p by the siblings it refused."""
    accepted = 0
    tokens = np.zeros(3, np.int32)
    count = distribution(logits[0], history, length, settings.arguments, p, workspace)
    for seed in range(first_seed, first_seed + draws):
        found, used = -1, 0.0
        for i in range(min(3, len(source_tokens))):
            token = draw_sibling(source, source_tokens, len(source_tokens), tokens, i, seed, length)
            tokens[i] = token
            share = q[0, token] / max(1.0 - used, 1e-7)
            if uniform(seed, length, PURPOSE_ACCEPT + 8 * i) * share < p[token]:
                found = token
                break
            used += q[0, token]
        if found >= 0:
            accepted += 1
        else:
            found = choose(p, workspace.tokens, count, 0, seed, length, PURPOSE_TARGET)
        counts[found] += 1
    return accepted


def test_trees_hold(trunk: Context, questions: list[Any], trials: Any) -> None:
    result = check_trees(trunk, questions, trials, DRAWS, threads=2)
    assert result.holds and result.applies, result.details
    figures = result.figures
    assert figures["nodes"] == 16 * len(questions) and figures["kept_paths"] == 2 * len(questions)
    for test in figures["siblings"]["tests"]:  # more than one proposal's
        assert test["acceptance_observed"] > test["acceptance_expected"] - 0.03


def test_siblings_judged_by_the_first_p_are_caught(
    trunk: Context, questions: list[Any], trials: Any
) -> None:
    result = check_trees(
        trunk, questions[:1], trials, DRAWS, threads=2, tally=judged_by_the_first_p
    )
    assert not result.holds
    assert (result.figures["different_nodes"], result.figures["wrong_caches"]) == (0, 0)
    assert "do not fit p" in result.summary


def test_a_wrong_path_is_caught(
    trunk: Context, questions: list[Any], trials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that sees another than its parent."""
    right = trunk._branches.lay

    def wrong(base: int, parents: Any, start: int = 0) -> None:
        if len(parents) == 16:  # not the tree that is tried first
            parents = parents.copy()
            parents[9] = 7 if parents[9] != 7 else 6
        right(base, parents, start)

    monkeypatch.setattr(trunk._branches, "lay", wrong)
    result = check_trees(trunk, questions[:1], trials[:1], 500)
    assert not result.holds and result.figures["different_nodes"] > 0
    assert "9" in result.details[0]


def test_a_kept_cell_of_a_dead_branch_is_caught(
    ours: Model, questions: list[Any], trials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeadCells, "can_branch", lambda self: True)
    with DeadCells(ours, OPTIONS) as context:
        result = check_trees(context, questions[:1], trials[:1], 500)
    assert not result.holds
    assert result.figures["different_nodes"] == 0 and result.figures["wrong_caches"] > 0


def test_a_context_without_trees_has_nothing_to_check(
    target: Context, questions: list[Any]
) -> None:
    if not target.branches:
        assert not check_trees(target, questions, [], 0).applies


def test_caches_after_trees_of_a_draft_model(
    trunk: Context, damaged_model: Any, make_drafter: Any, questions: list[Any]
) -> None:
    options = ModelOptions(formats_of(read_header(damaged_model)), 2)
    with Model(damaged_model, options) as model, Context(model, OPTIONS) as context:
        drafter = make_drafter(context)
        drafter.shape = (2, 1)
        result = check_cache(trunk, drafter, 4, questions[0], 24)
    assert result.holds and result.figures["draft_compared"], result.details


def test_growing_trees_have_a_shape_meanwhile(damaged_drafter: Any) -> None:
    assert tree_drafter(damaged_drafter) is None  # chains only
    damaged_drafter.shape = GROWN
    with proposing_trees(damaged_drafter):
        assert damaged_drafter.shape == (3, 2, 1)
    assert damaged_drafter.shape == GROWN
