"""A toy language model, and a decoder around `verify_chain` that counts what it emits.

The model has V tokens and R states; a prefix's state is a hash of all its tokens, so every
distribution depends on the whole prefix, and the exact probability of any text is a product.
"""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from edgespec.sampling.filters import advance_mu, distribution, make_workspace
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import SamplingParameters
from edgespec.sampling.selection import PURPOSE_ACCEPT, PURPOSE_TARGET, uniform
from edgespec.speculation.acceptance import (
    ACCEPT_COUPLED,
    ACCEPT_REJECTION,
    DrawSettings,
    choose,
    current_mu,
    draw_proposal,
    draw_residual,
    new_mu,
    verify_chain,
)

STATES = 32
PROMPT = 1  # one token, 0
ROOM = 32

SAMPLED, ONE_HOT = 0, 1
CORRECT, RESAMPLES_P, ACCEPTS_WITH_P, RAW_Q, FORGETS_PROPOSALS = range(5)
MU_OF_PROPOSALS, MU_STANDS_STILL = 5, 6


@kernel
def state_of(history, length):
    state = 1
    for i in range(length):
        state = (state * 31 + history[i] + 7) % 1009
    return state % STATES


@kernel
def _mutant_chain(logits, history, length, k, q, settings, p, workspace, out, mutant):
    """`verify_chain` for the rejection rule, with one mistake."""
    seed, arguments = settings.seed, settings.arguments
    mu = current_mu(settings)
    start, end = mu, k
    for i in range(k + 1):
        prefix = length if mutant == FORGETS_PROPOSALS else length + i
        position = length + i
        count = distribution(
            logits[i], history, prefix, arguments, p, workspace, seed, position, mu
        )
        proposal = history[length + i] if i < k else -1
        if i == k:
            out[i] = choose(p, workspace.tokens, count, 0, seed, position, PURPOSE_TARGET)
        else:
            weight = 1.0 if mutant == ACCEPTS_WITH_P else q[i, proposal]
            if uniform(seed, position, PURPOSE_ACCEPT) * weight < p[proposal]:
                token = proposal
            elif mutant == RESAMPLES_P:
                token = choose(p, workspace.tokens, count, 0, seed, position, PURPOSE_TARGET)
            else:
                token = draw_residual(p, q[i], proposal, workspace.tokens, count, seed, position)
            out[i] = token if token >= 0 else proposal
        if arguments.mirostat != 0 and mutant != MU_STANDS_STILL:
            mu = advance_mu(mu, p[out[i]], arguments)
        if out[i] != proposal:
            end = i
            break
    if mutant == MU_OF_PROPOSALS:
        mu = start
        for i in range(k):
            distribution(
                logits[i], history, length + i, arguments, p, workspace, seed, length + i, mu
            )
            mu = advance_mu(mu, max(p[history[length + i]], np.float32(1e-9)), arguments)
    if len(settings.mu) > 0:
        settings.mu[0] = mu
    return end


@kernel
def _propose(history, length, k, kind, q_rows, settings, draft, q, logits, workspace):
    """Write k proposals behind the prefix, and their q."""
    n_vocab = q_rows.shape[1]
    for i in range(k):
        state = state_of(history, length + i)
        if kind == ONE_HOT:
            history[length + i] = (state * 5 + 3) % n_vocab
            continue
        logits[:] = q_rows[state]
        count = distribution(
            logits, history, length + i, draft.arguments, q[i], workspace,
            settings.seed, length + i, current_mu(settings),
        )  # fmt: skip
        history[length + i] = draw_proposal(
            q[i], workspace.tokens, count, settings.rule, settings.seed, length + i
        )


@kernel
def _arrays(n_vocab, k, kind):
    return (
        np.empty((k + 1, n_vocab), np.float32),
        np.empty((k, n_vocab), np.float32) if kind == SAMPLED else np.empty((0, 0), np.float32),
        np.empty(n_vocab, np.float32),
        np.empty(n_vocab, np.float32),
        np.empty(k + 1, np.int32),
    )


@kernel
def _decode(
    p_rows, q_rows, k, kind, settings, draft, raw, mutant, until, history, workspace, arrays, trace
):
    """Emit tokens, cycle by cycle, until the history is that long; number of accepted ones.

    ``trace[n]`` is Mirostat's mu when n tokens were committed, if there is a cycle's end.
    """
    logits, q, scratch, p, out = arrays
    length, accepted = PROMPT, 0
    while length < until:
        _propose(history, length, k, kind, q_rows, settings, draft, q, scratch, workspace)
        if mutant == RAW_Q:
            for i in range(k):
                scratch[:] = q_rows[state_of(history, length + i)]
                distribution(scratch, history, length + i, raw, q[i], workspace)
        for i in range(k + 1):
            logits[i] = p_rows[state_of(history, length + i)]
        if mutant == CORRECT:
            a = verify_chain(logits, history, length, k, q, settings, p, workspace, out)
        else:
            a = _mutant_chain(logits, history, length, k, q, settings, p, workspace, out, mutant)
        if a < 0:
            return a
        for i in range(a + 1):
            history[length + i] = out[i]
        length += a + 1
        accepted += a
        if length < len(trace):
            trace[length] = current_mu(settings)
    return accepted


