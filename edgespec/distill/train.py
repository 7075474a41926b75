"""Train with AdamW: a warm-up, a plateau and a decay; training can be interrupted anywhere.

What is measured and written is a running average of the weights: on the plateau it is about as good
as a decay would make them, so that whenever a training ends, its best is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from edgespec.distill.corpus import Batch, Batches
from edgespec.distill.draft import POSITIONS, Draft, by_position, precision
from edgespec.distill.plan import BATCH_LENGTH, BATCH_ROWS
from edgespec.files import replacing
from edgespec.interrupts import held_interrupts

__all__ = ["Acceptance", "Schedule", "State", "Trainer", "measure_acceptance", "measure_training"]

_DECAY_SHARE = 0.3
_WARM_UP_SHARE, _MOST_WARM_UP = 0.05, 200
_LARGEST_GRADIENT = 1.0
_TRIES = 3
_WORTH = 1.1  # bfloat16 has to be faster by this factor
_AVERAGED = 200  # steps that the average of the weights reaches back


class Schedule(NamedTuple):
    """Learning rate by step.

    The rate is constant until the decay begins, so that a longer training can continue from there
    as if it had been longer from the start.
    """

    steps: int
    rate: float

    @property
    def decay_from(self) -> int:
        """The first step of the decay."""
        return self.steps - int(self.steps * _DECAY_SHARE)

    def at(self, step: int) -> float:
        """Return the rate of a step."""
        warm_up = max(1, min(_MOST_WARM_UP, int(self.steps * _WARM_UP_SHARE)))
        rising = min(1.0, (step + 1) / warm_up)
        falling = (self.steps - step) / max(1, self.steps - self.decay_from)
        return self.rate * min(rising, falling)


class Acceptance(NamedTuple):
    """Held-out acceptance of each proposal of a block, if all before it were accepted.

    Attributes:
        greedy: at temperature 0.
        sampled: at temperature 1, without filters.
    """

    greedy: list[float]
    sampled: list[float]


class State(NamedTuple):
    """The state of a training, for display."""

    step: int
    steps: int
    loss: float
    kl: float
    tokens_per_second: float
    seconds_left: float
    acceptance: Acceptance | None


class Trainer:
    """Trains a draft; resumes from the checkpoints of a folder.

    Args:
        draft: freshly made; overwritten by a checkpoint in the folder.
        batches: to train on.
        held_out: batches to measure acceptance on.
        schedule: how long and how fast.
        folder: for checkpoints.
        show: called after every step.
        bfloat16: multiply matrices in that type.
        evaluate_every, save_every: seconds.
    """

    def __init__(
        self,
        draft: Draft,
        batches: Batches,
        held_out: Sequence[Batch],
        schedule: Schedule,
        folder: Path,
        show: Callable[[State], None] = lambda state: None,
        *,
        bfloat16: bool = False,
        evaluate_every: float = 120.0,
        save_every: float = 120.0,
    ) -> None:
        self.draft, self.schedule = draft, schedule
        self._batches, self._held_out = batches, held_out
        self._folder, self._show, self._bfloat16 = folder, show, bfloat16
        self._evaluate_every, self._save_every = evaluate_every, save_every
        parameters = [p for p in draft.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            parameters, lr=schedule.rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._weights = parameters
        self._average = [p.detach().clone() for p in parameters]
        self.step = 0
        self.tokens = 0
        self.curve: list[dict[str, Any]] = []
        self._load()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the draft the average of its weights meanwhile."""
        own = [p.detach().clone() for p in self._weights]
        self._set(self._average)
        try:
            yield
        finally:
            self._set(own)

    def run(self, until: int | None = None) -> None:
        """Train to this step, or to the end of the schedule.

        Raises:
            KeyboardInterrupt: interrupted; what was learned is on disk.
        """
        last = self.schedule.steps if until is None else until
        clock = saved = evaluated = perf_counter()
        speed = 0.0
        acceptance: Acceptance | None = None
        try:
            while self.step < last:
                if self.step == self.schedule.decay_from:
                    self._save("plateau.pt")
                with held_interrupts():
                    loss, kl, count = self._one_step()
                now = perf_counter()
                speed = (
                    count / (now - clock)
                    if not speed
                    else speed + 0.05 * (count / (now - clock) - speed)
                )
                if now - evaluated > self._evaluate_every or self.step == last:
                    with self.averaged():
                        acceptance = measure_acceptance(self.draft, self._held_out)
                    self._note(loss, kl, acceptance)
                    evaluated = perf_counter()
                left = (self.schedule.steps - self.step) * count / speed
                self._show(State(self.step, self.schedule.steps, loss, kl, speed, left, acceptance))
                if now - saved > self._save_every:
                    self._save("latest.pt")
                    saved = perf_counter()
                clock = perf_counter()
        finally:
            self._save("latest.pt")

    def _one_step(self) -> tuple[float, float, int]:
        for group in self._optimizer.param_groups:
            group["lr"] = self.schedule.at(self.step)
        batch = self._batches.batch(self.step)
        self._optimizer.zero_grad(set_to_none=True)
        with precision(self._bfloat16):
            losses = self.draft.losses(batch)
        losses.total.backward()
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), _LARGEST_GRADIENT)
        self._optimizer.step()
        reach = min(_AVERAGED, self.step + 1)
        torch._foreach_lerp_(self._average, [p.detach() for p in self._weights], 1 / reach)
        self.step += 1
        self.tokens += int(batch.judged.sum())
        return float(losses.total.detach()), losses.kl, batch.tokens.size

    def _set(self, values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._weights, values, strict=True):
                parameter.copy_(value)

    def _note(self, loss: float, kl: float, acceptance: Acceptance) -> None:
        self.curve.append(
            {
                "step": self.step,
                "tokens": self.tokens,
                "loss": round(loss, 4),
                "kl": round(kl, 4),
                "greedy": [round(a, 4) for a in acceptance.greedy],
                "sampled": [round(a, 4) for a in acceptance.sampled],
            }
        )

    # -- checkpoints ------------------------------------------------------------------------

    def _save(self, name: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        state = {
            "draft": self.draft.state_dict(),
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "steps": self.schedule.steps,
            "tokens": self.tokens,
            "curve": self.curve,
        }
        target = self._folder / name
        with replacing(target, durable=True, alone=True) as draft, draft.open("wb") as file:
            torch.save(state, file)

    def _load(self) -> None:
        state = self._read("latest.pt")
        if state is None:
            return
        begun = Schedule(state["steps"], self.schedule.rate).decay_from
        if state["steps"] < self.schedule.steps and state["step"] > begun:
            # The schedule has become longer: undo the decay of the shorter one.
            state = self._read("plateau.pt") or state
        self.draft.load_state_dict(state["draft"])
        self._average = state["average"]
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.curve = state["step"], state["tokens"], state["curve"]

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._folder / name
        if not path.exists():
            return None
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return state


@torch.no_grad()  # type: ignore[untyped-decorator]
def measure_acceptance(draft: Draft, batches: Sequence[Batch]) -> Acceptance:
    """Measure acceptance by position over some batches."""
    judged = [draft.judge(batch) for batch in batches]
    if not judged:
        return Acceptance([0.0] * POSITIONS, [0.0] * POSITIONS)
    positions = range(len(judged[0]))
    return Acceptance(
        by_position([torch.cat([j[i].greedy for j in judged]) for i in positions]),
        by_position([torch.cat([j[i].overlap for j in judged]) for i in positions]),
    )


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
