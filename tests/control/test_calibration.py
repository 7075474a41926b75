"""Learned acceptance: against a slow reference, over time, and through files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control import stopping as module
from edgespec.control.stopping import (
    POSITIONS,
    estimate,
    expected,
    forget,
    make_calibration,
    notice,
    read_calibration,
    record,
    write_calibration,
)

PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)
EDGES = module._EDGES

observations = st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1), st.booleans()), max_size=60)


class Reference:
    """All observations are kept, and weighed when somebody asks."""

    def __init__(self):
        self.seen = []
        self.noticed = []
        self.tilt = 0.0

    def cell(self, position, confidence):
        return min(position, POSITIONS - 1), sum(confidence >= edge for edge in EDGES)

    def sums(self, wanted):
        hits = trials = 0.0
        later = {}
        for cell, accepted in reversed(self.seen):
            weight = module._DECAY ** later.get(cell, 0)
            later[cell] = later.get(cell, 0) + 1
            if wanted(*cell):
                hits, trials = hits + weight * accepted, trials + weight
        return hits, trials

    def shrunk(self, wanted, prior):
        hits, trials = self.sums(wanted)
        return (hits + module._PRIOR * prior) / (trials + module._PRIOR)

    def tilted(self, p):
        p = min(max(p, 1e-3), 1 - 1e-3)
        return 1 / (1 + math.exp(-(math.log(p / (1 - p)) + self.tilt)))

    def estimate(self, position, confidence):
        row, column = self.cell(position, confidence)
        common = self.shrunk(lambda r, c: c == column, confidence)
        return self.tilted(self.shrunk(lambda r, c: (r, c) == (row, column), common))

    def expected(self, position):
        own, _ = self.cell(position, 0.0)
        sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
        later = [0] * POSITIONS
        for row, column in reversed(self.noticed):
            weight = module._FADING ** later[row]
            later[row] += 1
            middle = module._MIDDLES[column]
            common = self.shrunk(lambda r, c, column=column: c == column, middle)
            cell = (row, column)
            rate = self.shrunk(lambda r, c, cell=cell: (r, c) == cell, common)
            for kind in {False, row == own}:
                sums[kind][0] += weight * rate
                sums[kind][1] += weight
        prior = module._EXPECTED
        for rate, weight in (sums[False], sums[True]):
            prior = (rate + module._PRIOR * prior) / (weight + module._PRIOR)
        return self.tilted(prior)

    def notice(self, position, confidence):
        self.noticed.append(self.cell(position, confidence))

    def record(self, position, confidence, accepted):
        surprise = accepted - self.estimate(position, confidence)
        tilt = module._TILT_DECAY * self.tilt + module._TILT_STEP * surprise
        self.tilt = min(max(tilt, -module._MOST_TILT), module._MOST_TILT)
        self.seen.append((self.cell(position, confidence), accepted))


@PROPERTY
@given(observations)
def test_as_the_reference(seen):
    ours, reference = make_calibration(), Reference()
    for observation in seen:
        notice(ours, *observation[:2])
        record(ours, *observation)
        reference.notice(*observation[:2])
        reference.record(*observation)
    for position in range(POSITIONS + 2):
        assert expected(ours, position) == pytest.approx(reference.expected(position))
        for confidence in (0.0, 0.1, 0.4999, 0.5, 0.88, 1.0):
            p = estimate(ours, position, confidence)
            assert p == pytest.approx(reference.estimate(position, confidence))


@PROPERTY
@given(observations)
def test_always_a_probability(seen):
    ours = make_calibration()
    for observation in seen:
        notice(ours, *observation[:2])
        record(ours, *observation)
        values = [estimate(ours, p, c) for p in (0, 5) for c in (0.0, 0.5, 1.0)]
        assert all(0 < value < 1 for value in [*values, expected(ours, 0), expected(ours, 9)])


def test_nothing_known_confidence_is_believed():
    fresh = make_calibration()
    assert estimate(fresh, 0, 0.3) == pytest.approx(0.3)
    assert estimate(fresh, 3, 0.9) == pytest.approx(0.9)


def observe(calibration, rng, count, chance, confidence=0.7, position=0):
    for _ in range(count):
        notice(calibration, position, confidence)
        record(calibration, position, confidence, bool(rng.random() < chance))


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.6, 0.95])
def test_finds_what_a_confidence_is_worth(chance):
    rng = np.random.default_rng(1)
    ours = make_calibration()
    found = []
    for _ in range(30):
        observe(ours, rng, 40, chance)
        found.append(estimate(ours, 0, 0.7))
    assert np.mean(found[5:]) == pytest.approx(chance, abs=0.04)
    assert np.std(found[5:]) < 0.1


def test_positions_and_confidences_are_told_apart():
    rng = np.random.default_rng(2)
    ours = make_calibration()
    truth = {(0, 0.95): 0.9, (0, 0.4): 0.5, (3, 0.95): 0.7, (3, 0.4): 0.2}
    for _ in range(400):
        for (position, confidence), chance in truth.items():
            notice(ours, position, confidence)
            record(ours, position, confidence, bool(rng.random() < chance))
    for (position, confidence), chance in truth.items():
        assert estimate(ours, position, confidence) == pytest.approx(chance, abs=0.12)
    assert expected(ours, 0) > expected(ours, 3) + 0.1


def test_how_sure_it_is_tells_what_to_expect():
    """Even before anything was judged."""
    sure, unsure = make_calibration(), make_calibration()
    for _ in range(100):
        notice(sure, 0, 0.99)
        notice(unsure, 0, 0.12)
    assert expected(sure, 0) > 0.9
    assert expected(unsure, 0) < 0.3
    assert expected(unsure, 3) < expected(sure, 3)


def test_what_was_special_lately_is_forgotten_when_nothing_is_judged():
    rng = np.random.default_rng(6)
    ours = make_calibration()
    observe(ours, rng, 500, 0.7)
    observe(ours, rng, 10, 0.0)
    low = estimate(ours, 0, 0.7)
    for _ in range(200):
        forget(ours)
    assert low < 0.5
    assert estimate(ours, 0, 0.7) == pytest.approx(0.65, abs=0.1)


def test_what_one_position_has_shown_is_expected_of_the_next():
    rng = np.random.default_rng(3)
    good, bad = make_calibration(), make_calibration()
    observe(good, rng, 60, 0.95)
    observe(bad, rng, 60, 0.1)
    assert expected(good, 3) > 0.85
    assert expected(bad, 3) < 0.25


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.2), (0.2, 0.9)])
def test_follows_a_change_of_text_within_a_few_dozen_tokens(before, after):
    rng = np.random.default_rng(4)
    ours = make_calibration()
    observe(ours, rng, 500, before)
    observe(ours, rng, 40, after)
    assert abs(estimate(ours, 0, 0.7) - after) < 0.25


def test_through_a_file():
    rng = np.random.default_rng(5)
    ours = make_calibration()
    for _ in range(300):
        position, confidence = int(rng.integers(6)), float(rng.random())
        notice(ours, position, confidence)
        record(ours, position, confidence, bool(rng.random() < 0.6))
    again = read_calibration(json.loads(json.dumps(write_calibration(ours))))
    assert again.tilt[0] == 0.0
    ours.tilt[0] = 0.0
    for position in range(POSITIONS):
        assert expected(again, position) == pytest.approx(expected(ours, position), abs=1e-3)
        for confidence in (0.05, 0.5, 0.99):
            assert estimate(again, position, confidence) == pytest.approx(
                estimate(ours, position, confidence), abs=1e-3
            )


SHAPE = make_calibration().hits.shape


def table(value):
    return np.full(SHAPE, value, object).tolist()


@pytest.mark.parametrize("data", [None, 7, "x", [], {}, {"hits": table(1.0)}])
def test_what_is_no_calibration_at_all_is_none(data):
    assert not read_calibration(data).trials.any()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hits", table(3.0)), ("hits", table(-1.0)), ("hits", table(math.nan)),
        ("hits", [[1.0]]), ("hits", table(1.0)[:-1]), ("hits", 3.0), ("hits", None),
        ("hits", table(None)), ("hits", table("a")), ("hits", {"a": 1}), ("hits", [[[1.0]]]),
        ("trials", table(math.nan)), ("trials", table(math.inf)), ("trials", table(1e300)),
        ("trials", table(10**400)), ("trials", []), ("seen", table(-1.0)),
        ("seen", table(math.inf)), ("seen", table(math.nan)), ("seen", "x"),
    ],
)  # fmt: skip
def test_a_damaged_calibration_is_none(name, value):
    sound = {"hits": table(1.0), "trials": table(2.0), "seen": table(1.0)}
    assert read_calibration(sound).trials.any()
    damaged = read_calibration({**sound, name: value})
    assert not damaged.trials.any()
    assert expected(damaged, 0) == pytest.approx(expected(make_calibration(), 0))
