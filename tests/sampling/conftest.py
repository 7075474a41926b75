"""Shared by the tests of the filters: the twins, and one call that runs the kernel."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from edgespec.sampling.filters import distribution, make_workspace
from edgespec.sampling.parameters import NO_BREAKERS


@pytest.fixture(scope="session")
def twins():
    path = Path(__file__).with_name("twins.py")
    spec = importlib.util.spec_from_file_location("edgespec_twins", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_kernel():
    """(logits, history, parameters) -> (number, mask of candidates with finite logits, p)."""

    def run(
        logits, history, parameters, *, breakers=NO_BREAKERS, seed=0, position=0, mu=math.inf,
        remembered=None,
    ):  # fmt: skip
        n_vocab = len(logits)
        workspace = make_workspace(n_vocab, len(history) if remembered is None else remembered)
        p = np.full(n_vocab, np.nan, np.float32)
        before = logits.copy()
        history = np.asarray(history, np.int32)
        arguments = parameters.filter_arguments(breakers)
        number = distribution(
            logits, history, len(history), arguments, p, workspace, seed, position, mu
        )
        assert logits.tobytes() == before.tobytes(), "edits were not undone"
        assert not workspace.counts.any(), "counts were not cleared"
        mask = np.zeros(n_vocab, bool)
        if number > 0:
            mask[workspace.tokens[:number]] = True
            assert mask.sum() == number, "a candidate is listed twice"
        return number, mask, p

    return run
