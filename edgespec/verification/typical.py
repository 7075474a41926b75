"""Measure by how much typical acceptance changes what is emitted, and that it is no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float64Array
from edgespec.speculation.acceptance import TYPICAL_DELTA, TYPICAL_EPSILON
from edgespec.speculation.draws import ACCEPT_TYPICAL
from edgespec.verification.checks import (
    CheckResult,
    GTest,
    Progress,
    holm_rejects,
    silent,
    total_variation,
)
from edgespec.verification.rejection import (
    FALSE_ALARM_RATE,
    Tally,
    Trial,
    tally_first_tokens,
    tally_trials,
)

__all__ = ["Loss", "check_typical", "loss_of", "typical_distribution"]


class Loss(NamedTuple):
    """How far the first token of a cycle is from plain sampling's.

    Attributes:
        variation: total variation between their distributions.
        divergence: Kullback-Leibler, of what is emitted from p, in nats.
        agreement: probability that plain sampling emits the same token with the same seed.
    """

    variation: float
    divergence: float
    agreement: float


def typical_distribution(p: Float64Array, source: Float64Array) -> Float64Array:
    """Return what typical acceptance emits for one proposal that is drawn from `source`."""
    passing = _passing(p)
    emitted: Float64Array = np.where(passing, source, 0.0) + source[~passing].sum() * p
    return emitted


def loss_of(p: Float64Array, source: Float64Array) -> Loss:
    """Return by how much that differs from p."""
    emitted, passing = typical_distribution(p, source), _passing(p)
    there = emitted > 0.0
    divergence = float((emitted[there] * np.log(emitted[there] / p[there])).sum())
    # A refused proposal leaves plain sampling's own draw; others know nothing of it.
    agreement = float(source[~passing].sum() + (source * p)[passing].sum())
    return Loss(total_variation(emitted, p), max(0.0, divergence), agreement)


def _passing(p: Float64Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mass = p[p > 0.0]
    entropy = -float((mass * np.log(mass)).sum())
    passing: np.ndarray[Any, np.dtype[np.bool_]] = p >= min(
        TYPICAL_EPSILON, TYPICAL_DELTA * np.exp(-entropy)
    )
    return passing


def check_typical(
    trials: Sequence[Trial],
    draws: int,
    *,
    threads: int = 1,
    tally: Tally = tally_first_tokens,
    progress: Progress = silent,
) -> CheckResult:
    """Tell what the rule changes; it holds if frequencies fit what the rule is said to emit.

    Args: as `check_rejection`, with the trials that it has.
    """
    lossy, losses = [], []
    for trial in trials:
        source = trial.source.astype(np.float64)
        source /= source.sum()
        losses.append(loss_of(trial.expected, source))
        settings = trial.settings._replace(rule=ACCEPT_TYPICAL)
        emitted = typical_distribution(trial.expected, source)
        lossy.append(replace(trial, settings=settings, expected=emitted))
    outcomes = tally_trials(lossy, draws, threads, tally, progress)
    rejected = holm_rejects([test.p_value for _, test, _ in outcomes], FALSE_ALARM_RATE)
    mean = Loss(*np.mean(losses, axis=0).tolist())
    wrong = sum(rejected)
    fit = "frequencies fit the rule" if wrong == 0 else f"{wrong} frequencies do not fit the rule"
    return CheckResult(
        "typical",
        wrong == 0,
        f"lossy: first tokens are off p by a total variation of {mean.variation:.3f} on average, "
        f"KL {mean.divergence:.3f}, and {mean.agreement:.0%} are plain sampling's with the seed; "
        f"{fit}",
        {
            "lossy": True,
            "epsilon": TYPICAL_EPSILON,
            "delta": TYPICAL_DELTA,
            **mean._asdict(),
            "tests": [
                _figures(*outcome, loss, bad)
                for outcome, loss, bad in zip(outcomes, losses, rejected, strict=True)
            ],
        },
    )


def _figures(
    trial: Trial, test: GTest, acceptance: float, loss: Loss, rejected: bool
) -> dict[str, Any]:
    return {
        "prefix": trial.prefix,
        "filters": trial.filters,
        "proposals": "drawn" if len(trial.q) else "one-hot",
        **loss._asdict(),
        "acceptance_observed": acceptance,
        "p_value": test.p_value,
        "rejected": rejected,
    }
