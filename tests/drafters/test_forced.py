"""Forced tokens before, and behind, what a drafter proposes."""

from __future__ import annotations

import numpy as np

from edgespec.control.controller import DraftBudget, fixed_budget
from edgespec.drafters.composed import ForcedTokens
from edgespec.drafters.protocol import NoDrafter, Proposal
from edgespec.grammars import Likely

TEXT = [1, 2, 3]


class Script:
    """Expects some tokens by place, and forbids one."""

    def __init__(self, likely, forbidden=-1):
        self._likely, self._forbidden = likely, forbidden

    def expect(self, proposals, last):
        assert last == [*TEXT, *proposals.tolist()][-1]
        found = self._likely.get(len(proposals))
        return found and Likely(*found)

    def walk(self, proposals):
        tokens = proposals.tolist()
        return tokens.index(self._forbidden) if self._forbidden in tokens else len(tokens)


class Continuing(NoDrafter):
    name = "continuing"

    def __init__(self, tokens, q=None):
        self._tokens, self._q = tokens, q

    def extend(self, history, length, budget, given):
        tokens = self._tokens[: budget.limit - given]
        history[length + given : length + given + len(tokens)] = tokens
        budget.acceptance[given : given + len(tokens)] = 0.8
        size = given + len(tokens)
        return Proposal(size) if self._q is None else Proposal(size, self._q)


def propose(script, drafter, budget):
    history = np.full(32, -1, np.int32)
    history[: len(TEXT)] = TEXT
    forced = ForcedTokens(script, drafter)
    size, q, _ = forced.propose(history, len(TEXT), budget)
    return history[len(TEXT) : len(TEXT) + size].tolist(), forced.name, q


def costs(step, limit=8):
    return DraftBudget(limit, 1.0 + step * np.arange(limit + 1), np.ones(limit))


def test_forced_then_the_drafter_then_forced_again():
    script = Script({0: (10, 1.0), 1: (11, 0.9), 4: (12, 0.9)})
    tokens, name, _ = propose(script, Continuing([20, 21]), fixed_budget(8))
    assert tokens == [10, 11, 20, 21, 12]
    assert name == "continuing"


def test_what_is_unlikely_is_left_to_the_drafter():
    tokens, _, _ = propose(Script({0: (10, 0.3)}), Continuing([20]), fixed_budget(8))
    assert tokens == [20]


def test_nothing_stands_behind_a_forbidden_token():
    script = Script({0: (10, 1.0), 2: (11, 1.0)}, forbidden=21)
    tokens, _, _ = propose(script, Continuing([20, 21, 22]), fixed_budget(8))
    assert tokens == [10, 20, 11]


def test_drawn_proposals_are_left_as_they_are():
    """Whether one of them is dropped must not depend on what it is."""
    q = np.full((3, 32), 1 / 32, np.float32)
    script = Script({0: (10, 1.0), 3: (11, 1.0)}, forbidden=21)
    tokens, _, got = propose(script, Continuing([20, 21], q), fixed_budget(8))
    assert tokens == [10, 20, 21]
    assert got is q


def test_the_limit_holds_and_costs_decide():
    script = Script({place: (10 + place, 0.9) for place in range(20)})
    nothing = NoDrafter()
    assert len(propose(script, nothing, fixed_budget(5))[0]) == 5
    assert propose(script, nothing, fixed_budget(0))[0] == []
    assert len(propose(script, nothing, costs(0.05))[0]) > 4
    assert propose(script, nothing, costs(2.0))[0] == []
    assert propose(script, nothing, costs(0.05))[1] == "grammar"
