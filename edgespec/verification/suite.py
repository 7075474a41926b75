"""Run all checks on an open engine, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from edgespec.backend import Context
from edgespec.drafters import ComposedDrafter, EarlierTexts
from edgespec.runtime.drafting import prompt_lookup_of
from edgespec.runtime.engine import Engine
from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters
from edgespec.verification.cache import check_cache
from edgespec.verification.checks import (
    CheckResult,
    Progress,
    Prompt,
    make_prompts,
    not_applicable,
    silent,
)
from edgespec.verification.identity import (
    LARGEST_BATCH,
    check_coupled,
    check_greedy,
    check_invariance,
)
from edgespec.verification.rejection import Trial, check_rejection, make_trials
from edgespec.verification.trees import check_trees, check_typical, proposing_trees, tree_drafter

__all__ = ["CHECKS", "FULL", "QUICK", "Effort", "Timed", "run_checks"]

CHECKS = ("invariance", "greedy", "coupled", "rejection", "trees", "cache")

_ANSWERED, _EARLIER = 4, 24  # prompts whose answers are looked up, and tokens of such an answer

_NO_ROLLBACK = "this model's cache cannot be rolled back, so nothing is speculated"
_NO_TREES = "nothing to compare: no trees are proposed"
_NO_DRAFTER = "nothing to compare: no drafter is in use"


@dataclass(frozen=True)
class Effort:
    """How much to check.

    Attributes:
        depths: tokens before a batch, for invariance.
        answer: most tokens of an answer.
        prefixes: how many, to test rejection sampling at.
        draws: at each prefix, for each set of filters.
        cycles: before caches are compared.
    """

    depths: tuple[int, ...] = (40, 300, 1200)
    answer: int = 48
    prefixes: int = 6
    draws: int = 20_000
    cycles: int = 60


FULL = Effort()
QUICK = Effort(depths=(40, 300), answer=12, prefixes=4, cycles=40)


@dataclass(frozen=True)
class Timed:
    """A result and the seconds it took."""

    result: CheckResult
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the result's object with its seconds."""
        return {**self.result.as_json(), "seconds": round(self.seconds, 2)}


def run_checks(
    engine: Engine,
    effort: Effort = FULL,
    progress: Progress = silent,
    *,
    typical: bool = False,
) -> Iterator[Timed]:
    """Yield results in the order of `CHECKS`, each as soon as it is there.

    With `typical`, what typical acceptance loses comes last.
    The engine must not generate meanwhile; its caches are empty afterwards.

    Raises:
        NumericalError: the model produces NaN or infinite logits.
        BackendError: llama.cpp failed.
    """
    can_roll_back = engine.target.can_truncate()
    prompts = make_prompts(engine, engine.context_length // 2)
    run = _Suite(engine, effort, prompts, can_roll_back)
    _look_up(engine, prompts)
    try:
        names = (*CHECKS, "typical") if typical else CHECKS
        for number, name in enumerate(names, 1):
            started = perf_counter()
            with proposing_trees(engine.drafter):
                result = run.check(name, _told(progress, f"{number}/{len(names)} {name}"))
            yield Timed(result, perf_counter() - started)
    finally:
        engine.forget()


def _look_up(engine: Engine, prompts: list[Prompt]) -> None:
    """Let prompt lookup copy from earlier texts too: answers of the same and of other prompts."""
    lookup = prompt_lookup_of(engine.drafter)
    if lookup is None:
        return
    earlier = EarlierTexts(sum(len(prompt.tokens) + _EARLIER + 1 for prompt in prompts))
    sampling = SamplingParameters(temperature=0.0)
    for prompt in prompts[:_ANSWERED]:
        stream = engine.generate(prompt.tokens, sampling, GenerationLimits(max_tokens=_EARLIER))
        earlier.add(stream.result.tokens)
    for prompt in prompts[_ANSWERED:]:
        earlier.add(prompt.tokens)
    lookup.consult([earlier] if engine.lookup is None else [engine.lookup, earlier])


def _told(progress: Progress, name: str) -> Progress:
    return lambda words: progress(f"{name}: {words}")


@dataclass(frozen=True)
class _Suite:
    engine: Engine
    effort: Effort
    prompts: list[Prompt]
    can_roll_back: bool

    def check(self, name: str, progress: Progress) -> CheckResult:
        if name in ("rejection", "typical"):
            return self._frequencies(name, progress)
        if not self.can_roll_back:
            return not_applicable(name, _NO_ROLLBACK)
        if name == "invariance":
            return self._invariance(progress)
        if name == "trees":
            return self._trees(progress)
        if name == "cache":
            return self._cache(progress)
        return self._texts(check_greedy if name == "greedy" else check_coupled, name, progress)

    def _invariance(self, progress: Progress) -> CheckResult:
        """Check in a context opened like the target's, with more rows of output."""
        target, k = self.engine.target, self.engine.largest_k
        largest = max(LARGEST_BATCH, k + 1)
        needed = max(self.effort.depths) + largest
        text = np.resize(np.concatenate([prompt.tokens for prompt in self.prompts]), needed)
        options = replace(target.options, length=min(target.capacity, needed), outputs=largest)
        with Context(target.model, options) as context:
            return check_invariance(context, text, k, self.effort.depths, progress)

    def _texts(
        self, check: Callable[..., CheckResult], name: str, progress: Progress
    ) -> CheckResult:
        engine = self.engine
        if not engine.drafter.speculates:
            return not_applicable(name, _NO_DRAFTER)
        return check(
            engine.target,
            engine.drafter,
            engine.largest_k,
            self.prompts,
            self.effort.answer,
            progress=progress,
        )

    def _frequencies(self, name: str, progress: Progress) -> CheckResult:
        progress("looking for prefixes")
        check = check_rejection if name == "rejection" else check_typical
        threads = self.engine.target.options.threads
        return check(self._trials, self.effort.draws, threads=threads, progress=progress)

    @cached_property
    def _trials(self) -> list[Trial]:
        engine, prompts = self.engine, self.prompts[: self.effort.prefixes]
        return make_trials(engine.target, engine.drafter, prompts)

    def _trees(self, progress: Progress) -> CheckResult:
        engine = self.engine
        if tree_drafter(engine.drafter) is None:
            return not_applicable("trees", _NO_TREES)
        return check_trees(
            engine.target,
            self.prompts[: self.effort.prefixes],
            self._trials,
            self.effort.draws // 2,
            threads=engine.target.options.threads,
            progress=progress,
        )

    def _cache(self, progress: Progress) -> CheckResult:
        """Check the target's cache even without a drafter, at the k asked for."""
        engine = self.engine
        drafts, drafter = engine.drafter.speculates, engine.drafter
        if isinstance(drafter, ComposedDrafter):
            drafter = drafter.model  # prompt lookup has no cache
        return check_cache(
            engine.target,
            drafter,
            engine.largest_k if drafts else engine.options.most,
            self.prompts[0],
            self.effort.cycles,
            progress=progress,
        )
