"""The acceptance rule itself: exact arithmetic for its mathematics, the kernels for its edges."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from edgespec.sampling.filters import make_workspace
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import (
    ACCEPT_COUPLED,
    ACCEPT_REJECTION,
    BROKEN_LOGITS,
    NOTHING_ALLOWED,
    DrawSettings,
    _rejection_step,
    choose,
    draw_residual,
    draw_settings,
    verify_chain,
)

FALSE_ALARMS = 1e-3
NO_Q = np.zeros((0, 0), np.float32)
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


# ---- the rule in fractions: an oracle that shares nothing with the kernels ----


def step(p, q, proposal):
    """Distribution of the token emitted for this proposal: accept, or draw from the residual."""
    accept = min(Fraction(1), p[proposal] / q[proposal])
    result = [Fraction(0)] * len(p)
    result[proposal] += accept
    if accept < 1:
        left = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
        for token, weight in enumerate(left):
            result[token] += (1 - accept) * weight / sum(left)
    return result


def emitted(p_of, q_of, k, depth, prefix=()):
    """Exact distribution of the next `depth` tokens of a decoder with blocks of k proposals."""
    n_vocab = len(p_of(prefix))
    result = {}

    def add(text, weight):
        if len(text) >= depth:
            result[text[:depth]] = result.get(text[:depth], 0) + weight
            return
        rest = emitted(p_of, q_of, k, depth - len(text), prefix + text)
        for tail, share in rest.items():
            result[text + tail] = result.get(text + tail, 0) + weight * share

    for block in itertools.product(range(n_vocab), repeat=k):
        weight = Fraction(1)
        for i, token in enumerate(block):
            weight *= q_of(prefix + block[:i])[token]
        if weight == 0:
            continue
        for i, proposal in enumerate(block):
            before = prefix + block[:i]
            outcome = step(p_of(before), q_of(before), proposal)
            for token, share in enumerate(outcome):
                if token != proposal and share:
                    add((*block[:i], token), weight * share)
            weight *= outcome[proposal]
        if weight:
            for token, share in enumerate(p_of(prefix + block)):
                if share:
                    add((*block, token), weight * share)
    return result


def _tables(seed, n_vocab):
    """Two functions from prefixes to random distributions with zeros, in fractions."""
    rng = np.random.default_rng(seed)
    cache = {}

    def draw(kind, prefix):
        if (kind, prefix) not in cache:
            weights = rng.integers(0, 6, n_vocab)
            weights[rng.integers(n_vocab)] += 1
            total = int(weights.sum())
            cache[kind, prefix] = [Fraction(int(w), total) for w in weights]
        return cache[kind, prefix]

    return lambda prefix: draw("p", prefix), lambda prefix: draw("q", prefix)


@pytest.mark.parametrize(("n_vocab", "k"), [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1), (5, 1)])
def test_rule_keeps_the_joint_distribution_exactly(n_vocab, k):
    for seed in range(3):
        p_of, q_of = _tables(seed, n_vocab)
        for depth in (1, 2, 3) if n_vocab < 4 else (1, 2):
            found = emitted(p_of, q_of, k, depth)
            for text in itertools.product(range(n_vocab), repeat=depth):
                exact = Fraction(1)
                for i, token in enumerate(text):
                    exact *= p_of(text[:i])[token]
                assert found.get(text, 0) == exact


def test_worked_example():
    p = [Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)]
    q = [Fraction(2, 10), Fraction(5, 10), Fraction(3, 10)]
    assert step(p, q, 0) == [1, 0, 0]
    assert step(p, q, 1) == [Fraction(2, 5), Fraction(3, 5), 0]
    assert step(p, q, 2) == [Fraction(2, 3), 0, Fraction(1, 3)]


# ---- one step of the kernel against the oracle ----


@kernel
def _count_steps(p, q, proposal, tokens, draws, counts):
    for seed in range(draws):
        counts[_rejection_step(p, q, proposal, tokens, len(tokens), seed, 3)] += 1


def test_each_branch_of_the_kernel_has_the_oracle_s_probabilities():
    draws, found = 50_000, []
    for seed in range(6):
        n_vocab = 2 + seed % 5
        p_of, q_of = _tables(seed, n_vocab)
        p, q = p_of(()), q_of(())
        rows = [np.array([float(x) for x in row], np.float32) for row in (p, q)]
        tokens = np.flatnonzero(rows[0]).astype(np.int32)
        for proposal in range(n_vocab):
            one_hot = [Fraction(int(v == proposal)) for v in range(n_vocab)]
            choices = [(one_hot, np.float32(one_hot))]
            choices += [(q, rows[1])] if q[proposal] else []
            for exact_q, row in choices:
                exact = np.array([float(x) for x in step(p, exact_q, proposal)])
                counts = np.zeros(n_vocab, np.int64)
                _count_steps(rows[0], row, proposal, tokens, draws, counts)
                likely = exact > 0
                assert not counts[~likely].any()
                if likely.sum() > 1:
                    test = stats.chisquare(counts[likely], exact[likely] * draws)
                    found.append(test.pvalue)
    assert len(found) > 20
    assert min(found) > FALSE_ALARMS / len(found)


# ---- edges ----


def _step(p, q, proposal, seed):
    p, q = np.array(p, np.float32), np.array(q, np.float32)
    tokens = np.flatnonzero(p).astype(np.int32)
    return _rejection_step(p, q, proposal, tokens, len(tokens), seed, 3)


def test_a_token_that_is_likelier_under_p_is_always_accepted():
    for seed in range(300):
        assert _step([0.5, 0.5], [0.5, 0.5], 1, seed) == 1
        assert _step([0.5, 0.5], [1 - 1e-45, 1e-45], 1, seed) == 1
        assert _step([1e-45, 1.0], [0.0, 1.0], 0, seed) == 0, "q(x) = 0 divides nothing"


def test_what_p_forbids_is_never_emitted():
    for seed in range(300):
        assert _step([0.0, 1.0], [1.0, 0.0], 0, seed) == 1
        assert _step([0.0, 0.25, 0.75], [0.5, 0.25, 0.25], 0, seed) == 2
        # By rounding q covers p everywhere and there is no residual: the filters still hold.
        assert _step([0.0, 0.5, 0.5], [1e-9, 0.5, 0.5], 0, seed) in (1, 2)
        assert _step([0.0, 0.5, 0.5], [0.0, 0.5, 0.5], 0, seed) in (1, 2)


def test_residual_without_mass():
    p = np.array([0.25, 0.75], np.float32)
    tokens = np.arange(2, dtype=np.int32)
    assert draw_residual(p, p, 0, tokens, 2, 1, 1) == -1
    assert draw_residual(p, p * np.float32(2), 0, tokens, 2, 1, 1) == -1
    for seed in range(300):
        faint = np.array([0.25 + 3e-8, 0.75], np.float32)
        assert draw_residual(faint, p, 1, tokens, 2, seed, 1) == 0


distributions = st.builds(
    lambda seed, size, shape: (
        np.random.default_rng(seed).dirichlet(np.full(size, shape)).astype(np.float32)
    ),
    st.integers(0, 2**32 - 1),
    st.integers(1, 200),
    st.sampled_from([0.003, 0.1, 1.0, 100.0]),
)


@settings(max_examples=3 * settings.default.max_examples)
@given(distributions, st.data())
def test_residual_and_draws_stay_in_their_support(p, data):
    size = len(p)
    q = data.draw(distributions.filter(lambda row: len(row) >= size))[:size]
    seed, position = data.draw(st.integers(-(2**63), 2**63 - 1)), data.draw(st.integers(0, 2**20))
    rejected = data.draw(st.integers(0, size - 1))
    tokens = np.array(data.draw(st.permutations(range(size))), np.int32)
    for rule in (ACCEPT_REJECTION, ACCEPT_COUPLED):
        if size > 1:
            assert p[choose(p, tokens, size, rule, seed, position, 1)] > 0
    token = draw_residual(p, q, rejected, tokens, size, seed, position)
    wanted = (p > q) & (np.arange(size) != rejected)
    assert wanted[token] if token >= 0 else not wanted.any()


@kernel
def _count_choices(p, tokens, rule, draws, counts):
    for seed in range(draws):
        counts[choose(p, tokens, len(tokens), rule, seed, 11, 1)] += 1


def test_choices_from_a_long_row_follow_p():
    """Rows longer than the blocks that are skipped as a whole; zeros in between."""
    found = []
    for seed, size in enumerate((2, 63, 64, 65, 500)):
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.full(size, 1.0)).astype(np.float32)
        p[1:-1][rng.random(max(size - 2, 0)) < 0.3] = 0  # not normalized any more: allowed
        exact = p.astype(np.float64) / p.sum(dtype=np.float64)
        tokens = rng.permutation(size).astype(np.int32)
        for rule in (ACCEPT_REJECTION, ACCEPT_COUPLED):
            counts = np.zeros(size, np.int64)
            _count_choices(p, tokens, rule, 100_000, counts)
            assert not counts[p == 0].any()
            likely = exact * 100_000 >= 5
            observed = np.append(counts[likely], counts[~likely].sum())
            expected = np.append(exact[likely], exact[~likely].sum()) * 100_000
            observed, expected = observed[expected > 0], expected[expected > 0]
            statistic = ((observed - expected) ** 2 / expected).sum()
            found.append(stats.chi2.sf(statistic, len(expected) - 1))
    assert min(found) > FALSE_ALARMS / len(found)


# ---- chains ----


def _verify(rows, history, length, k, parameters, q=NO_Q, rule=ACCEPT_REJECTION, offset=0):
    logits = np.array(rows, np.float32)
    history = np.array(history, np.int32)
    out = np.full(k + 1, -9, np.int32)
    settings_ = DrawSettings(rule, parameters.filter_arguments(), 5, offset)
    p = np.zeros(logits.shape[1], np.float32)
    workspace = make_workspace(logits.shape[1])
    kept = logits.copy()
    accepted = verify_chain(logits, history, length, k, q, settings_, p, workspace, out)
    assert (kept == logits).all() or np.isnan(kept).any()
    return accepted, out.tolist()


@pytest.mark.parametrize("rule", [ACCEPT_REJECTION, ACCEPT_COUPLED])
def test_proposals_that_were_not_drawn_leave_the_text_of_plain_decoding(rule):
    """Whatever was proposed, and however much: the tokens that single steps with this seed give."""
    rng = np.random.default_rng(3)
    sampling = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    for trial in range(200):
        rows = rng.normal(0, 1.5, (6, 5))
        proposals = rng.integers(0, 5, 5).tolist()
        one_hot = np.eye(5, dtype=np.float32)[proposals]
        for q in (NO_Q, one_hot):
            accepted, out = _verify(
                rows, [trial % 5, *proposals, 0], 1, 5, sampling, q, rule, trial
            )
            for i in range(accepted + 1):
                history = [trial % 5, *proposals[:i], 0]
                plain = _verify(rows[i : i + 1], history, 1 + i, 0, sampling, NO_Q, rule, trial)
                assert plain == (0, [out[i]])
            assert accepted == 5 or out[accepted] != proposals[accepted]


@pytest.mark.parametrize("rule", [ACCEPT_REJECTION, ACCEPT_COUPLED])
def test_greedy_keeps_the_agreeing_prefix_and_adds_one_token(rule):
    greedy = SamplingParameters(temperature=0.0)
    rows = np.eye(4)[[2, 1, 3]]
    for proposals, accepted, out in [
        ([2, 1], 2, [2, 1, 3]),
        ([2, 0], 1, [2, 1, -9]),
        ([0, 1], 0, [2, -9, -9]),
        ([3, 3], 0, [2, -9, -9]),
    ]:
        assert _verify(rows, [0, *proposals], 1, 2, greedy, rule=rule) == (accepted, out)
    assert _verify(rows[:1], [0], 1, 0, greedy, rule=rule) == (0, [2])


@pytest.mark.parametrize(
    "penalty",
    [{"presence_penalty": 1.0}, {"frequency_penalty": 1.0}, {"repeat_penalty": 2.0}],
    ids=str,
)
def test_penalties_see_tokens_proposed_earlier_in_the_block(penalty):
    """Token 1 is preferred until it has occurred; it occurs as the first proposal."""
    parameters = SamplingParameters(**{**OFF, "temperature": 0.0, **penalty})
    rows = [[0.0, 2.0, 1.9]] * 3
    assert _verify(rows, [0, 1, 1], 1, 2, parameters) == (1, [1, 2, -9])
    assert _verify(rows, [0, 1, 2], 1, 2, parameters)[0] == 2
    without = SamplingParameters(**{**OFF, "temperature": 0.0})
    assert _verify(rows, [0, 1, 1], 1, 2, without) == (2, [1, 1, 1])


def test_penalty_window_slides_along_the_block():
    parameters = SamplingParameters(
        **{**OFF, "temperature": 0.0}, presence_penalty=1.0, penalty_window=1
    )
    rows = [[0.0, 2.0, 1.9]] * 4
    assert _verify(rows, [0, 1, 2, 1], 1, 3, parameters) == (3, [1, 2, 1, 2])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_and_empty_rows_are_reported_when_they_are_reached(bad):
    for temperature in (0.0, 1.0):
        parameters = SamplingParameters(**{**OFF, "temperature": temperature})
        sure = [0.0, 500.0, 0.0]
        assert _verify([sure, [0, bad, 0]], [0, 1], 1, 1, parameters)[0] == BROKEN_LOGITS
        assert _verify([sure, [-math.inf] * 3], [0, 1], 1, 1, parameters)[0] == NOTHING_ALLOWED
        assert _verify([sure, [0, bad, 0]], [0, 2], 1, 1, parameters) == (0, [1, -9])


def test_stream_offset_continues_the_random_stream():
    """A history cut by n tokens draws with offset n what the whole one draws without."""
    parameters = SamplingParameters(**OFF)
    rng = np.random.default_rng(0)
    differing = 0
    for rule in (ACCEPT_REJECTION, ACCEPT_COUPLED):
        for _ in range(50):
            rows, tail = rng.normal(0, 1, (3, 8)), rng.integers(0, 8, 4).tolist()
            whole = _verify(rows, [1, 2, 3, *tail], 5, 2, parameters, rule=rule)
            cut = _verify(rows, tail, 2, 2, parameters, rule=rule, offset=3)
            assert whole == cut
            differing += whole != _verify(rows, tail, 2, 2, parameters, rule=rule)
    assert differing > 10


@pytest.mark.parametrize("rule", [ACCEPT_REJECTION, ACCEPT_COUPLED])
def test_no_row_is_read_behind_an_end_token_that_is_accepted(rule):
    """Under a grammar there are k rows for k proposals, the last an end token."""
    memory = np.full((6, 5), np.nan, np.float32)
    memory[:3] = -50.0
    proposals = [2, 4, 1]
    memory[np.arange(3), proposals] = 50.0
    history = np.zeros(16, np.int32)
    history[4:7] = proposals
    for temperature in (0.0, 1.0):
        sampling = SamplingParameters(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
        settings_ = draw_settings(sampling, "auto")._replace(rule=rule)
        out, p = np.zeros(4, np.int32), np.zeros(5, np.float32)
        accepted = verify_chain(
            memory[:3], history, 4, 3, NO_Q, settings_, p, make_workspace(5), out
        )
        assert accepted == 2
        assert out[:3].tolist() == proposals
