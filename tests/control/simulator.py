"""Decoding without models: a text that is known beforehand, costs that are made up, no clock.

The policy, the stopping, the calibration, prompt lookup and their composition are the real ones.
Simulated are the target (it says what the text says), a draft (for every position of the text it
is decided beforehand whether it is right there and how sure it is), and time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from edgespec._types import BoolArray, Float64Array, Int32Array
from edgespec.control.controller import (
    AdaptivePolicy,
    CycleTiming,
    DraftBudget,
    FixedPolicy,
    Policy,
)
from edgespec.control.costs import CostTable, make_cost_table
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.composed import ComposedDrafter
from edgespec.drafters.prompt_lookup import PromptLookupDrafter
from edgespec.drafters.protocol import Drafter, NoDrafter, Proposal
from edgespec.speculation.acceptance import DrawSettings

K = 15
"""The most proposals of a cycle."""

FIXED = (1, 2, 3, 5, 7, 10, 15)
"""Block lengths among which hindsight looks for the best."""

_READING = 0.2  # of a draft's step, for each token that it reads in a batch


class Machine(NamedTuple):
    """What evaluations really take.

    Attributes:
        v: cost of n = 1, 2, ... K + 1 tokens, v[0] = 1.
        token_s: seconds of one token at depth 0.
        deeper: share by which 1,000 tokens in the cache make it slower.
        switch_s: seconds more when n is not that of the evaluation before.
        throttled: factor on all costs, in the second half of the text.
        noise: standard deviation of the log of what a clock shows.
        outliers: share of measurements that show three times as much.
    """

    v: tuple[float, ...]
    token_s: float = 0.012
    deeper: float = 0.1
    switch_s: float = 0.0015
    throttled: float = 1.0
    noise: float = 0.05
    outliers: float = 0.01

    def believed(self, error: Sequence[float] = (1.0,), measured: bool = True) -> CostTable:
        """What a measurement found, or is believed without one, off by a factor for each n."""
        sizes = range(1, K + 2)
        errors = np.resize(np.array(error), K + 1)
        rows = [
            [self.token_s * self.v[n - 1] * errors[n - 1] * self._depth(depth) for n in sizes]
            for depth in (40, 272)
        ]
        switch_s = [self.switch_s] * (K + 1)
        return make_cost_table([40, 272], list(sizes), rows, switch_s, K + 1, measured=measured)

    def evaluation_s(self, n: int, last: int, depth: int, late: bool) -> float:
        """Seconds of evaluating n tokens after an evaluation of `last`."""
        seconds = self.token_s * self.v[n - 1] * self._depth(depth)
        return (seconds + self.switch_s * (n != last)) * (self.throttled if late else 1.0)

    def _depth(self, depth: int) -> float:
        return 1.0 + self.deeper * depth / 1000.0


class Draft(NamedTuple):
    """A small model, decided beforehand for every position of a text.

    Attributes:
        c: its step, as a share of the target's.
        hits: bool (n,), whether it would propose the text's token behind the text before it.
        confidence: float64 (n,), how sure it is there.
        stray: float64 (n,), how sure it is behind something else than the text.
    """

    c: float
    hits: BoolArray
    confidence: Float64Array
    stray: Float64Array


class Case(NamedTuple):
    """One text on one machine.

    Attributes:
        text: int32 (n,), prompt and answer.
        prompt: tokens of it that are given.
        machine: what evaluations take.
        error: factors by which the measured costs are off, for n = 1, 2, ...; repeated.
        draft: None for prompt lookup alone.
        draft_error: factor by which the draft's measured costs are off.
    """

    name: str
    text: Int32Array
    prompt: int
    machine: Machine
    error: tuple[float, ...] = (1.0,)
    draft: Draft | None = None
    draft_error: float = 1.0
    seed: int = 0


class Outcome(NamedTuple):
    """Seconds that a policy took, and how many tokens each cycle proposed and emitted."""

    seconds: float
    proposed: list[int]
    emitted: list[int]
    cycle_s: list[float]


class _Clock:
    """Simulated time; what is measured of it is noisy."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._rng = np.random.default_rng(case.seed)
        self.now = 0.0
        self.late = False

    def pass_time(self, seconds: float) -> float:
        """Go on; returns what a measurement of it would show."""
        self.now += seconds
        machine = self._case.machine
        shown = seconds * float(np.exp(self._rng.normal(0.0, machine.noise)))
        return shown * (3.0 if self._rng.random() < machine.outliers else 1.0)


