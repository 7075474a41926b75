"""Recycled logits: what is remembered, followed, and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.control.controller import DraftBudget, fixed_budget
from edgespec.drafters.recycle import RecycleDrafter
from edgespec.sampling.softmax import best_two

SIZE = 50


def rows(*successors, margin=6.0):
    logits = np.random.default_rng(0).normal(0, 0.1, (len(successors), SIZE)).astype(np.float32)
    for row, token in zip(logits, successors, strict=True):
        row[token] = margin
    return logits


def read(drafter, text, history):
    """Commit a text token by token, each with the row that it was the likeliest of."""
    for position, token in enumerate(text):
        history[position] = token
        drafter.commit(history, position + 1)
        if position:
            drafter.observe(history, position, rows(token))


def follow(drafter, history, length, budget, given=0):
    size = drafter.extend(history, length, budget, given).size
    return history[length : length + size].tolist()


def test_a_pair_tells_more_than_a_token():
    drafter, history = RecycleDrafter(SIZE), np.full(64, -1, np.int32)
    text = [1, 5, 6, 7, 2, 5, 8, 9, 1, 5]
    read(drafter, text, history)
    assert follow(drafter, history, len(text), fixed_budget(3)) == [6, 7, 2]
    history[len(text)] = 2  # given; behind it stands what the pair (2, 5) told
    assert follow(drafter, history, len(text), fixed_budget(4), given=1)[:2] == [2, 5]


def test_nothing_is_known_of_another_text():
    drafter, history = RecycleDrafter(SIZE), np.full(64, -1, np.int32)
    text = [1, 5, 6, 7, 1, 5]
    read(drafter, text, history)
    assert follow(drafter, history, len(text), fixed_budget(2)) == [6, 7]
    drafter.rewind(2)  # as for another conversation with the same beginning
    assert follow(drafter, history, len(text), fixed_budget(2)) == []


def test_costs_decide_and_experience_counts():
    dear = DraftBudget(4, 1.0 + np.arange(5), np.ones(4))
    cheap = DraftBudget(4, 1.0 + 0.05 * np.arange(5), np.ones(4))
    drafter, history = RecycleDrafter(SIZE), np.full(400, -1, np.int32)
    text = [1, 2, 3, 4] * 20
    read(drafter, text, history)
    assert follow(drafter, history, len(text), dear) == []
    assert follow(drafter, history, len(text), cheap) == [1, 2, 3, 4]
    assert cheap.acceptance[0] > 0.8
    assert drafter.rate(cheap, len(text)) > 1.0
    assert drafter.rate(cheap, len(text) + 1) == 0.0


def test_memory_is_what_is_stated():
    assert RecycleDrafter(49152).nbytes < 5 * 49152 + (7 << 16) + (1 << 17)


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 3000])
def test_the_best_two_of_a_row(size):
    random = np.random.default_rng(size)
    for _ in range(20):
        row = random.normal(size=size).astype(np.float32)
        if size > 2:
            row[random.integers(size)] = -np.inf
        best, margin = best_two(row)
        assert best == int(row.argmax())
        if size > 1:
            first, second = np.sort(row)[::-1][:2]
            assert margin == pytest.approx(float(first - second))
    row[0] = np.nan
    assert best_two(row)[0] == -1
    assert best_two(np.full(size, -np.inf, np.float32))[0] == -1
