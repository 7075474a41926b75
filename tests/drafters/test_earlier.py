"""Earlier texts: bounded, the newest kept, and nothing goes from one into the next."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control.controller import fixed_budget
from edgespec.drafters import EarlierTexts, PromptLookupDrafter


def proposed(text, *sources, limit=8, given=0):
    drafter = PromptLookupDrafter(128, threshold=0.05)
    drafter.consult(sources)
    history = np.full(160, -7, np.int32)
    history[: len(text)] = text
    length = len(text) - given
    drafter.commit(history, length)
    budget = fixed_budget(limit)
    count = drafter.extend(history, length, budget, given).size
    return history[length : length + count].tolist()


def holding(*texts, limit=1000):
    source = EarlierTexts(limit)
    for text in texts:
        source.add(text)
    return source


def test_copies_what_followed_in_an_earlier_text():
    assert proposed([1, 2, 3], holding([9, 1, 2, 3, 4, 5, 6])) == [4, 5, 6]
    assert proposed([1, 2, 3]) == []


def test_goes_on_behind_proposals():
    assert proposed([1, 2, 3, 4], holding([1, 2, 3, 4, 5]), given=2) == [3, 4, 5]


def test_nothing_goes_from_one_text_into_the_next():
    source = holding([9, 1, 2, 3], [7, 8])
    assert proposed([1, 2, 3], source) == []
    assert proposed([9, 1, 2], source) == [3]
    assert proposed([5, 9], source) == [1, 2, 3]


def test_the_texts_own_match_is_preferred_and_the_longer_one_wins():
    source = holding([1, 2, 5, 5])
    assert proposed([1, 2, 4, 4, 9, 1, 2], source, limit=2)[0] == 4
    longer = holding([6, 9, 1, 2, 5, 5])
    assert proposed([1, 2, 4, 4, 3, 3, 6, 9, 1, 2], longer, limit=1) == [5]


def test_another_source_takes_the_place_of_the_first():
    drafter = PromptLookupDrafter(64)
    history = np.full(80, -7, np.int32)
    history[:3] = [1, 2, 3]
    for source, expected in ((holding([1, 2, 3, 4]), 4), (holding([1, 2, 3, 5]), 5)):
        drafter.consult([source])
        drafter.commit(history, 3)
        assert drafter.propose(history, 3, fixed_budget(1)).size == 1
        assert history[3] == expected
    drafter.consult([])
    assert drafter.propose(history, 3, fixed_budget(1)).size == 0


def test_what_is_added_is_found_from_the_next_consultation_on():
    source, drafter = holding([4]), PromptLookupDrafter(64)
    history = np.full(80, -7, np.int32)
    history[:3] = [1, 2, 3]
    drafter.consult([source])
    drafter.commit(history, 3)
    source.add([1, 2, 3, 4])
    assert drafter.propose(history, 3, fixed_budget(1)).size == 0
    drafter.consult([source])
    assert drafter.propose(history, 3, fixed_budget(1)).size == 1


@pytest.mark.parametrize("limit", [0, 1, 2, 9, 100])
def test_the_limit_holds_and_the_newest_stays(limit):
    source = EarlierTexts(limit)
    for start in range(0, 300, 5):
        source.add(list(range(start, start + 4)))
        if start % 3 == 0:
            source.settle()
        assert source.size <= limit
    source.settle()
    kept = source.tokens[: source.size].tolist()
    assert kept[-2:] == ([298, -1] if limit >= 2 else [])
    full = EarlierTexts(limit)
    full.add(np.arange(1000))
    full.settle()
    assert full.size == (limit if limit >= 2 else 0)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=12),
    text=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    limit=st.integers(2, 60),
)
def test_a_proposal_continues_a_text_that_is_still_kept(texts, text, limit):
    """Each proposed pair stands in the text or in a text that is kept."""
    source = EarlierTexts(limit)
    for each in texts:
        source.add(each)
        source.settle()
    got = proposed(text, source)
    kept = source.tokens[: source.size].tolist()
    pairs = {pair for pair in pairwise(kept) if -1 not in pair} | set(pairwise(text))
    if got:
        assert (text[-1], got[0]) in pairs
        assert min(got) >= 0
        assert len(source.tokens) <= limit


def test_memory_is_told():
    source = holding(list(range(400)))
    source.settle()
    assert source.size == 401
    assert source.nbytes > 4 * source.size