class SimulatedDrafter:
    """Proposes what a `Draft` would, with a real `DraftStopping`; follows `ContinuingDrafter`."""

    name = "model"

    def __init__(self, case: Case, clock: _Clock) -> None:
        assert case.draft is not None
        self._draft, self._text, self._clock = case.draft, case.text, clock
        self._step_s = case.machine.token_s * case.draft.c
        self._throttled = case.machine.throttled
        believed = self._step_s * case.draft_error
        self.stopping = DraftStopping(believed, believed * _READING, K)
        self._cached = 0
        self.shown_s = 0.0

    def begin(self, settings: DrawSettings) -> None: ...

    def rate(self, budget: DraftBudget, length: int) -> float:
        return self.stopping.rate(budget, length - 1 - self._cached)

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        return self.extend(history, length, budget, 0)

    def grows(self, budget: DraftBudget) -> bool:
        return False

    def propose_beside(
        self, history: Int32Array, length: int, budget: DraftBudget, given: int
    ) -> Proposal:
        return self.extend(history, length, budget, given)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        self.stopping.begin(budget, length - 1 - self._cached, given)
        count = given
        right = bool((history[length : length + given] == self._text[length:][:given]).all())
        while self.stopping.another():
            position = length + count
            self._evaluate(position)
            draft = self._draft
            self.stopping.add(float((draft.confidence if right else draft.stray)[position]))
            right = right and bool(draft.hits[position])
            history[position] = self._text[position] if right else -1
            count += 1
        return Proposal(self.stopping.size)

    def _evaluate(self, length: int) -> None:
        """Read what is missing of so many tokens."""
        missing = length - self._cached
        seconds = self._step_s * (1.0 if missing <= 2 else max(1.0, _READING * missing))
        shown = self._clock.pass_time(seconds * (self._throttled if self._clock.late else 1.0))
        self.shown_s += shown
        self.stopping.timed(missing, shown)
        self._cached = length

    def learn(self, accepted: int, judged: int) -> None:
        self.stopping.learn(accepted, judged)

    def commit(self, history: Int32Array, length: int) -> None:
        self._cached = min(self._cached, length - 1)

    def rewind(self, length: int) -> None: ...

    def cancel(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class _LookupFirst(ComposedDrafter):
    """For hindsight: prompt lookup at a fixed length, the model where it finds nothing."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        self._given = self.lookup.propose(history, length, budget).size
        if self._given:
            return Proposal(self._given)
        return self.model.extend(history, length, budget, 0)

    def learn(self, accepted: int, judged: int) -> None: ...


MakeDrafter = Callable[[Case, _Clock], Drafter]


def _plain(case: Case, clock: _Clock) -> Drafter:
    return NoDrafter()


def _lookup(case: Case, clock: _Clock) -> Drafter:
    return PromptLookupDrafter(len(case.text) + K + 1)


def _model(case: Case, clock: _Clock) -> Drafter:
    return SimulatedDrafter(case, clock)


def _lookup_first(case: Case, clock: _Clock) -> Drafter:
    return _LookupFirst(PromptLookupDrafter(len(case.text) + K + 1), SimulatedDrafter(case, clock))


def _composed(case: Case, clock: _Clock) -> Drafter:
    return ComposedDrafter(
        PromptLookupDrafter(len(case.text) + K + 1), SimulatedDrafter(case, clock)
    )


def decode(case: Case, policy: Policy, make: MakeDrafter, k: int) -> Outcome:
    """The cycle of `runtime.decoder`, on a text that is known."""
    clock = _Clock(case)
    drafter = make(case, clock)
    text, end = case.text, len(case.text)
    history = np.zeros(end + K + 1, np.int32)
    length = case.prompt
    history[:length] = text[:length]
    model = getattr(drafter, "model", drafter)
    outcome = Outcome(0.0, [], [], [])
    last = 1
    while length < end:
        began, before_s = clock.now, getattr(model, "shown_s", 0.0)
        clock.late = length - case.prompt > (end - case.prompt) // 2
        budget = policy.budget(length - 1, min(k, end - length - 1))
        count = drafter.propose(history, length, budget).size
        draft_s = getattr(model, "shown_s", 0.0) - before_s
        seconds = case.machine.evaluation_s(count + 1, last, length - 1, clock.late)
        verify_s = clock.pass_time(seconds)
        wrong = np.flatnonzero(history[length : length + count] != text[length : length + count])
        accepted = int(wrong[0]) if len(wrong) else count
        drafter.learn(accepted, count)
        history[: length + accepted + 1] = text[: length + accepted + 1]
        length += accepted + 1
        drafter.commit(history, length)
        depth = length - accepted - 2
        policy.observe(CycleTiming(depth, count + 1, count, accepted + 1, draft_s, verify_s))
        last = count + 1
        outcome.proposed.append(count)
        outcome.emitted.append(accepted + 1)
        outcome.cycle_s.append(clock.now - began)
    return outcome._replace(seconds=clock.now)


def plain(case: Case) -> float:
    """Seconds without speculation."""
    return decode(case, FixedPolicy(0), _plain, 0).seconds


def adaptive(case: Case, measured: bool = True) -> Outcome:
    """As an engine does that knows the measured costs and nothing else yet."""
    policy = AdaptivePolicy(case.machine.believed(case.error, measured), K)
    return decode(case, policy, _composed if case.draft else _lookup, K)


def fixed(case: Case) -> dict[str, float]:
    """Seconds of every fixed policy."""
    seconds = {"plain": plain(case)}
    makers = {"lookup": _lookup}
    if case.draft:
        makers.update({"model": _model, "lookup, model": _lookup_first})
    for name, make in makers.items():
        for k in FIXED:
            seconds[f"{name} {k}"] = decode(case, FixedPolicy(k), make, k).seconds
    return seconds
