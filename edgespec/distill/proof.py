"""What a draft is worth on this machine: acceptance, costs, and the speed that comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec._types import Int32Array
from edgespec.backend import Context, ContextOptions, Model
from edgespec.benchmark.measuring import run_task
from edgespec.benchmark.tasks import choose_tasks, own_tasks
from edgespec.distill.train import Acceptance
from edgespec.errors import ContextFullError
from edgespec.runtime.drafting import draft_with, pair
from edgespec.tuning.measure import measure_cost

__all__ = ["Costs", "Speeds", "measure_costs", "measure_speeds", "measure_tasks"]


_LENGTH, _DEPTH, _SIZES = 512, 256, tuple(range(1, 9))
_ANSWER = 96
_BLOCK, _CONTEXT = 4, 1024


@dataclass(frozen=True)
class Costs:
    """In seconds.

    Attributes:
        verify: of an evaluation by the target, of 1, 2, 3 ... tokens.
        step: of drafting one token, for each of the files.
    """

    verify: list[float]
    step: list[float]

    @property
    def v(self) -> list[float]:
        """v(1), v(2), v(3) ..."""
        return [seconds / self.verify[0] for seconds in self.verify]

    def c(self, file: int) -> float:
        """Cost of a step of one of the files, in the target's."""
        return self.step[file] / self.verify[0]


@dataclass(frozen=True)
class Speeds:
    """Tokens by the second of decoding, plain and with the draft."""

    temperature: float
    plain: float
    speculative: float
    acceptance_rate: float | None

    @property
    def speedup(self) -> float:
        """How many times faster."""
        return self.speculative / self.plain if self.plain else 0.0

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {**asdict(self), "speedup": self.speedup}


def measure_costs(target: Path, drafts: Sequence[Path], threads: int) -> Costs:
    """Open all of them and time their steps."""
    options = ContextOptions(length=_LENGTH, threads=threads, outputs=max(_SIZES))
    steps = []
    with Model(target) as model, Context(model, options) as context:
        verify = measure_cost(context, _DEPTH, _SIZES)
        for path in drafts:
            draft = Model(path)
            found = pair(model.header, draft.header)
            drafter = draft_with(
                draft, context, found, ContextOptions(length=_LENGTH, threads=threads), 1
            )
            steps.append(drafter.stopping.step_s)
            drafter.close()
    return Costs([verify[n] for n in _SIZES], steps)


def measure_speeds(
    target: Path, draft: Path, prompts: Sequence[Int32Array], threads: int
) -> list[Speeds]:
    """Answers to held-out prompts by both, in turn, at temperatures 0 and 0.8."""
    options = {"context": _CONTEXT, "threads": threads}
    with (
        Engine(target, EngineOptions(draft="none", **options)) as plain,  # type: ignore[arg-type]
        Engine(target, EngineOptions(draft=str(draft), **options)) as fast,  # type: ignore[arg-type]
    ):
        return [_compare(plain, fast, prompts, temperature) for temperature in (0.0, 0.8)]


def measure_tasks(target: Path, draft: Path, threads: int) -> Acceptance | None:
    """Acceptance by position in blocks of four, in answers to some of edgespec's own tasks.

    They are by another hand than the text that the target made up, and so are a user's. None if
    the target cannot answer any: it has no chat template, or a very short context.
    """
    choices = EngineOptions(draft=str(draft), k=_BLOCK, context=_CONTEXT, threads=threads)
    with Engine(target, choices) as engine:
        if not engine.header.chat_template:
            return None
        found = [_accepted(engine, temperature) for temperature in (0.0, 1.0)]
    return Acceptance(*found) if all(found) else None


def _accepted(engine: Engine, temperature: float) -> list[float]:
    tried, accepted = np.zeros(_BLOCK), np.zeros(_BLOCK)
    sampling = SamplingParameters(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    for task in choose_tasks(own_tasks(), limit=1):
        with suppress(ContextFullError):
            run = run_task(engine, task, sampling, _ANSWER)
            tried[: len(run.tried)] += run.tried
            accepted[: len(run.accepted)] += run.accepted
    judged = tried > 0
    return [float(share) for share in accepted[judged] / tried[judged]]


def _compare(
    plain: Engine, fast: Engine, prompts: Sequence[Int32Array], temperature: float
) -> Speeds:
    tokens, seconds = [0, 0], [0.0, 0.0]
    proposed = accepted = 0
    for seed, prompt in enumerate(prompts):
        for which, engine in enumerate((plain, fast)):
            sampling = SamplingParameters(temperature=temperature, seed=seed)
            stream = engine.generate(prompt, sampling, GenerationLimits(max_tokens=_ANSWER))
            statistics = stream.result.statistics
            tokens[which] += statistics.emitted
            seconds[which] += statistics.decode_s
            if engine is fast:
                proposed += statistics.proposed
                accepted += statistics.accepted
    rates = [count / took if took else 0.0 for count, took in zip(tokens, seconds, strict=True)]
    return Speeds(temperature, rates[0], rates[1], accepted / proposed if proposed else None)
