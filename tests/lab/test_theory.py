"""The lab's arithmetic, against enumeration in exact fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgespec.lab.theory import (
    Choice,
    MeasuredCost,
    best_k,
    cycle_speedup,
    decompose,
    expected_tokens,
    free_verification,
    normalized,
    total_variation,
)
from edgespec.lab.trees import TooManyCasesError, siblings

P = (Fraction(6, 10), Fraction(3, 10), Fraction(1, 10))
Q = (Fraction(2, 10), Fraction(5, 10), Fraction(3, 10))

rates = st.fractions(0, 1, max_denominator=50)


@st.composite
def pairs(draw, most=6):
    """p and q of the same length; zeros are frequent, and so is p = q."""
    n = draw(st.integers(2, most))
    weights = st.lists(st.integers(0, 7), min_size=n, max_size=n).filter(any)
    p, q = draw(weights), draw(weights)
    if draw(st.integers(0, 9)) == 0:
        q = p
    return normalized(tuple(map(Fraction, p))), normalized(tuple(map(Fraction, q)))


def test_the_three_tokens_of_the_textbook() -> None:
    step = decompose(P, Q)
    assert step.acceptance == (1, Fraction(3, 5), Fraction(1, 3))
    assert step.accepted == (Fraction(1, 5), Fraction(3, 10), Fraction(1, 10))
    assert step.alpha == Fraction(3, 5)
    assert step.rejection == Fraction(2, 5)
    assert step.residual == (1, 0, 0)
    assert step.recovered == P
    assert step.naive == (Fraction(11, 25), Fraction(21, 50), Fraction(7, 50))
    assert total_variation(step.naive, P) == Fraction(4, 25)


@given(pairs())
def test_accepted_and_residual_recover_p(pair) -> None:
    p, q = pair
    step = decompose(p, q)
    assert step.recovered == p
    assert step.alpha == 1 - total_variation(p, q)
    assert step.rejection == sum(step.rejected)
    assert (step.residual is None) == (p == q)
    assert step.residual is None or sum(step.residual) == 1
    for mass, draft, accept in zip(step.accepted, q, step.acceptance, strict=True):
        assert mass == draft * (accept or 0)
        assert (accept is None) == (draft == 0)
        assert accept is None or 0 <= accept <= 1


@given(pairs())
def test_naive_resampling_is_wrong_but_where_q_is_a_multiple_of_p(pair) -> None:
    p, q = pair
    step = decompose(p, q)
    multiple = all(b == step.alpha * a for a, b in zip(p, q, strict=True) if a)
    assert (step.naive == p) == (p == q or multiple)
    assert sum(step.naive) == 1
    if all(p) and p != q:
        assert step.naive != p


def test_a_multiple_of_p_is_the_exception() -> None:
    p, q = (
        (Fraction(1, 2), Fraction(1, 2), Fraction(0)),
        (Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)),
    )
    assert decompose(p, q).naive == p


@pytest.mark.parametrize(
    ("alpha", "tokens", "speedup"),
    [("0.75", "3.05", "2.18"), ("0.9", "4.10", "2.93"), ("0.5", "1.94", "1.38")],
)
def test_worked_numbers(alpha, tokens, speedup) -> None:
    assert f"{float(expected_tokens(Fraction(alpha), 4)):.2f}" == tokens
    gain = cycle_speedup(Fraction(alpha), 4, Fraction(1, 10), free_verification)
    assert f"{float(gain):.2f}" == speedup


@given(rates, st.integers(0, 20))
def test_expected_tokens_is_the_closed_form_and_the_mean(alpha, k) -> None:
    tokens = expected_tokens(alpha, k)
    if alpha == 1:
        assert tokens == k + 1
    else:
        assert tokens == (1 - alpha ** (k + 1)) / (1 - alpha)
    # The mean over the number of accepted proposals: alpha^a (1 - alpha), at a = k alpha^k.
    lengths = [(a + 1) * alpha**a * (1 - alpha) for a in range(k)]
    assert tokens == sum(lengths) + (k + 1) * alpha**k


curves = st.dictionaries(
    st.integers(2, 20), st.fractions(Fraction(1, 10), 12, max_denominator=20), max_size=8
).map(lambda points: MeasuredCost({1: Fraction(1), **points}))


@given(rates, st.fractions(0, 2, max_denominator=20), curves)
def test_best_k_is_the_best_of_all(alpha, c, cost) -> None:
    found = best_k(alpha, c, cost)
    gains = {0: Fraction(1)}
    for k in range(1, 17):
        verification = cost(k + 1)
        if verification is not None:
            gains[k] = sum(alpha**i for i in range(k + 1)) / (verification + k * c)
    best = max(gains.values())
    assert found == Choice(min(k for k, gain in gains.items() if gain == best), best)
    assert found.speedup >= 1


def test_best_k_looks_beyond_a_cliff() -> None:
    cost = MeasuredCost({1: Fraction(1), 2: Fraction(3), 3: Fraction(3), 16: Fraction(3)})
    assert best_k(Fraction(9, 10), Fraction(0), cost).k == 15
    assert best_k(Fraction(1, 2), Fraction(0), cost) == Choice(0, Fraction(1))


def test_measured_costs_lie_on_straight_lines() -> None:
    cost = MeasuredCost({8: Fraction(24), 1: Fraction(4), 4: Fraction(8)})
    assert [cost(n) for n in (1, 2, 4, 6, 8)] == [1, Fraction(4, 3), 2, 4, 6]
    assert cost(9) is None
    assert cycle_speedup(Fraction(1), 8, Fraction(0), cost) is None


def enumerated(p, q, count, *, replacement, updates_p=True, own_q=True):
    """Draw all siblings first, then judge them: output, and P(i-th is the accepted one).

    Written with nothing of the code under test. With `updates_p` false each sibling is judged
    by the first p; with `own_q` false by the first q, although tokens were taken out of it.
    """
    output, accepted = [Fraction(0)] * len(p), [Fraction(0)] * count
    for drawn in itertools.product(range(len(p)), repeat=count):
        rows, probability, gone = [], Fraction(1), set()
        for token in drawn:
            left = sum(q[v] for v in range(len(q)) if v not in gone)
            row = [Fraction(0) if v in gone or not left else q[v] / left for v in range(len(q))]
            rows.append(row)
            probability *= row[token]
            if not replacement:
                gone.add(token)
        if not probability:
            continue
        p_now, reached = list(p), probability
        for i, token in enumerate(drawn):
            row = rows[i] if own_q else q
            keep = min(Fraction(1), p_now[token] / row[token])
            output[token] += reached * keep
            accepted[i] += reached * keep
            reached *= 1 - keep
            excess = [max(Fraction(0), a - b) for a, b in zip(p_now, row, strict=True)]
            if reached and (updates_p or i == count - 1):
                p_now = [x / sum(excess) for x in excess]
            if not reached:
                break
        for v, mass in enumerate(p_now):
            output[v] += reached * mass
    return tuple(output), tuple(accepted)


@given(pairs(most=4), st.integers(1, 3))
def test_independent_siblings_by_enumeration(pair, count) -> None:
    p, q = pair
    found = siblings(p, q, count)
    assert found.output == p
    assert (found.output, found.accepted) == enumerated(p, q, count, replacement=True)
    single = decompose(p, q).alpha
    assert found.accepted[0] == single
    assert single <= found.some_accepted <= 1


@given(pairs(most=4), st.integers(1, 3))
def test_distinct_siblings_by_enumeration(pair, count) -> None:
    p, q = pair
    assume(sum(1 for mass in q if mass) >= count)  # else they cannot all be drawn first
    found = siblings(p, q, count, replacement=False)
    assert found.output == p
    assert (found.output, found.accepted) == enumerated(p, q, count, replacement=False)


@given(pairs(most=5), st.integers(1, 6), st.booleans())
def test_output_is_p_and_fewer_siblings_are_a_prefix(pair, count, replacement) -> None:
    p, q = pair
    found = siblings(p, q, count, replacement=replacement)
    assert found.output == p
    assert min(found.accepted) >= 0
    fewer = siblings(p, q, max(1, count - 1), replacement=replacement)
    assert found.accepted[: len(fewer.accepted)] == fewer.accepted


@given(pairs())
def test_two_distinct_siblings_are_never_worse_than_two_independent_ones(pair) -> None:
    p, q = pair
    distinct = siblings(p, q, 2, replacement=False).some_accepted
    assert distinct >= siblings(p, q, 2).some_accepted


def test_all_tokens_of_q_as_siblings() -> None:
    """Every token is there to be accepted: nothing is left to be drawn from p."""
    assert siblings(P, Q, 3, replacement=False).some_accepted == 1
    assert siblings(P, Q, 5, replacement=False).accepted[3:] == (0, 0)
    assert siblings(P, Q, 2).some_accepted == Fraction(17, 25)


def test_wrong_trees_are_caught() -> None:
    stale_p, _ = enumerated(P, Q, 2, replacement=True, updates_p=False)
    assert stale_p != P
    p, q = (
        (Fraction(1, 10), Fraction(4, 10), Fraction(5, 10)),
        (Fraction(5, 10), Fraction(3, 10), Fraction(2, 10)),
    )
    first_q, _ = enumerated(p, q, 2, replacement=False, own_q=False)
    assert first_q != p


def test_too_many_cases_are_refused() -> None:
    p = (Fraction(1, 2),) + (Fraction(1, 20),) * 10
    q = (Fraction(0),) + (Fraction(1, 10),) * 10
    with pytest.raises(TooManyCasesError):
        siblings(p, q, 4, replacement=False, max_cases=50)
    assert siblings(p, q, 4, max_cases=4).output == p
