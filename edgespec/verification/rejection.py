"""Check that rejection sampling emits tokens with the probabilities of plain sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array, Int64Array
from edgespec.backend import Context
from edgespec.control.controller import fixed_budget
from edgespec.drafters import DETERMINISTIC, Drafter
from edgespec.errors import NumericalError
from edgespec.sampling.filters import Workspace, make_workspace
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import DrawSettings, draw_proposal, draw_settings, verify_chain
from edgespec.verification.checks import (
    CheckResult,
    GTest,
    Progress,
    Prompt,
    expected_distribution,
    g_test,
    holm_rejects,
    is_clear_cut,
    plain_logits,
    silent,
)

__all__ = [
    "FALSE_ALARM_RATE",
    "Trial",
    "check_rejection",
    "make_trials",
    "tally_trials",
]

Tally = Callable[..., int]
"""`tally_first_tokens`, or what a test puts in its place: the same arguments."""

FALSE_ALARM_RATE = 1e-3
"""Chance that a correct implementation fails the check, over the choice of seeds."""

FILTERS = {
    "default filters": SamplingParameters(),
    "unfiltered": SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}

_ANSWER = 10  # tokens of an answer among which a prefix is looked for
_CHUNK = 2_500  # draws between two chances to be interrupted


# -- drawing first tokens: many seeds at one prefix, with the real kernel -----------------


@kernel
def tally_first_tokens(
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
    """Propose one token and verify it, for each of `draws` seeds; count the first token emitted.

    Args:
        logits: float32 (2, n_vocab): the target's row at the prefix, and an unused one for the
            bonus token.
        history: int32 (> length), the prefix and room for a proposal.
        length: tokens of the prefix.
        source: float32 (n_vocab,), the distribution to draw proposals from.
        source_tokens: int32, the tokens with mass in it.
        q: float32 (1, n_vocab), what the rule is told the proposals come from; (0, 0) for one-hot.
        settings: rule and filters; its seed is replaced.
        first_seed: seeds first_seed, first_seed + 1, ... are used.
        draws: how many.
        p: float32 (n_vocab,), scratch.
        workspace: scratch.
        counts: int64 (n_vocab,), added to.

    Returns:
        How many proposals were accepted, or the negative status of `verify_chain`.
    """
    accepted = 0
    out = np.empty(2, np.int32)
    for seed in range(first_seed, first_seed + draws):
        own = DrawSettings(
            settings.rule, settings.arguments, seed, settings.stream_offset, settings.mu
        )
        history[length] = draw_proposal(
            source,
            source_tokens,
            len(source_tokens),
            own.rule,
            seed,
            length + own.stream_offset,
        )
        status = verify_chain(logits, history, length, 1, q, own, p, workspace, out)
        if status < 0:
            return status
        accepted += status
        counts[out[0]] += 1
    return accepted


# -- the check ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A prefix, a way to propose there, and what should come out.

    Attributes:
        prefix: its name.
        filters: their name.
        tokens: int32, the prefix.
        logits: float32 (n_vocab,), the target's at the prefix.
        source: float32 (n_vocab,), the distribution that proposals are drawn from.
        q: float32 (1, n_vocab), what the rule is told about it; (0, 0) for one-hot.
        settings: rule and filters.
        expected: float64 (n_vocab,), p computed independently.
    """

    prefix: str
    filters: str
    tokens: Int32Array = field(repr=False)
    logits: Float32Array = field(repr=False)
    source: Float32Array = field(repr=False)
    q: Float32Array = field(repr=False)
    settings: DrawSettings = field(repr=False)
    expected: Float64Array = field(repr=False)


class _Prefix(NamedTuple):
    label: str
    tokens: Int32Array
    logits: Float32Array


