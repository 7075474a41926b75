"""The cost table: between measured figures, and as real use corrects it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control.costs import fill_cycle_costs, make_cost_table, observe_cost, predicted_cost

PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)

DEPTHS = [100, 300, 900]
SIZES = [1, 2, 4, 8]
SECONDS = [[1.0, 1.5, 2.0, 5.0], [1.2, 1.9, 2.4, 5.0], [1.8, 2.5, 3.6, 8.0]]


def table(largest=12, switch=0.0):
    return make_cost_table(DEPTHS, SIZES, SECONDS, [switch] * len(SIZES), largest)


def test_what_was_measured_is_predicted():
    for depth, row in zip(DEPTHS, SECONDS, strict=True):
        for n, seconds in zip(SIZES, row, strict=True):
            assert predicted_cost(table(), depth, n) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("depth", "n", "seconds"),
    [
        (200, 1, 1.1), (600, 1, 1.5), (100, 3, 1.75), (100, 6, 3.5), (200, 3, 1.95),
        (100, 12, 8.0), (300, 10, 6.3),  # the last slope goes on
        (900, 12, 12.4),
        (1500, 1, 2.4), (2100, 2, 3.7),
        (0, 1, 1.0), (40, 4, 2.0),  # what is shallower costs what the first depth does
    ],
)  # fmt: skip
def test_between_and_beyond(depth, n, seconds):
    assert predicted_cost(table(), depth, n) == pytest.approx(seconds)


def test_noise_that_falls_with_depth_or_size_is_not_carried_on():
    falling = make_cost_table([100, 200], [1, 2], [[2.0, 1.9], [1.0, 0.9]], [0.0, 0.0], 8)
    assert predicted_cost(falling, 10_000, 1) == pytest.approx(1.0)
    assert predicted_cost(falling, 100, 8) == pytest.approx(1.9)


def test_one_depth_and_one_size_are_enough():
    single = make_cost_table([50], [1], [[0.3]], [0.0], 4)
    assert all(predicted_cost(single, d, n) == 0.3 for d in (0, 50, 999) for n in (1, 2, 4))


@PROPERTY
@given(st.floats(0, 5000), st.integers(1, 12))
def test_finite_and_positive_everywhere(depth, n):
    assert 0 < predicted_cost(table(), depth, n) < 1e3


def cycle_costs(costs, limit=7, margin=0.0, depth=100):
    filled = np.zeros(limit + 1)
    fill_cycle_costs(costs, float(depth), limit, margin, filled)
    return filled


def test_a_cycle_of_j_proposals_evaluates_one_token_more():
    assert cycle_costs(table())[[0, 1, 3, 7]] == pytest.approx([1.0, 1.5, 2.0, 5.0])


def test_a_margin_makes_speculation_dearer_and_plain_decoding_not():
    assert cycle_costs(table(), margin=0.2)[[0, 1, 3]] == pytest.approx([1.0, 1.8, 2.4])


def test_another_shape_than_the_last_costs_the_way_there_and_back():
    costs = table(switch=0.25)
    for _ in range(50):
        observe_cost(costs, 100.0, 1, 1.0)
    costs.changing[0] = 1.0
    assert cycle_costs(costs)[[0, 1, 3]] == pytest.approx([1.0, 2.0, 2.5])
    observe_cost(costs, 100.0, 4, 2.25)
    assert cycle_costs(costs)[[0, 3]] == pytest.approx([1.25, 2.25], abs=0.02)


def test_the_way_is_free_where_shapes_last_and_whole_where_they_do_not():
    lasting, changing = table(switch=0.25), table(switch=0.25)
    for _ in range(40):
        observe_cost(lasting, 100.0, 4, 2.0)
        observe_cost(changing, 100.0, 4, 2.25)
        observe_cost(changing, 100.0, 1, 1.25)
    assert cycle_costs(lasting)[[0, 7]] == pytest.approx([1.0, 5.0], abs=0.02)
    assert cycle_costs(changing)[7] == pytest.approx(5.5, abs=0.05)


def learn(costs, truth, rng, count, sizes=(1, 2, 4, 8), noise=0.05, outliers=0.0, depth=100.0):
    """Evaluations of a machine that takes truth[n] seconds, each twice in a row."""
    for _ in range(count):
        n = int(rng.choice(sizes))
        for _ in range(2):
            seconds = truth[n] * float(np.exp(rng.normal(0, noise)))
            observe_cost(costs, depth, n, seconds * (3.0 if rng.random() < outliers else 1.0))


@pytest.mark.parametrize("factors", [(1.3, 1.3, 1.3, 1.3), (1.0, 0.75, 1.25, 0.8), (0.6, 1, 1, 1)])
def test_corrections_find_the_true_costs(factors):
    costs = table()
    truth = {n: s * f for n, s, f in zip(SIZES, SECONDS[0], factors, strict=True)}
    learn(costs, truth, np.random.default_rng(0), 200)
    for n in SIZES:
        assert predicted_cost(costs, 100.0, n) == pytest.approx(truth[n], rel=0.06)
    # They are of the machine, not of the depth.
    assert predicted_cost(costs, 300.0, 2) == pytest.approx(1.9 * factors[1], rel=0.06)


def test_outliers_do_not_throw_them_off():
    costs = table()
    truth = dict(zip(SIZES, SECONDS[0], strict=True))
    learn(costs, truth, np.random.default_rng(1), 300, noise=0.1, outliers=0.05)
    for n in SIZES:
        assert predicted_cost(costs, 100.0, n) == pytest.approx(truth[n], rel=0.12)


def test_one_outlier_changes_little():
    costs = table()
    observe_cost(costs, 100.0, 1, 1000.0)
    assert predicted_cost(costs, 100.0, 1) < 1.1


def test_a_machine_that_throttles_is_followed_by_all_sizes():
    costs = table()
    truth = dict(zip(SIZES, SECONDS[0], strict=True))
    slow = {n: 1.6 * s for n, s in truth.items()}
    rng = np.random.default_rng(2)
    learn(costs, truth, rng, 50)
    learn(costs, slow, rng, 30, sizes=(1,))
    ratio = predicted_cost(costs, 100.0, 4) / predicted_cost(costs, 100.0, 1)
    assert predicted_cost(costs, 100.0, 1) == pytest.approx(1.6, rel=0.06)
    assert ratio == pytest.approx(2.0, rel=0.25), "as if it were batches that became cheaper"


def test_a_measurement_without_sense_is_ignored():
    costs = table(switch=0.5)
    for seconds in (0.0, -1.0, 0.3):
        observe_cost(costs, 100.0, 2, seconds)
        observe_cost(costs, 100.0, 1, seconds)
    assert np.isfinite(costs.drift).all() and np.isfinite(costs.shape).all()
    assert predicted_cost(costs, 100.0, 1) == pytest.approx(1.0)


def test_tells_what_it_had_predicted():
    costs = table(switch=0.25)
    assert observe_cost(costs, 100.0, 4, 2.25) == pytest.approx((2.25, 1.0))
    assert observe_cost(costs, 100.0, 4, 2.0) == pytest.approx((2.0, 1.0), rel=0.01)
