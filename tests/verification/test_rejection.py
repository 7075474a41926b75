"""Frequencies of first tokens against p; each wrong rule is shown to be caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import ModelDrafter, PromptLookupDrafter
from edgespec.sampling.filters import distribution, make_workspace
from edgespec.sampling.kernel import kernel
from edgespec.sampling.selection import PURPOSE_ACCEPT, PURPOSE_TARGET, uniform
from edgespec.speculation.acceptance import choose, draw_proposal
from edgespec.verification.checks import expected_distribution
from edgespec.verification.rejection import FILTERS, Trial, check_rejection, make_trials

DRAWS = 5_000


@pytest.fixture(scope="module")
def trials(target: Context, draft: Context, make_drafter: Any, questions: list[Any]) -> list[Trial]:
    draft.clear()
    return make_trials(target, make_drafter(draft), questions)


@kernel
def resamples_from_p(
    logits, history, length, source, source_tokens, q, settings, first_seed, draws, p, workspace,
    counts,
):  # fmt: skip
    """`tally_first_tokens` around a rule that redraws from p after a rejection."""
    accepted = 0
    count = distribution(logits[0], history, length, settings.arguments, p, workspace)
    for seed in range(first_seed, first_seed + draws):
        proposal = draw_proposal(source, source_tokens, len(source_tokens), 0, seed, length)
        weight = q[0, proposal] if len(q) > 0 else 1.0
        if uniform(seed, length, PURPOSE_ACCEPT) * weight < p[proposal]:
            accepted += 1
            counts[proposal] += 1
        else:
            token = choose(p, workspace.tokens, count, 0, seed, length, PURPOSE_TARGET)
            counts[token] += 1
    return accepted


def test_the_rule_holds_with_a_draft(trials: list[Trial]) -> None:
    result = check_rejection(trials, DRAWS, threads=2)
    assert result.holds, result.details
    assert result.figures["false_alarm_rate"] == 1e-3
    tests = result.figures["tests"]
    assert {test["filters"] for test in tests} == set(FILTERS)
    assert {test["proposals"] for test in tests} == {"drawn"}
    assert any(not test["prefix"].endswith("+ 0") for test in tests)
    assert max(test["degrees_of_freedom"] for test in tests) > 10
    for test in tests:
        deviation = (test["acceptance_expected"] * (1 - test["acceptance_expected"]) / DRAWS) ** 0.5
        assert abs(test["acceptance_observed"] - test["acceptance_expected"]) < 5 * deviation + 1e-6


def test_the_outcome_does_not_depend_on_the_number_of_threads(trials: list[Trial]) -> None:
    first, second = (check_rejection(trials[:1], 6_000, threads=n) for n in (1, 2))
    assert first == second


def test_the_rule_holds_with_one_hot_proposals(target: Context, questions: list[Any]) -> None:
    trials = make_trials(target, PromptLookupDrafter(target.capacity), questions[:1])
    result = check_rejection(trials, DRAWS, threads=2)
    assert result.holds, result.details
    assert {test["proposals"] for test in result.figures["tests"]} == {"one-hot"}
    caught = check_rejection(trials, DRAWS, threads=2, tally=resamples_from_p)
    assert not caught.holds


def test_resampling_from_p_after_a_rejection_is_caught(trials: list[Trial]) -> None:
    result = check_rejection(trials, DRAWS, threads=2, tally=resamples_from_p)
    assert not result.holds
    assert any(test["rejected"] for test in result.figures["tests"])
    assert "do not fit p" in result.summary
    assert result.details


def test_unfiltered_q_is_caught(trials: list[Trial]) -> None:
    """Proposals come from the filtered q, the rule is told the unfiltered one."""
    raw = {t.prefix: t.q for t in trials if t.filters == "unfiltered"}
    mutants = [replace(t, q=raw[t.prefix]) for t in trials if t.filters == "default filters"]
    assert not check_rejection(mutants, DRAWS, threads=2).holds


def test_filters_other_than_the_asked_for_are_caught(trials: list[Trial]) -> None:
    """A p without its filters emits tokens that have no probability."""
    other = {t.prefix: t.settings for t in trials if t.filters == "unfiltered"}
    mutants = [replace(t, settings=other[t.prefix]) for t in trials if "default" in t.filters]
    result = check_rejection(mutants, DRAWS, threads=2)
    assert not result.holds
    assert any(test["impossible_tokens"] for test in result.figures["tests"])


def test_expected_distribution_equals_the_kernels(trials: list[Trial]) -> None:
    for trial in trials:
        p = np.zeros(len(trial.logits), np.float32)
        distribution(
            trial.logits.copy(), trial.tokens, len(trial.tokens), trial.settings.arguments, p,
            make_workspace(len(p)),
        )  # fmt: skip
        expected = expected_distribution(trial.logits, FILTERS[trial.filters])
        assert np.array_equal(p > 1e-30, expected > 1e-30)
        assert np.allclose(p, expected, atol=1e-6)


def test_a_draft_can_propose_nothing(target: Context, questions: list[Any]) -> None:
    class Mute(ModelDrafter):
        def extend(self, history: Any, length: int, budget: Any, given: int) -> Any:
            from edgespec.drafters import Proposal

            return Proposal(given)

    size = target.model.vocabulary.size
    with Context(target.model, target.options) as context:
        trials = make_trials(
            target, Mute(context, size, size, 1, DraftStopping(1.0, 1.0, 1)), questions[:1]
        )
    assert all(trial.source.max() == 1 and len(trial.q) == 0 for trial in trials)