def make_trials(
    target: Context,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    progress: Progress = silent,
) -> list[Trial]:
    """Return two trials per prompt, with the default filters and without any.

    The first prefix is a whole prompt; the others end inside the answer to theirs, where the
    target is least certain. Proposals and their q come from the drafter; where it proposes
    nothing, the target's second most likely token is proposed, as by an n-gram drafter.

    Args:
        target, drafter: their caches' content is lost.
        prompts: one prefix is taken from each.
        progress: told each prompt.
    """
    trials = []
    for i, prompt in enumerate(prompts):
        progress(f"prefix {prompt.name}")
        prefix = _find_prefix(target, prompt, 1 if i == 0 else _ANSWER)
        trials += [_make_trial(prefix, drafter, name) for name in FILTERS]
    return trials


def check_rejection(
    trials: Sequence[Trial],
    draws: int,
    *,
    threads: int = 1,
    tally: Tally = tally_first_tokens,
    progress: Progress = silent,
) -> CheckResult:
    """Draw first tokens in every trial and test their frequencies against p.

    G-tests with Holm's correction: a correct implementation fails with a chance of at most
    `FALSE_ALARM_RATE` over the choice of seeds. The seeds are fixed, so the outcome repeats.

    Args:
        trials: from `make_trials`.
        draws: of each trial.
        threads: how many to draw with.
        tally: the loop around the acceptance kernel.
        progress: told each trial.

    Raises:
        NumericalError: logits are broken, or the filters leave no token.
    """
    outcomes = tally_trials(trials, draws, threads, tally, progress)
    rejected = holm_rejects([test.p_value for _, test, _ in outcomes], FALSE_ALARM_RATE)
    return CheckResult(
        "rejection",
        not any(rejected),
        _summary([test for _, test, _ in outcomes], draws, sum(rejected)),
        {
            "draws": draws,
            "false_alarm_rate": FALSE_ALARM_RATE,
            "tests": [
                _figures(*outcome, bad) for outcome, bad in zip(outcomes, rejected, strict=True)
            ],
        },
        tuple(
            _detail(trial, test)
            for (trial, test, _), bad in zip(outcomes, rejected, strict=True)
            if bad
        ),
    )


def tally_trials(
    trials: Sequence[Trial], draws: int, threads: int, tally: Tally, progress: Progress
) -> list[tuple[Trial, GTest, float]]:
    """Draw first tokens in every trial; return their test, and the share of accepted proposals."""
    outcomes = []
    with ThreadPoolExecutor(threads) as pool:
        try:
            for i, trial in enumerate(trials):
                progress(f"{trial.prefix}, {trial.filters}")
                counts, accepted = _draw(trial, i * draws, draws, tally, pool)
                outcomes.append((trial, g_test(counts, trial.expected), accepted / draws))
        finally:
            pool.shutdown(cancel_futures=True)
    return outcomes


# -- prefixes and proposals -----------------------------------------------------------------


def _find_prefix(target: Context, prompt: Prompt, steps: int) -> _Prefix:
    """Find the least certain of the first positions of a greedy answer."""
    best, found = -1.0, None
    for prefix in _walk(target, prompt, steps):
        entropy = _entropy(expected_distribution(prefix.logits, FILTERS["default filters"]))
        # Where rounding decides a cut, correct frequencies would look wrong.
        if entropy > best and all(is_clear_cut(prefix.logits, f) for f in FILTERS.values()):
            best, found = entropy, prefix
    return found or prefix


def _walk(target: Context, prompt: Prompt, steps: int) -> Iterator[_Prefix]:
    """Yield prefixes with a copy of their plain logits, one token at a time."""
    tokens = prompt.tokens
    logits = plain_logits(target, tokens, []).copy()
    if not np.isfinite(logits.max()):
        raise NumericalError(
            f"{target.model.path.name} produced NaN or infinite logits: the file may be damaged"
        )
    yield _Prefix(f"{prompt.name} + 0", tokens, logits)
    for step in range(1, min(steps, target.capacity - len(prompt.tokens))):
        tokens = np.append(tokens, np.int32(logits.argmax()))
        logits = target.evaluate(tokens[-1:], 1)[0].copy()
        yield _Prefix(f"{prompt.name} + {step}", tokens, logits)


