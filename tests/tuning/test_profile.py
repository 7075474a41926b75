"""The model behind `edgespec tune --explain`, against the theory in exact fractions."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from edgespec.control.speedup import Achieved, expected_speedups
from edgespec.control.stopping import make_calibration, write_calibration
from edgespec.tuning.profile import Profile, explain
from edgespec.tuning.report import explanation_lines
from edgespec.tuning.setting import Setting, SettingFigures

V = [1.0, 1.4, 1.8, 2.2, 3.0, 3.3, 3.6, 4.0, 5.5]
FIGURES = SettingFigures(
    threads=2,
    flash_attention=False,
    repack=True,
    kv_type="f16",
    identical=9,
    logit_difference=0.0,
    total_variation=0.0,
    depths=[100, 500],
    sizes=list(range(1, 10)),
    seconds=[[0.010 * v for v in V], [0.020 * v for v in V]],
    switch_s=[0.0] * 9,
    prefill_s=0.002,
)


def profile(**values: Any) -> Profile:
    return Profile("profile-x", **values)


def draft(alpha: float, trials: float, step_s: float) -> dict[str, Any]:
    calibration = make_calibration()
    calibration.trials[:] = trials
    calibration.hits[:] = alpha * trials
    return {"step_s": step_s, "reading_s": 1e-4, "calibration": write_calibration(calibration)}


def text(found: Any, drafter: str = "d") -> str:
    lines = list(explanation_lines(found, drafter))
    assert max(map(len, lines)) <= 80
    return " ".join(" ".join(lines).split())


def test_costs_are_those_of_a_typical_answers_middle() -> None:
    found = explain(profile(), FIGURES, None, 15)  # prompts and answers of 200 tokens
    assert found.depth == 300
    assert found.token_s == pytest.approx(0.015)
    assert found.v == pytest.approx(V)
    assert found.ceiling.k == 7  # 8 / 4.0
    assert found.ceiling.speedup == pytest.approx(2.0)


def test_the_needed_acceptance_is_where_a_tenth_is_won() -> None:
    found = explain(profile(), FIGURES, None, 15)
    assert found.needed is not None

    def best(rate: float) -> float:
        return max(each.speedup for each in expected_speedups([rate] * 8, V, 0.1))

    assert best(found.needed) >= 1.1 > best(found.needed - 0.01)
    from dataclasses import replace

    dear = replace(FIGURES, seconds=[[0.01 * n for n in range(1, 10)]] * 2)
    hopeless = explain(profile(), dear, None, 15)
    assert hopeless.needed is None
    assert "no draft can help much" in text(hopeless)


def test_a_draft_is_explained_by_what_was_accepted() -> None:
    found = explain(profile(), FIGURES, draft(0.8, 1e6, 0.003), 15)
    assert found.draft is not None
    assert found.draft.alpha == pytest.approx([0.8] * 4, abs=1e-3)
    assert found.draft.c == pytest.approx(0.2)
    best = max(expected_speedups([0.8] * 8, V, 0.2), key=lambda each: each.speedup)
    assert found.draft.best.k == best.k
    assert found.draft.best.speedup == pytest.approx(best.speedup, abs=1e-3)
    assert found.draft.cheaper > found.draft.best.speedup
    assert found.draft.better > found.draft.best.speedup
    assert found.draft.flatter > found.draft.best.speedup
    shown = text(found)
    for word in ("0.80, 0.80", "c = 0.20", f"{found.draft.best.speedup:.2f}x", "a cheaper"):
        assert word in shown


def test_what_helps_most_comes_first() -> None:
    tuned = profile(best=Setting(2, False, True))
    dear = text(explain(tuned, FIGURES, draft(0.95, 1e6, 0.012), 15))
    assert dear.index("a cheaper draft") < dear.index("a better draft")
    poor = text(explain(tuned, FIGURES, draft(0.2, 1e6, 0.0001), 15))
    assert poor.index("a better draft") < poor.index("a cheaper draft")
    untuned = text(explain(profile(), FIGURES, draft(0.2, 1e6, 0.0001), 15))
    assert untuned.index("run `edgespec tune`") < untuned.index("a better draft")


def test_a_draft_that_was_never_used_is_no_error() -> None:
    found = explain(profile(), FIGURES, {}, 15)
    assert found.draft is None
    measured = {"step_s": 0.001, "reading_s": 1e-4}
    assert "never used" in text(explain(profile(), FIGURES, measured, 15))
    assert explain(profile(), FIGURES, {"step_s": "x", "reading_s": []}, 15).draft is None


def test_prompt_lookup_by_match_length() -> None:
    trials = [0.0] * 17
    hits = [0.0] * 17
    trials[2], hits[2] = 1e6, 0.3e6
    trials[16], hits[16] = 1e6, 1e6
    found = explain(profile(ngram={"hits": hits, "trials": trials}), FIGURES, None, 15)
    assert [match.length for match in found.matches] == [2, 16]
    assert found.matches[0].right == pytest.approx(0.3, abs=1e-3)
    assert found.matches[0].best.k == 0
    assert found.matches[1].best.speedup == pytest.approx(found.ceiling.speedup, abs=1e-3)
    assert "16+" in text(found)
    broken = explain(profile(ngram={"hits": "x", "trials": 7}), FIGURES, None, 15)
    assert broken.matches == []


def test_predicted_and_achieved() -> None:
    achieved = Achieved(60, 0.50, 0.75, Counter({1: 10, 4: 20}))
    found = explain(profile(ngram={"achieved": achieved.as_json()}), FIGURES, None, 15)
    assert found.achieved.speedup == 1.5
    assert found.planned == pytest.approx(60 / (10 * 1.0 + 20 * 2.2))
    assert "1.50x plain" in text(found)
    assert json.loads(json.dumps(found.as_json()))["achieved"]["speedup"] == 1.5


def test_a_model_without_batches() -> None:
    from dataclasses import replace

    alone = replace(FIGURES, sizes=[1], seconds=[[0.01], [0.02]], switch_s=[0.0])
    found = explain(profile(), alone, draft(0.8, 10, 0.001), 15)
    assert found.ceiling == (0, 1.0, 1.0)
    text(found)
