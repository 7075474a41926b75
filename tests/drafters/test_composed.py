"""Prompt lookup and a model in one: who begins, who goes on, who learns."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.control.controller import DraftBudget, fixed_budget
from edgespec.drafters.composed import ComposedDrafter
from edgespec.drafters.prompt_lookup import PromptLookupDrafter
from edgespec.drafters.protocol import Proposal

K = 8
REPEATED = [*range(20, 60), *range(20, 40)]  # goes on with 40, 41, ...
UNIQUE = list(range(60))


class Model:
    """A drafter that can be asked what it was asked."""

    name = "model"

    def __init__(self, rate, own=0):
        self._rate, self._own = rate, own
        self.calls = []

    def rate(self, budget, length):
        return self._rate

    def extend(self, history, length, budget, given):
        self.calls.append(("extend", given, history[length : length + given].tolist()))
        size = min(given + self._own, budget.limit)
        history[length + given : length + size] = 7
        return Proposal(size, np.ones((1, 1), np.float32))

    def grows(self, budget):
        return False

    def propose_beside(self, history, length, budget, given):
        return self.extend(history, length, budget, given)

    def propose(self, history, length, budget):
        raise AssertionError("only extend says what stands before")

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


def budget(slope=0.05):
    return DraftBudget(K, 1.0 + slope * np.arange(K + 1), np.ones(K))


def propose(model, text, allowed):
    history = np.full(200, -1, np.int32)
    history[: len(text)] = text
    drafter = ComposedDrafter(PromptLookupDrafter(200), model)
    proposal = drafter.propose(history, len(text), allowed)
    return drafter, history[len(text) : len(text) + proposal.size].tolist()


def test_copies_where_the_text_repeats_itself():
    model = Model(rate=1.0)
    drafter, tokens = propose(model, REPEATED, budget())
    assert len(tokens) >= 3
    assert tokens == list(range(40, 40 + len(tokens)))
    assert model.calls == [("extend", len(tokens), tokens)]
    assert drafter.name == "ngram"


def test_the_model_goes_on_behind_what_is_copied():
    model = Model(rate=1.0, own=2)
    drafter, tokens = propose(model, REPEATED, budget(slope=0.4))
    copied = model.calls[0][1]
    assert copied > 0
    assert tokens == [*range(40, 40 + copied), 7, 7][: len(tokens)]
    assert drafter.name == "model"


def test_the_model_begins_where_nothing_repeats():
    model = Model(rate=1.0, own=3)
    drafter, tokens = propose(model, UNIQUE, budget())
    assert tokens == [7, 7, 7]
    assert model.calls == [("extend", 0, [])]
    assert drafter.name == "model"


def test_the_model_begins_where_more_is_expected_of_it():
    model = Model(rate=1e9, own=3)
    _, tokens = propose(model, REPEATED, budget())
    assert tokens == [7, 7, 7]
    assert model.calls == [("extend", 0, [])]


def test_a_fixed_number_is_the_models():
    model = Model(rate=0.0, own=K)
    _, tokens = propose(model, REPEATED, fixed_budget(4))
    assert tokens == [7] * 4
    assert model.calls == [("extend", 0, [])]


def test_nothing_where_neither_pays():
    drafter, tokens = propose(Model(rate=0.0), UNIQUE, budget())
    assert tokens == []
    assert drafter.name == "ngram"


@pytest.mark.parametrize("slope", [0.05, 0.4, 5.0])
def test_both_follow_the_text(slope):
    model = Model(rate=0.0)
    drafter, _ = propose(model, REPEATED, budget(slope))
    history = np.array([*REPEATED, 40, 41, *range(100)], np.int32)
    drafter.learn(1, 2)
    drafter.commit(history, len(REPEATED) + 2)
    drafter.rewind(10)
    drafter.cancel()
    drafter.resume()
    drafter.close()
    names = [call[0] for call in model.calls]
    assert names == ["extend", "learn", "commit", "rewind", "cancel", "resume", "close"]
    assert model.calls[1] == ("learn", 1, 2)
    # The lookup has forgotten what was taken back: nothing of ten tokens repeats itself.
    assert drafter.propose(history, 10, budget()).size == 0
