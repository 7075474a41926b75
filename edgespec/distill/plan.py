"""How long everything will take, and what it needs: measured before anything is started."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from edgespec.distill.corpus import Batch
from edgespec.distill.draft import Draft, precision
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import replace_file

__all__ = [
    "BATCH_LENGTH",
    "BATCH_ROWS",
    "Plan",
    "Rates",
    "make_plan",
    "measure_training",
    "require_disk",
]

BATCH_ROWS, BATCH_LENGTH = 4, 256
"""Shape of a training step's batch."""

_REPETITIONS = 8.0
_SHARES = (0.3, 0.8)
_SPARE = 0.92  # vocabulary, export and proof take the rest
_LEAST_STEPS = 20
_TRIES = 3
_WORTH = 1.1  # bfloat16 has to be faster by this factor
_SPARE_DISK = 1 << 30


class Rates(NamedTuple):
    """Tokens per second of writing and of training, and whether training is in bfloat16."""

    writing: float
    training: float
    bfloat16: bool


@dataclass(frozen=True)
class Plan:
    """What a number of hours is spent on.

    Attributes:
        hours: over all runs with the same work folder.
        writing_rate, training_rate: tokens per second on this machine, as measured at first.
        tokens: number of tokens of answers to write.
        steps: number of training steps.
        bfloat16: whether matrices are multiplied in that type, which is faster on few processors.
    """

    hours: float
    writing_rate: float
    training_rate: float
    tokens: int
    steps: int
    bfloat16: bool = False

    @property
    def writing_s(self) -> float:
        """Seconds for all of the text."""
        return self.tokens / self.writing_rate

    @property
    def training_s(self) -> float:
        """Seconds for all of the training."""
        return self.steps * BATCH_ROWS * BATCH_LENGTH / self.training_rate


def make_plan(path: Path, hours: float, measure: Callable[[], Rates]) -> Plan:
    """Return the plan in a file; make a new one if there is none for this number of hours.

    A longer plan continues what a shorter one began. Time is split between text and training so
    that training sees each token about eight times.

    Args:
        measure: returns the rates, if they are not in the file.

    Raises:
        UsageError: the hours are out of range.
    """
    if not 0 < hours <= 10_000:
        raise UsageError(f"hours is {hours:g}: it has to be above 0")
    known = _read(path)
    if known is not None and known.hours == hours:
        return known
    writing, training, bfloat16 = (
        Rates(known.writing_rate, known.training_rate, known.bfloat16)
        if known is not None
        else measure()
    )
    seconds = hours * 3600 * _SPARE
    share = training / (training + _REPETITIONS * writing)
    share = min(max(share, _SHARES[0]), _SHARES[1])
    steps = (1 - share) * seconds * training / (BATCH_ROWS * BATCH_LENGTH)
    tokens = int(share * seconds * writing)
    plan = Plan(hours, writing, training, tokens, max(_LEAST_STEPS, int(steps)), bfloat16)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(asdict(plan), indent=2) + "\n").encode(), alone=True)
    return plan


def measure_training(draft: Draft, width: int, layers: int, tokens: int) -> tuple[float, bool]:
    """Measure training in tokens per second, and whether bfloat16 is faster; change no weights.

    Args:
        width: of the target's states.
        layers: number of layers whose inputs come with them.
        tokens: number of tokens of the target.
    """
    random = np.random.default_rng(0)
    shape = (BATCH_ROWS, BATCH_LENGTH)
    batch = Batch(
        random.integers(0, tokens, shape),
        np.zeros(shape, np.int64),
        np.tile(np.arange(BATCH_LENGTH), (BATCH_ROWS, 1)),
        np.ones(shape, np.bool_),
        random.standard_normal((*shape, width), np.float32),
        random.standard_normal((*shape, width * layers), np.float32),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.float32),
    )
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_TRIES):
        for bfloat16, taken in times.items():
            started = perf_counter()
            with precision(bfloat16):
                losses = draft.losses(batch)
            losses.total.backward()
            taken.append(perf_counter() - started)
    draft.zero_grad(set_to_none=True)
    took = {bfloat16: float(np.median(taken)) for bfloat16, taken in times.items()}
    bfloat16 = took[True] * _WORTH < took[False]
    return BATCH_ROWS * BATCH_LENGTH / took[bfloat16], bfloat16


def require_disk(folder: Path, tokens: int, width: int, layers: int) -> int:
    """Return the bytes that so much more text takes, prompts included.

    Raises:
        EdgespecError: the disk has too little space.
    """
    needed = int(tokens * 1.5 * (2 * width * (1 + layers) + 12))
    free = shutil.disk_usage(folder).free
    if needed + _SPARE_DISK > free:
        raise EdgespecError(
            f"the text would take {needed / 2**30:.1f} GiB in {folder}, where "
            f"{free / 2**30:.1f} GiB are free: give fewer --hours or another --work folder"
        )
    return needed


def _read(path: Path) -> Plan | None:
    try:
        data: Any = json.loads(path.read_text("utf-8"))
        plan = Plan(**data)
        return replace(plan, tokens=int(plan.tokens), steps=int(plan.steps))
    except (OSError, TypeError, ValueError):
        return None
