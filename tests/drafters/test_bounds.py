"""No kernel reads or writes outside its arrays: all of them run with Numba's bounds checks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WORKLOAD = """
import math
import numpy as np
from edgespec.control.stopping import DraftStopping
from edgespec.control.controller import DraftBudget, fixed_budget
from edgespec.drafters.automaton import extend, ending, make_automaton
from edgespec.drafters.prompt_lookup import PromptLookupDrafter
from edgespec.sampling.filters import distribution, make_workspace
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import verify_chain
from edgespec.speculation.acceptance import draw_proposal
from edgespec.speculation.acceptance import DrawSettings
from edgespec.control.controller import AdaptivePolicy, CycleTiming
from edgespec.control.costs import make_cost_table

checked = False
try:
    ending(make_automaton(1)._replace(counters=np.zeros(1, np.int32)))
except IndexError:
    checked = True
assert checked, "bounds are not checked: the test would show nothing"

rng = np.random.default_rng(0)
for n_vocab in (1, 2, 63, 64, 65, 300):
    for trial in range(40):
        parameters = SamplingParameters(
            temperature=float(rng.choice([0.0, 0.7])),
            top_k=int(rng.choice([0, 1, 5, 64, n_vocab, 1000])),
            typical_p=float(rng.choice([0.0, 0.5, 1.0])),
            top_p=float(rng.choice([0.0, 0.9, 1.0])),
            min_p=float(rng.choice([0.0, 0.1, 1.0])),
            repeat_penalty=1.2,
            penalty_window=int(rng.choice([-1, 0, 1, 10])),
            logit_bias={t: float(rng.choice([1.0, -math.inf])) for t in range(0, n_vocab, 2)},
        )
        arguments = parameters.filter_arguments()
        workspace = make_workspace(n_vocab)
        k, length = int(rng.integers(0, 5)), n_vocab
        history = np.zeros(length + k + 1, np.int32)
        history[:length] = np.arange(n_vocab)  # every token is biased or penalized, or both
        p = np.empty(n_vocab, np.float32)
        q = np.empty((k, n_vocab), np.float32)
        settings = DrawSettings(int(rng.integers(2)), arguments, -trial)
        usable = True
        for i in range(k):
            logits = rng.normal(0, 3, n_vocab).astype(np.float32)
            count = distribution(logits, history, length + i, arguments, q[i], workspace)
            usable = usable and count > 0
            if usable:
                history[length + i] = draw_proposal(
                    q[i], workspace.tokens, count, settings.rule, settings.seed, length + i
                )
        logits = rng.normal(0, 3, (k + 1, n_vocab)).astype(np.float32)
        out = np.empty(k + 1, np.int32)
        for rows in (q, np.zeros((0, 0), np.float32)) if usable else ():
            verify_chain(logits, history, length, k, rows, settings, p, workspace, out)

for n in (1, 2, 3, 50, 400):
    for text in (
        np.zeros(n), np.arange(n), rng.integers(0, 2, n), rng.integers(0, 40, n),
        np.minimum(np.arange(n), 1),
    ):
        history = np.zeros(n + 8, np.int32)
        history[:n] = text
        drafter = PromptLookupDrafter(n, threshold=0.1)
        drafter.propose(history, n, fixed_budget(8))
        drafter.rewind(0)
        drafter.propose(history, n, DraftBudget(8, np.linspace(1.0, 2.0, 9), np.zeros(8)))

for k in (0, 1, 2, 8):
    # Nearly free batches, so that blocks of the full length are drafted; then dear ones.
    for slope in (0.001, 1.0):
        seconds = 1.0 + slope * np.arange(k + 1)
        sizes = list(range(1, k + 2))
        costs = make_cost_table([40.0, 272.0], sizes, [seconds, seconds], [0.1] * (k + 1), k + 1)
        policy, stopping = AdaptivePolicy(costs, k), DraftStopping(0.001, 0.001, k)
        longest = 0
        for cycle in range(30):
            cheap = slope < 1.0  # and good: all of it is accepted
            limit, depth = k if cheap else int(rng.integers(0, k + 1)), 20 * cycle
            budget = policy.budget(depth, limit)
            given = min(limit, cycle % 3)
            stopping.rate(budget, cycle)
            stopping.begin(budget, cycle, given)
            while stopping.another():
                stopping.add(0.99 if cheap else float(rng.random()))
            count = stopping.size
            longest = max(longest, count)
            accepted = count if cheap else int(rng.integers(0, count + 1))
            stopping.learn(accepted, count)
            timing = CycleTiming(depth, count + 1, count, accepted + 1, 0.001, seconds[count])
            policy.observe(timing)
        assert longest == k or slope == 1.0, "the full length was never tried"
print("done")
"""


@pytest.mark.slow
def test_no_kernel_leaves_its_arrays(tmp_path):
    # A cache of its own: compiled code with and without checks has the same key.
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "EDGESPEC_CACHE": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", WORKLOAD], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"
