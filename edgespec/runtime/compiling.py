"""Compiling the kernels of the decoding loop: at the first start after an installation.

Numba is one thread's work, most of it in the interpreter. So a second process compiles another half
into the cache meanwhile, and what only a draft model needs waits for one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.control.controller import AdaptivePolicy, CycleTiming
from edgespec.control.costs import make_cost_table
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import EarlierTexts, PromptLookupDrafter
from edgespec.drafters.stepping import draft_token
from edgespec.sampling.filters import filtered, make_workspace, truncated
from edgespec.sampling.kernel import Workspace, cache_folder
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.penalties import allowed_set, apply_bias, apply_dry, apply_penalties
from edgespec.sampling.random import PURPOSE_TARGET
from edgespec.speculation.acceptance import verify_chain
from edgespec.speculation.draws import DrawSettings, choose, draw_settings

__all__ = ["compile_half", "warm_up"]

_NOTICE_AFTER_S = 1.0

_VOCABULARY = 8

_PROGRAM = "from edgespec.runtime.compiling import compile_half; compile_half()"

_running = threading.Lock()


def warm_up(notice: Callable[[], None] | None = None, *, drafting: bool = True) -> None:
    """Run every kernel once: compiled at the first start after an installation, else loaded.

    Args:
        notice: called (from another thread) if it takes longer than loading them would.
        drafting: those of draft models too.

    A second caller waits for the first.
    """
    timer = threading.Timer(_NOTICE_AFTER_S, notice or (lambda: None))
    timer.daemon = True
    timer.start()
    try:
        with _running, _another_process() as wait_for_filters:
            arrays = _Arrays.make()
            _edit_logits(arrays)
            wait_for_filters()
            _verify(arrays)
        with _running:
            _decide()
            if drafting:
                _draft(arrays)
    finally:
        timer.cancel()


def compile_half() -> None:
    """Compile into the cache, in the second process, what `warm_up` needs last."""
    arrays = _Arrays.make()
    row, p, settings = arrays.logits[0], arrays.p, arrays.settings
    filtered(row, settings.arguments, False, p, arrays.workspace)
    choose(p, arrays.workspace.tokens, 1, settings.rule, settings.seed, 1, PURPOSE_TARGET)
    sys.stdout.write("filters\n")
    sys.stdout.flush()
    _decide()


@contextmanager
def _another_process() -> Iterator[Callable[[], object]]:
    """Start it where there is something to compile; yield what waits for its first part.

    At the end of the block it has compiled everything, or failed.
    """
    folder = cache_folder("drafters")
    frozen = not sys.executable or getattr(sys, "frozen", False)
    if frozen or folder is None or next(folder.rglob("*.nbi"), None) is not None:
        yield lambda: None
        return
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # no process can be started
        yield lambda: None
        return
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline
            process.wait()
        except BaseException:
            with suppress(OSError):
                process.kill()
            raise


class _Arrays(NamedTuple):
    """Small arguments, of the types that the loop's have."""

    settings: DrawSettings
    workspace: Workspace
    logits: Float32Array
    p: Float32Array
    q: Float32Array
    history: Int32Array
    out: Int32Array

    @classmethod
    def make(cls) -> _Arrays:
        return cls(
            draw_settings(SamplingParameters(), "auto"),
            make_workspace(_VOCABULARY),
            np.zeros((2, _VOCABULARY), np.float32),
            np.zeros(_VOCABULARY, np.float32),
            np.zeros((1, _VOCABULARY), np.float32),
            np.zeros(8, np.int32),
            np.zeros(2, np.int32),
        )


def _edit_logits(arrays: _Arrays) -> None:
    row, history, workspace = arrays.logits[0], arrays.history, arrays.workspace
    arguments = arrays.settings.arguments
    apply_bias(row, arguments, workspace)
    apply_penalties(row, history, 1, arguments, 0, workspace)
    apply_dry(row, history, 1, arguments, 0, workspace)
    truncated(row, 1.0, 5.0, arrays.p, workspace)


def _verify(arrays: _Arrays) -> None:
    settings, logits, p, q, history = (
        arrays.settings,
        arrays.logits,
        arrays.p,
        arrays.q,
        arrays.history,
    )
    verify_chain(logits, history, 1, 1, q, settings, p, arrays.workspace, arrays.out)


def _decide() -> None:
    """Compile prompt lookup, and what a cycle may spend."""
    history = np.zeros(8, np.int32)
    drafter, earlier = PromptLookupDrafter(8), EarlierTexts(8)
    earlier.add(history[:2])
    drafter.consult([earlier])
    drafter.commit(history, 4)
    allowed_set(history, 1)
    policy = AdaptivePolicy(make_cost_table([1.0], [1], [[1.0]], [0.0], 2), 1)
    drafter.propose(history, 4, policy.budget(4, 1))
    policy.observe(CycleTiming(4, 1, 0, 1, 0.0, 1.0))


def _draft(arrays: _Arrays) -> None:
    row, q = arrays.logits[0, :_VOCABULARY], arrays.q[0, :_VOCABULARY]
    draft_token(row, arrays.history, 1, arrays.settings, q, arrays.workspace)
    policy = AdaptivePolicy(make_cost_table([1.0], [1], [[1.0]], [0.0], 2), 1)
    stopping = DraftStopping(1.0, 1.0, 1)
    stopping.begin(policy.budget(4, 1), 0, 0)
    stopping.another()
    stopping.add(1.0)
    stopping.learn(1, 1)
