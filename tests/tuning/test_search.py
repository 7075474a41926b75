"""The race between settings, on simulated machines: no clock, no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from edgespec.control.speedup import Achieved
from edgespec.tuning.measure import Effort
from edgespec.tuning.profile import Usage
from edgespec.tuning.search import (
    BATCH,
    Mix,
    Trial,
    Visit,
    best_threads,
    choose,
    make_mix,
    race,
    thread_counts,
)
from edgespec.tuning.setting import Setting
from edgespec.tuning.tune import plan_effort

MIX = Mix(prompt=200, answer=200, sizes={}, tokens=1.0)
OFF, ON, RAW = Setting(2, False, True), Setting(2, True, True), Setting(2, False, False)


def never_late() -> bool:
    return False


class Machine:
    """Settings have a true cost; every visit sees it with noise, on a machine that slows down."""

    def __init__(self, costs: dict[Setting, Visit], noise: float, drift: float, seed: int) -> None:
        self.costs, self.noise, self.drift = costs, noise, drift
        self.random = np.random.default_rng(seed)
        self.visits = 0

    def visit(self, trial: Trial) -> None:
        factor = (1 + self.drift) ** self.visits * np.exp(self.random.normal(0, self.noise))
        self.visits += 1
        if self.random.random() < 0.1:
            factor *= 3  # somebody else's program
        true = self.costs[trial.setting]
        trial.visits.append(Visit(*(float(value * factor) for value in true)))


def cost(seconds: float) -> Visit:
    return Visit(seconds / 10, seconds, 2.5 * seconds)


def test_the_fastest_wins_on_a_noisy_machine_that_slows_down() -> None:
    settings = {Setting(n, flash, True): 0.01 for n in (1, 2, 4) for flash in (False, True)}
    costs = {each: cost(0.010 * (1 + 0.25 * i)) for i, each in enumerate(settings)}
    best = next(iter(settings))
    wins = 0
    for seed in range(100):
        machine = Machine(costs, noise=0.05, drift=0.01, seed=seed)
        trials = [Trial(each) for each in costs]
        left = race(trials, machine.visit, MIX, never_late)
        wins += min(left, key=lambda trial: trial.score(MIX)).setting == best
    assert wins >= 95


def test_stragglers_drop_out_early_and_close_ones_do_not() -> None:
    costs = {OFF: cost(0.010), ON: cost(0.0101), RAW: cost(0.020)}
    machine = Machine(costs, noise=0.0, drift=0.0, seed=1)
    machine.random = np.random.default_rng(3)
    trials = {each: Trial(each) for each in costs}
    race(list(trials.values()), machine.visit, MIX, never_late)
    assert len(trials[RAW].visits) < len(trials[ON].visits)
    assert len(trials[OFF].visits) >= 2


def test_turns_are_taken_and_a_race_begun_before_is_joined_where_it_stands() -> None:
    order: list[Setting] = []

    def visit(trial: Trial) -> None:
        order.append(trial.setting)
        trial.visits.append(cost(0.010))

    seen = Trial(OFF, [cost(0.010), cost(0.010)])
    race([seen, Trial(ON), Trial(RAW)], visit, MIX, never_late)
    assert order[:4] == [ON, RAW, RAW, ON]
    assert set(Counter(order).values()) == {3, 5}


def test_late_is_late() -> None:
    def visit(trial: Trial) -> None:
        trial.visits.append(cost(0.010))

    left = 3

    def late() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    trials = [Trial(OFF), Trial(ON), Trial(RAW)]
    race(trials, visit, MIX, late)
    assert [len(trial.visits) for trial in trials] == [1, 1, 1]
    nobody = [Trial(OFF)]
    assert race(nobody, visit, MIX, lambda: True) == []


def test_what_cannot_be_opened_leaves_the_race() -> None:
    def visit(trial: Trial) -> None:
        if trial.setting == ON:
            trial.failed = "no"
        else:
            trial.visits.append(cost(0.010))

    assert {t.setting for t in race([Trial(OFF), Trial(ON)], visit, MIX, never_late)} == {OFF}


def trial(setting: Setting, visit: Visit, identical: int = 8, depth: int = 256) -> Trial:
    return Trial(setting, [visit, visit], identical, 8, depth)


@pytest.mark.parametrize(("slower", "chosen"), [(1.04, OFF), (1.06, ON)])
def test_bitwise_settings_are_worth_five_percent(slower: float, chosen: Setting) -> None:
    found, reason = choose(
        [trial(OFF, cost(0.010 * slower)), trial(ON, cost(0.010), identical=1)], MIX
    )
    assert found.setting == chosen
    assert f"{round(slower * 100 - 100)}" in reason


def test_identical_in_a_short_context_proves_nothing_of_flash_attention() -> None:
    assert trial(ON, cost(1), depth=256).bitwise
    assert not trial(ON, cost(1), depth=128).bitwise
    assert trial(OFF, cost(1), depth=128).bitwise
    assert trial(ON._replace(threads=1), cost(1), depth=128).bitwise
    assert not trial(OFF, cost(1), identical=BATCH).bitwise


def test_what_changes_the_text_is_never_chosen_and_one_look_is_not_trusted() -> None:
    lossy = trial(ON._replace(kv_type="q8_0"), cost(0.001))
    found, _ = choose([lossy, trial(OFF, cost(0.010))], MIX)
    assert found.setting == OFF
    once = Trial(ON, [cost(0.005)])
    found, reason = choose([once, trial(OFF, cost(0.010))], MIX)
    assert found.setting == OFF
    assert "more than once" in reason
    assert choose([once], MIX)[0] is once


def test_prompts_and_answers_decide_between_reading_and_writing() -> None:
    reads = trial(ON, Visit(0.001, 0.012, 0.03))
    writes = trial(OFF, Visit(0.002, 0.010, 0.03))
    assert choose([reads, writes], MIX._replace(prompt=1000, answer=50))[0] is reads
    assert choose([reads, writes], MIX._replace(prompt=50, answer=1000))[0] is writes


def test_batches_count_where_they_were_seen_to_pay() -> None:
    single = trial(OFF, Visit(0.002, 0.010, 0.040))
    batch = trial(RAW, Visit(0.002, 0.011, 0.015))
    assert choose([single, batch], MIX)[0] is single
    paying = make_mix(Usage(), Achieved(300, 1.0, 2.0, Counter({1: 20, 4: 80})))
    assert paying.tokens == 3.0
    assert choose([single, batch], paying)[0] is batch
    # 20% single tokens and 80% batches of four, three tokens each time.
    expected = 200 * 0.002 + 200 * (0.2 * 0.011 + 0.8 * 0.015) / 3
    assert batch.score(paying) == pytest.approx(expected)
    hopeless = make_mix(Usage(), Achieved(100, 1.0, 0.5, Counter({4: 100})))
    assert single.score(hopeless) == pytest.approx(200 * 0.002 + 200 * 0.010)


@pytest.mark.parametrize(
    ("physical", "logical", "expected"),
    [
        (1, 1, [1]),
        (2, 2, [2, 1]),
        (4, 8, [8, 4, 3, 2, 1]),
        (6, 12, [12, 6, 5, 4, 3, 2, 1]),
        (16, 16, [16, 15, 12, 8, 6, 4, 3, 2, 1]),
    ],
)
def test_thread_counts(physical: int, logical: int, expected: list[int]) -> None:
    assert thread_counts(physical, logical) == expected


def test_up_to_two_thread_counts_go_on() -> None:
    trials = [
        Trial(Setting(n, False, True), [cost(s)])
        for n, s in ((8, 0.012), (4, 0.010), (3, 0.0105), (2, 0.0108), (1, 0.04))
    ]
    assert best_threads(trials, MIX) == [4, 3]
    assert best_threads([*trials, Trial(OFF)], MIX) == [4, 3]


def simulated_seconds(effort: Effort, t: Callable[[int], float], prefill_s: float) -> float:
    """What `measure_context` would spend, written down independently."""
    seconds = max(effort.depths) * prefill_s  # the deepest first, then the cache is cut
    for _ in effort.depths:
        seconds += effort.largest * t(1)
        for n in range(1, effort.largest + 1):
            times = 2 if n <= effort.twice else 1
            seconds += effort.repetitions * times * t(n)
    return seconds


DEPTHS = (272, 1024, 2048, 40)


@pytest.mark.parametrize("token_s", [0.002, 0.006, 0.030, 0.060])
def test_the_full_measurement_fits_into_its_time(token_s: float) -> None:
    visit = Visit(token_s / 4, token_s, 2.5 * token_s)
    effort, dropped = plan_effort(visit, 30.0, DEPTHS)
    assert simulated_seconds(effort, lambda n: token_s * (0.5 + 0.5 * n), token_s / 4) <= 30
    assert sorted([*effort.depths, *dropped]) == sorted(DEPTHS)
    assert 272 in effort.depths
    if token_s <= 0.006:
        assert not dropped
        assert effort.largest == 33
    if token_s >= 0.060:
        assert 2048 in dropped


def test_a_very_slow_model_is_measured_at_one_depth_and_stops_in_time() -> None:
    effort, dropped = plan_effort(Visit(0.2, 0.5, 1.5), 20.0, DEPTHS)
    assert effort.depths == (272,)
    assert dropped == [1024, 2048, 40]
    assert effort.largest < 33
    assert effort.seconds <= 10  # half of it at most, so that the rest holds what was begun