def _entropy(p: Float64Array) -> float:
    mass = p[p > 0.0]
    return float(-(mass * np.log(mass)).sum())


def _make_trial(prefix: _Prefix, drafter: Drafter, filters: str) -> Trial:
    parameters = FILTERS[filters]
    settings = draw_settings(parameters, "rejection")
    source, q = _proposal(prefix, drafter, settings)
    expected = expected_distribution(prefix.logits, parameters)
    return Trial(prefix.label, filters, prefix.tokens, prefix.logits, source, q, settings, expected)


def _proposal(
    prefix: _Prefix, drafter: Drafter, settings: DrawSettings
) -> tuple[Float32Array, Float32Array]:
    """Return what proposals are drawn from at this prefix, and the q that the rule is told."""
    length = len(prefix.tokens)
    history = np.append(prefix.tokens, np.zeros(1, np.int32))
    drafter.rewind(0)
    drafter.begin(settings)
    size, q, _ = drafter.extend(history, length, fixed_budget(1), 0)
    drafter.rewind(0)
    if size > 0 and len(q) > 0:
        row = q[:1].copy()
        return row[0], row
    token = int(history[length]) if size > 0 else int(np.argsort(prefix.logits)[-2])
    source = np.zeros(len(prefix.logits), np.float32)
    source[token] = 1.0
    return source, DETERMINISTIC


# -- drawing and testing --------------------------------------------------------------------


def _draw(
    trial: Trial, first_seed: int, draws: int, tally: Tally, pool: ThreadPoolExecutor
) -> tuple[Int64Array, int]:
    """Return counts of first tokens over the vocabulary, and how many proposals were accepted."""
    tokens = np.flatnonzero(trial.source).astype(np.int32)
    size = len(trial.logits)

    def work(start: int) -> tuple[Int64Array, int]:
        counts = np.zeros(size, np.int64)
        accepted = tally(
            np.stack([trial.logits, trial.logits]),
            np.append(trial.tokens, np.zeros(2, np.int32)),
            len(trial.tokens),
            trial.source,
            tokens,
            trial.q,
            trial.settings,
            first_seed + start,
            min(_CHUNK, draws - start),
            np.zeros(size, np.float32),
            make_workspace(size),
            counts,
        )
        if accepted < 0:
            raise NumericalError(f"{trial.prefix}: the logits are broken or no token is allowed")
        return counts, accepted

    parts = list(pool.map(work, range(0, draws, _CHUNK)))
    return np.sum([counts for counts, _ in parts], axis=0), sum(part for _, part in parts)


def _figures(trial: Trial, test: GTest, acceptance: float, rejected: bool) -> dict[str, Any]:
    q = trial.source
    return {
        "prefix": trial.prefix,
        "prefix_tokens": len(trial.tokens),
        "filters": trial.filters,
        "proposals": "drawn" if len(trial.q) else "one-hot",
        "candidates": int(np.count_nonzero(trial.expected)),
        "acceptance_expected": float(np.minimum(trial.expected, q).sum()),
        "acceptance_observed": acceptance,
        "g": test.statistic,
        "degrees_of_freedom": test.degrees,
        "p_value": test.p_value,
        "impossible_tokens": test.impossible,
        "rejected": rejected,
    }


def _summary(tests: list[GTest], draws: int, rejected: int) -> str:
    smallest = min(test.p_value for test in tests)
    outcome = "all fit p" if rejected == 0 else f"{rejected} do not fit p"
    return (
        f"{len(tests)} G-tests of {draws:,} draws: {outcome} (smallest p-value {smallest:.2g}; "
        f"false-alarm rate {FALSE_ALARM_RATE:g}, Holm)"
    )


def _detail(trial: Trial, test: GTest) -> str:
    impossible = f", {test.impossible} draws of tokens with p = 0" if test.impossible else ""
    return (
        f"{trial.prefix}, {trial.filters}: G = {test.statistic:.1f} with {test.degrees} degrees "
        f"of freedom, p-value {test.p_value:.2g}{impossible}"
    )
