"""What ends a block early: q may, the token drawn from it may not.

A chi-square test of the emitted token, 20,000 fixed seeds, false-alarm rate 1e-3; the wrong rule
is far beyond it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from edgespec.sampling.filters import make_workspace
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import (
    ACCEPT_REJECTION,
    draw_proposal,
    draw_settings,
    verify_chain,
)

P = np.array([0.40, 0.30, 0.15, 0.10, 0.05])
# Two prefixes, as it were: a draft that is sure, and one that is not.
Q = (np.array([0.80, 0.05, 0.05, 0.05, 0.05]), np.array([0.30, 0.25, 0.20, 0.15, 0.10]))
SEEDS = 20_000

Stops = Callable[[np.ndarray, int], bool]


def by_q(q: np.ndarray, token: int) -> bool:
    return float((q * q).sum()) < 0.5


def by_token(q: np.ndarray, token: int) -> bool:
    return float(q[token]) < 0.5


def p_value(stops: Stops) -> float:
    size = len(P)
    logits = np.log(np.stack([P, P])).astype(np.float32)
    scratch, workspace = np.zeros(size, np.float32), make_workspace(size)
    everything = np.arange(size, dtype=np.int32)
    counts = np.zeros(size, np.int64)
    for seed in range(SEEDS):
        sampling = SamplingParameters(
            temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, seed=seed
        )
        settings = draw_settings(sampling, "rejection")
        q = Q[seed % 2].astype(np.float32)
        token = draw_proposal(q, everything, size, ACCEPT_REJECTION, settings.seed, 1)
        history, out = np.array([0, token, 0], np.int32), np.zeros(2, np.int32)
        k = 0 if stops(q, token) else 1
        verify_chain(logits, history, 1, k, q[None], settings, scratch, workspace, out)
        counts[out[0]] += 1
    return float(stats.chisquare(counts, P * SEEDS).pvalue)


@pytest.mark.parametrize(("stops", "exact"), [(by_q, True), (by_token, False)])
def test_the_target_keeps_its_distribution_only_if_q_alone_decides(
    stops: Stops, exact: bool
) -> None:
    if exact:
        assert p_value(stops) > 1e-3
    else:
        assert p_value(stops) < 1e-12
