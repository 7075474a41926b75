"""How the cost of drawing and judging tokens, and of a draft's step, grows with the vocabulary."""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bench.scaling.chart import LINE, Chart, Series, Setup
from bench.scaling.random_drafts import LAYERS, WIDTH, write_draft
from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context, ContextOptions, Model
from edgespec.drafters.protocol import DETERMINISTIC, draft_token
from edgespec.runtime.loading import warm_up
from edgespec.sampling.kernel import make_workspace
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import draw_settings, verify_chain
from edgespec.tuning.drafting import measure_draft

__all__ = ["KERNELS", "Blocks", "Judge", "make_blocks", "measure_vocabulary", "peaked_logits"]

VOCABULARIES = (8192, 32768, 49152, 128256, 151936, 262144)
DRAFT_VOCABULARIES = (4096, 8192, 16384, 49152)
BLOCK = 4
_BLOCKS = 8  # that take turns, so that a row is not in the processor's cache already
_REPETITIONS = 5
_HEAD, _FALL, _BULK, _DISAGREEMENT = 12.0, 1.3, 1.5, 0.5


KERNELS: dict[str, tuple[SamplingParameters, int]] = {
    "greedy": (SamplingParameters(temperature=0.0), 0),
    "sampled": (SamplingParameters(), 0),
    f"rejection, block of {BLOCK}": (SamplingParameters(), BLOCK),
}
"""Name -> filters, by default temperature 0.8, top-k 40, top-p 0.95 and min-p 0.05; and how many
proposals are judged."""


class Blocks(NamedTuple):
    """Logits of a target, and proposals drawn from a draft's q.

    Attributes:
        logits: float32 (blocks, BLOCK + 1, vocabulary).
        q: float32 (blocks, BLOCK, vocabulary).
        proposals: int32 (blocks, BLOCK).
    """

    logits: Float32Array
    q: Float32Array
    proposals: Int32Array


def measure_vocabulary(setup: Setup) -> list[Chart]:
    """Measure microseconds of a position of a block, and milliseconds of a draft's step."""
    warm_up()
    return [_kernels(setup.rounds), _draft_steps(setup)]


# -- drawing and judging --------------------------------------------------------------------


def _kernels(rounds: int) -> Chart:
    judges = [Judge(make_blocks(size, np.random.default_rng(size))) for size in VOCABULARIES]
    samples = {name: np.empty((rounds, len(judges))) for name in KERNELS}
    runs = [(index, name) for index in range(len(judges)) for name in KERNELS]
    for turn in range(-1, rounds):  # the first is a warm-up
        for index, name in random.sample(runs, len(runs)):
            found = [judges[index].run(name) for _ in range(_REPETITIONS)]
            if turn >= 0:
                samples[name][turn, index] = 1e6 * np.median([s / n for s, n in found])
    return Chart(
        "Microseconds of drawing or judging one token",
        "tokens of the vocabulary, V",
        "V",
        VOCABULARIES,
        [Series(name, values.tolist(), LINE) for name, values in samples.items()],
    )


class Judge:
    """Run the kernels on blocks in preallocated arrays, as the decoding loop does."""

    def __init__(self, blocks: Blocks) -> None:
        size = blocks.logits.shape[2]
        self._blocks = blocks
        self._p, self._workspace = np.zeros(size, np.float32), make_workspace(size)
        self._history, self._out = np.zeros(1 + BLOCK, np.int32), np.zeros(BLOCK + 1, np.int32)

    def run(self, name: str) -> tuple[float, int]:
        """Return the seconds that one of `KERNELS` took for all blocks, and the positions.

        A position is a row of logits that was filtered and drawn from; rows after a rejected
        proposal are not.
        """
        sampling, k = KERNELS[name]
        settings = draw_settings(sampling, "auto")
        spent_s, positions = 0.0, 0
        for logits, q, proposals in zip(*self._blocks, strict=True):
            self._history[1:] = proposals
            drawn = q if k else DETERMINISTIC
            started = perf_counter()
            accepted = verify_chain(
                logits, self._history, 1, k, drawn, settings, self._p, self._workspace, self._out
            )
            spent_s += perf_counter() - started
            positions += accepted + 1
        return spent_s, positions


def make_blocks(size: int, generator: np.random.Generator) -> Blocks:
    """Make random blocks over a vocabulary; the draft's logits are the target's with noise."""
    settings = draw_settings(SamplingParameters(), "auto")
    workspace, history = make_workspace(size), np.zeros(1 + BLOCK, np.int32)
    logits = np.stack([peaked_logits(size, generator, BLOCK + 1) for _ in range(_BLOCKS)])
    q = np.zeros((_BLOCKS, BLOCK, size), np.float32)
    proposals = np.zeros((_BLOCKS, BLOCK), np.int32)
    for block in range(_BLOCKS):
        for i in range(BLOCK):
            noise = generator.normal(0.0, _DISAGREEMENT, size)
            row = (logits[block, i] + noise).astype(np.float32)
            token, _ = draft_token(row, history, 1 + i, settings, q[block, i], workspace)
            proposals[block, i] = token
    return Blocks(logits, q, proposals)


def peaked_logits(size: int, generator: np.random.Generator, rows: int) -> Float32Array:
    """Make logits, float32 (rows, size): many unlikely tokens, and a head by powers of rank."""
    logits = generator.normal(0.0, _BULK, (rows, size)).astype(np.float32)
    head = min(size, 1000)
    for row in logits:
        places = generator.choice(size, head, replace=False, shuffle=True)
        fall = _HEAD - _FALL * np.log(np.arange(1, head + 1))
        row[places] = fall + generator.normal(0.0, _DISAGREEMENT, head)
    return logits


# -- a draft's step -------------------------------------------------------------------------


def _draft_steps(setup: Setup) -> Chart:
    samples = np.empty((setup.rounds, len(DRAFT_VOCABULARIES)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contexts = [_open_draft(folder, size, setup, stack) for size in DRAFT_VOCABULARIES]
        for row in samples:
            for index in random.sample(range(len(contexts)), len(contexts)):
                row[index] = 1e3 * measure_draft(contexts[index]).step_s
    return Chart(
        f"Milliseconds of a draft's step, {LAYERS} layers of width {WIDTH}, random weights in Q8_0",
        "tokens of the draft's vocabulary, V",
        "V",
        DRAFT_VOCABULARIES,
        [Series("step", samples.tolist(), LINE)],
    )


def _open_draft(folder: Path, size: int, setup: Setup, stack: ExitStack) -> Context:
    model = stack.enter_context(Model(write_draft(folder / f"{size}.gguf", size)))
    options = ContextOptions(length=256, threads=setup.threads, outputs=1)
    return stack.enter_context(Context(model, options))
