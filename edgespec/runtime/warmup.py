"""Compiling the kernels before they are needed, and saying so when that takes a while."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from edgespec.control.controller import AdaptivePolicy, CycleTiming
from edgespec.control.costs import make_cost_table
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import PromptLookupDrafter
from edgespec.drafters.stepping import draft_token
from edgespec.sampling.filters import make_workspace
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import verify_chain
from edgespec.speculation.settings import draw_settings

__all__ = ["warm_up"]

_NOTICE_AFTER_S = 1.0
_VOCABULARY = 8
_running = threading.Lock()


def warm_up(notice: Callable[[], None] | None = None) -> None:
    """Run every kernel once: compiled at the first start after an installation, else loaded.

    Args:
        notice: called (from another thread) if it takes longer than loading them would.

    A second caller waits for the first.
    """
    timer = threading.Timer(_NOTICE_AFTER_S, notice or (lambda: None))
    timer.daemon = True
    timer.start()
    try:
        with _running:
            _run_kernels()
    finally:
        timer.cancel()


def _run_kernels() -> None:
    settings = draw_settings(SamplingParameters(), "auto")
    workspace = make_workspace(_VOCABULARY)
    logits = np.zeros((2, _VOCABULARY), np.float32)
    p, q = np.zeros(_VOCABULARY, np.float32), np.zeros((1, _VOCABULARY), np.float32)
    history, out = np.zeros(8, np.int32), np.zeros(2, np.int32)
    draft_token(logits[0, :_VOCABULARY], history, 1, settings, q[0, :_VOCABULARY], workspace)
    verify_chain(logits, history, 1, 1, q, settings, p, workspace, out)
    drafter = PromptLookupDrafter(8)
    drafter.commit(history, 4)
    policy = AdaptivePolicy(make_cost_table([1.0], [1], [[1.0]], [0.0], 2), 1)
    drafter.propose(history, 4, policy.budget(4, 1))
    policy.observe(CycleTiming(4, 1, 0, 1, 0.0, 1.0))
    stopping = DraftStopping(1.0, 1.0, 1)
    stopping.begin(policy.budget(4, 1), 0, 0)
    stopping.another()
    stopping.add(1.0)
    stopping.learn(1, 1)