@kernel
def _count_texts(
    p_rows, q_rows, k, kind, settings, draft, raw, mutant, first_seed, draws, counts, workspace
):  # fmt: skip
    """Histogram of the first `depth` emitted tokens over many seeds."""
    n_vocab = p_rows.shape[1]
    depth = 0
    size = 1
    while size < len(counts):
        size *= n_vocab
        depth += 1
    history = np.zeros(ROOM, np.int32)
    arrays = _arrays(n_vocab, k, kind)
    mu, trace = np.zeros(1), np.zeros(0)
    for draw in range(draws):
        # A DrawSettings of this seed: the fields one by one, as a kernel cannot call _replace.
        own = DrawSettings(
            settings.rule, settings.arguments, first_seed + draw, settings.stream_offset, mu
        )
        mu[0] = 2.0 * settings.arguments.mirostat_tau
        accepted = _decode(
            p_rows, q_rows, k, kind, own, draft, raw, mutant, PROMPT + depth, history, workspace,
            arrays, trace,
        )  # fmt: skip
        if accepted < 0:
            return accepted
        cell = 0
        for i in range(depth):
            cell = cell * n_vocab + history[PROMPT + i]
        counts[cell] += 1
    return 0


class Case(NamedTuple):
    """What to decode: the rows of p and q by state, and how."""

    p_rows: np.ndarray
    q_rows: np.ndarray
    parameters: SamplingParameters
    draft: SamplingParameters
    k: int
    kind: int = SAMPLED
    rule: int = ACCEPT_REJECTION

    def settings(self, seed=0):
        arguments = self.parameters.filter_arguments()
        return DrawSettings(self.rule, arguments, seed, 0, new_mu(arguments))


UNFILTERED = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class Toy:
    """The toy model's tools, for test files to use."""

    SAMPLED, ONE_HOT = SAMPLED, ONE_HOT
    MUTANTS = {
        "resamples from p after a rejection": RESAMPLES_P,
        "accepts with p instead of p / q": ACCEPTS_WITH_P,
        "uses q before its filters": RAW_Q,
        "penalties forget the block's proposals": FORGETS_PROPOSALS,
        "mu advances along the proposals": MU_OF_PROPOSALS,
        "mu does not advance": MU_STANDS_STILL,
    }
    COUPLED, REJECTION = ACCEPT_COUPLED, ACCEPT_REJECTION
    UNFILTERED = UNFILTERED
    Case = Case

    def __init__(self, twins):
        self._twins = twins

    @staticmethod
    def rows(seed, n_vocab, spread=1.5):
        rng = np.random.default_rng(seed)
        return rng.normal(0, spread, (STATES, n_vocab)).astype(np.float32)

    @classmethod
    def decode(cls, case, seed, until, mutant=CORRECT):
        """The text of one seed, and how many of its tokens were accepted proposals."""
        return cls.traced(case, seed, until, mutant)[:2]

    @staticmethod
    def traced(case, seed, until, mutant=CORRECT):
        """The same, and mu by the number of committed tokens: NaN where no cycle ended."""
        n_vocab = case.p_rows.shape[1]
        history = np.zeros(until + case.k + 2, np.int32)
        trace = np.full(until + 1, np.nan)
        accepted = _decode(
            case.p_rows,
            case.q_rows,
            case.k,
            case.kind,
            case.settings(seed),
            DrawSettings(case.rule, case.draft.filter_arguments(), 0),
            UNFILTERED.filter_arguments(),
            mutant,
            until,
            history,
            make_workspace(n_vocab, len(history)),
            _arrays(n_vocab, case.k, case.kind),
            trace,
        )
        assert accepted >= 0
        return history[:until].tolist(), accepted, trace

    @staticmethod
    def counts(case, depth, draws, mutant=CORRECT, first_seed=0):
        n_vocab = case.p_rows.shape[1]
        counts = np.zeros(n_vocab**depth, np.int64)
        status = _count_texts(
            case.p_rows,
            case.q_rows,
            case.k,
            case.kind,
            case.settings(),
            DrawSettings(case.rule, case.draft.filter_arguments(), 0),
            UNFILTERED.filter_arguments(),
            mutant,
            first_seed,
            draws,
            counts,
            make_workspace(n_vocab, ROOM),
        )
        assert status == 0
        return counts

    def exact(self, case, depth):
        """Probabilities of all texts of that many tokens: products of the twin's p."""
        n_vocab = case.p_rows.shape[1]
        parameters, result = case.parameters, []
        for text in itertools.product(range(n_vocab), repeat=depth):
            history, probability, mu = [0], 1.0, 2 * parameters.mirostat_tau
            for token in text:
                row = case.p_rows[state_of(np.array(history, np.int32), len(history))]
                if parameters.mirostat:
                    p = self._twins.mirostat(row, parameters, mu)
                    mu = self._twins.next_mu(mu, p[token], parameters) if p[token] else mu
                else:
                    p = self._twins.distribution(row, history, len(history), parameters)
                probability *= p[token]
                history.append(token)
            result.append(probability)
        return np.array(result)


@pytest.fixture(scope="session")
def toy():
    path = Path(__file__).parent.parent / "sampling" / "twins.py"
    spec = importlib.util.spec_from_file_location("edgespec_twins", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Toy(module)
