"""Whatever is proposed, the emitted text is distributed as p.

Sampled outputs of the kernels are compared with exact probabilities by a chi-square test over
all texts of three tokens. Seeds are fixed; the threshold is 1e-3 over the whole file, divided by
the number of cases (Bonferroni). The same test has to reject every wrong rule.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from edgespec.sampling.parameters import SamplingParameters

FALSE_ALARMS = 1e-3
PARTS = 6  # that two processes can share
DRAWS = 100_000
DEPTH = 3

FILTERED = SamplingParameters(temperature=0.7, top_k=3, top_p=0.9, min_p=0.05)
TYPICAL = SamplingParameters(temperature=1.3, top_k=0, typical_p=0.7, top_p=1.0, min_p=0.0)
PENALTIES = SamplingParameters(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repeat_penalty=1.5,
    frequency_penalty=0.3,
    presence_penalty=0.8,
    penalty_window=3,
    logit_bias={1: 0.7},
)
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
XTC = SamplingParameters(**OFF, xtc_probability=0.6, xtc_threshold=0.2)
DRY = SamplingParameters(
    **OFF, dry_multiplier=0.9, dry_base=1.5, dry_allowed_length=1, dry_window=-1
)
SIGMA = SamplingParameters(**OFF, top_n_sigma=1.2)
DYNAMIC = SamplingParameters(**OFF, dynatemp_range=0.8, dynatemp_exponent=2.0)
MIROSTAT = SamplingParameters(temperature=1.0, mirostat=2, mirostat_tau=0.9, mirostat_eta=0.6)
ALL_OF_THEM = SamplingParameters(
    temperature=0.9,
    top_k=4,
    top_p=0.95,
    min_p=0.02,
    top_n_sigma=2.0,
    presence_penalty=0.3,
    dry_multiplier=0.9,
    dry_allowed_length=1,
    xtc_probability=0.5,
    xtc_threshold=0.25,
    dynatemp_range=0.4,
)
LATER = {
    "XTC": XTC,
    "DRY": DRY,
    "top-n-sigma": SIGMA,
    "dynamic temperature": DYNAMIC,
    "mirostat": MIROSTAT,
    "all": ALL_OF_THEM,
}


def p_value(counts, exact):
    """Chi-square of counts against exact probabilities; rare cells are taken together."""
    expected = exact * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    order = np.argsort(expected)
    observed, expected = counts[order], expected[order]
    rare = np.searchsorted(np.cumsum(expected), 5) + 1
    observed = np.concatenate(([observed[:rare].sum()], observed[rare:]))
    expected = np.concatenate(([expected[:rare].sum()], expected[rare:]))
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, len(expected) - 1)) if len(expected) > 1 else 1.0


def cases(toy):
    """Name -> `Case`."""
    plain = toy.UNFILTERED
    p4, q4 = toy.rows(1, 4), toy.rows(2, 4)
    result = {f"sampled q, k = {k}": toy.Case(p4, q4, plain, plain, k) for k in range(5)} | {
        f"deterministic, k = {k}": toy.Case(p4, q4, plain, plain, k, toy.ONE_HOT)
        for k in range(1, 5)
    }
    for n_vocab in (2, 3, 5, 6):
        p, q = toy.rows(n_vocab, n_vocab), toy.rows(100 + n_vocab, n_vocab)
        result[f"V = {n_vocab}"] = toy.Case(p, q, plain, plain, 2)
    even = np.arange(4) % 2 == 0
    left, right = p4.copy(), q4.copy()
    left[:, even], right[:, ~even] = -np.inf, -np.inf
    result["disjoint supports"] = toy.Case(left, right, plain, plain, 3)
    result["q is p"] = toy.Case(p4, p4, plain, plain, 3)
    result["q is nearly p"] = toy.Case(p4, p4 + np.float32(1e-6) * q4, plain, plain, 3)
    sure = q4.copy()
    sure[np.arange(len(sure)), np.arange(len(sure)) % 4] += 20
    result["q is nearly one-hot"] = toy.Case(p4, sure, plain, plain, 3)
    # Half of q's probabilities are around the smallest float32 number, and partly cut off to 0.
    faint = q4.copy()
    faint[:, ::2] -= np.linspace(80, 104, len(faint), dtype=np.float32)[:, None]
    result["q is nearly 0"] = toy.Case(p4, faint, plain, plain, 3)
    peaked = p4 * 6
    result["p is peaked"] = toy.Case(peaked, q4, plain, plain, 3)
    others = {"filters": FILTERED, "typical": TYPICAL, "penalties": PENALTIES}
    for name, parameters in (others | LATER).items():
        result[f"{name} on p and q"] = toy.Case(p4, q4, parameters, parameters, 3)
        result[f"{name} on p"] = toy.Case(p4, q4, parameters, plain, 2)
        result[f"{name}, deterministic"] = toy.Case(p4, q4, parameters, plain, 4, toy.ONE_HOT)
    result["filters on q"] = toy.Case(p4, q4, plain, FILTERED, 3)
    result["coupled"] = toy.Case(p4, q4, plain, plain, 3, rule=toy.COUPLED)
    for name, parameters in LATER.items():
        case = toy.Case(p4, q4, parameters, parameters, 3, rule=toy.COUPLED)
        result[f"coupled, {name}"] = case
        result[f"plain, {name}"] = case._replace(k=0, rule=toy.REJECTION)
    result["coupled, filters"] = toy.Case(p4, q4, FILTERED, FILTERED, 3, rule=toy.COUPLED)
    return result


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)
def test_emitted_texts_are_distributed_as_p(toy, part):
    every = list(enumerate(cases(toy).items()))
    found = {
        name: p_value(toy.counts(case, DEPTH, DRAWS, first_seed=i * DRAWS), toy.exact(case, DEPTH))
        for i, (name, case) in every[part::PARTS]
    }
    threshold = FALSE_ALARMS / len(every)
    assert {name: p for name, p in found.items() if p <= threshold} == {}


WRONG_UNDER = {
    "resamples from p after a rejection": ["sampled q, k = 1", "sampled q, k = 4", "V = 2"],
    "accepts with p instead of p / q": ["sampled q, k = 1", "V = 6", "filters on p and q"],
    "uses q before its filters": ["filters on p and q", "filters on q"],
    "penalties forget the block's proposals": [
        "penalties on p and q",
        "penalties on p",
        "DRY on p and q",
        "DRY on p",
    ],
    "mu advances along the proposals": ["mirostat on p and q", "mirostat on p"],
    "mu does not advance": ["mirostat on p and q", "mirostat on p"],
}


@pytest.mark.parametrize("mistake", WRONG_UNDER)
def test_the_same_test_rejects_wrong_rules(toy, mistake):
    assert set(WRONG_UNDER) == set(toy.MUTANTS)
    every = cases(toy)
    for name in WRONG_UNDER[mistake]:
        case = every[name]
        counts = toy.counts(case, DEPTH, DRAWS, toy.MUTANTS[mistake])
        assert p_value(counts, toy.exact(case, DEPTH)) < 1e-6, name


def test_the_test_itself_accepts_the_truth_and_sees_small_differences(toy):
    case = cases(toy)["sampled q, k = 0"]
    exact = toy.exact(case, DEPTH)
    assert abs(exact.sum() - 1) < 1e-9
    rng = np.random.default_rng(3)
    assert p_value(rng.multinomial(DRAWS, exact), exact) > FALSE_ALARMS
    bent = 0.95 * exact + 0.05 / len(exact)
    assert p_value(rng.multinomial(DRAWS, bent), exact) < 1e-6


@pytest.mark.parametrize("kind", ["sampled", "deterministic"])
@pytest.mark.parametrize(
    "filters", [None, FILTERED, TYPICAL, PENALTIES, XTC, DRY, MIROSTAT, ALL_OF_THEM], ids=str
)
@pytest.mark.parametrize("rule", ["coupled", "greedy"])
def test_text_is_that_of_plain_decoding_token_for_token(toy, rule, filters, kind):
    parameters = filters or toy.UNFILTERED
    if rule == "greedy":
        parameters = replace(parameters, temperature=0.0, dynatemp_range=0.0)
    accepted = 0
    for seed in range(30):
        case = toy.Case(
            toy.rows(seed, 6),
            toy.rows(seed, 6) + toy.rows(seed + 1000, 6, spread=1.0),
            parameters,
            parameters,
            0,
            toy.SAMPLED if kind == "sampled" else toy.ONE_HOT,
            toy.COUPLED if rule == "coupled" else toy.REJECTION,
        )
        plain, _ = toy.decode(case, seed, 24)
        assert len(set(plain)) > 1
        for k in range(1, 9):
            text, more = toy.decode(case._replace(k=k), seed, 24)
            assert text == plain, (seed, k)
            accepted += more
    assert accepted > 0, "nothing was ever accepted: the test shows nothing"


def test_coupled_texts_differ_between_seeds(toy):
    case = toy.Case(
        toy.rows(0, 6), toy.rows(1, 6), toy.UNFILTERED, toy.UNFILTERED, 2, rule=toy.COUPLED
    )
    assert len({tuple(toy.decode(case, seed, 24)[0]) for seed in range(50)}) == 50


def test_equal_p_and_q_accept_everything(toy):
    rows = toy.rows(5, 6)
    for rule in (toy.REJECTION, toy.COUPLED):
        for parameters in (toy.UNFILTERED, FILTERED, PENALTIES):
            for k in (1, 4):
                case = toy.Case(rows, rows, parameters, parameters, k, rule=rule)
                for seed in range(40):
                    text, accepted = toy.decode(case, seed, 1 + 4 * (k + 1))
                    assert len(text) == 1 + 4 * (k + 1) and accepted == 4 * k


def _mu_is_that_of_plain_decoding(toy, mutant):
    """Whether, at each end of a block, mu is what it is there in plain decoding; and the text."""
    rejected = 0
    for seed in range(30):
        rows = toy.rows(seed, 6), toy.rows(seed, 6) + toy.rows(seed + 1000, 6, spread=1.0)
        case = toy.Case(*rows, MIROSTAT, MIROSTAT, 0, rule=toy.COUPLED)
        plain, _, mu = toy.traced(case, seed, 24)
        for k in range(1, 9):
            text, accepted, other = toy.traced(case._replace(k=k), seed, 24, mutant)
            ends = ~np.isnan(other)
            rejected += (k + 1) * ends.sum() - 23 > accepted
            if text != plain or (mu[ends] != other[ends]).any():
                return False
    assert rejected > 100
    return True


def test_mirostat_s_state_after_each_block_is_that_of_plain_decoding(toy):
    """To the last bit: after rejections, too."""
    assert _mu_is_that_of_plain_decoding(toy, 0)
    case = toy.Case(toy.rows(0, 6), toy.rows(1, 6), MIROSTAT, MIROSTAT, 0, rule=toy.COUPLED)
    mu = toy.traced(case, 0, 24)[2]
    assert len(set(mu[2:25])) > 10, "mu moves"


def test_dry_sees_repetitions_that_were_proposed_in_the_same_block(toy):
    """What a block begins to repeat costs from the next position on."""
    greedy = replace(DRY, temperature=0.0, dry_multiplier=50.0, dry_allowed_length=2)
    rows = np.tile(np.array([[1.0, 2.0, 1.5]], np.float32), (32, 1))
    for k in range(6):
        case = toy.Case(rows, rows, greedy, replace(greedy, dry_multiplier=0.0), k)
        text, _ = toy.decode(case, 0, 12)
        assert text[:5] == [0, 1, 1, 1, 2], "1 1 came before: a third 1 would go on with it"
        assert text == toy.decode(case._replace(k=0), 0, 12)[0]
