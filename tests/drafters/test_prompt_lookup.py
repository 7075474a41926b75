"""Prompt lookup: what it proposes, and when it stays silent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.control.controller import fixed_budget
from edgespec.drafters.prompt_lookup import PromptLookupDrafter

ROOM = 16


def _history(text, capacity=512):
    history = np.full(capacity + ROOM, -1, np.int32)
    history[: len(text)] = text
    return history


def proposed(drafter, text, limit=8):
    history = _history(text)
    count, q, _ = drafter.propose(history, len(text), fixed_budget(limit))
    assert history[: len(text)].tolist() == list(text), "the committed text was changed"
    assert (history[len(text) + count :] == -1).all(), "written beyond the proposals"
    assert count <= limit
    assert q.shape == (0, 0)
    return history[len(text) : len(text) + count].tolist()


def test_copies_what_followed_the_last_time():
    text = [*range(20), 50, 51, *range(12)]
    assert proposed(PromptLookupDrafter(512, threshold=0.3), text) == list(range(12, 20))
    assert proposed(PromptLookupDrafter(512, threshold=0.3), text, limit=3) == [12, 13, 14]


def test_nothing_is_proposed_when_nothing_repeats():
    drafter = PromptLookupDrafter(512, threshold=0.0)
    assert proposed(drafter, []) == []
    for length in (1, 2, 50, 300):
        assert proposed(drafter, list(range(length))) == []


def test_no_budget_no_proposal():
    assert proposed(PromptLookupDrafter(512, threshold=0.0), [1, 2, 1, 2, 1, 2], limit=0) == []


@pytest.mark.parametrize("period", [1, 2, 3, 5])
def test_repetition_goes_on_beyond_the_end_of_the_text(period):
    text = [i % period for i in range(60)]
    expected = [(60 + i) % period for i in range(15)]
    assert proposed(PromptLookupDrafter(512, threshold=0.3), text, limit=15) == expected


def test_longer_matches_are_proposed_further():
    """A match of one token is not credible at the outset; one of twelve is."""
    short = [1, 2, 3, 4, 5, 6, 1]
    assert proposed(PromptLookupDrafter(512), short) == []
    long = [*range(30), 50, *range(12)]
    assert len(proposed(PromptLookupDrafter(512), long)) >= 2


def test_threshold_is_monotone_and_honoured():
    text = [*range(40), 50, *range(9)]
    counts = [
        len(proposed(PromptLookupDrafter(512, threshold=t), text, limit=15))
        for t in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.01)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 15 and counts[-1] == 0 and len(set(counts)) > 3


def test_credibility_rises_with_right_predictions_and_falls_with_wrong_ones():
    rng = np.random.default_rng(0)
    block = list(range(100, 104))
    end = [*block[:3]]
    right, wrong = [], []
    for i in range(40):
        filler = rng.integers(1000, 10**6, 3).tolist()
        right += filler + block
        wrong += [*filler, *block[:3], 200 + i]
    neutral = [*block, 1, 2, *end]
    assert proposed(PromptLookupDrafter(512, threshold=0.55), [*right, 5, *end], limit=1) == [103]
    assert proposed(PromptLookupDrafter(512, threshold=0.9), [*right, 5, *end], limit=1) == [103]
    assert proposed(PromptLookupDrafter(512, threshold=0.55), neutral, limit=1) == [103]
    assert proposed(PromptLookupDrafter(512, threshold=0.9), neutral, limit=1) == []
    assert proposed(PromptLookupDrafter(512, threshold=0.55), [*wrong, 5, *end], limit=1) == []


texts = st.builds(
    lambda seed, alphabet, length: (
        np.random.default_rng(seed).integers(0, alphabet, length).tolist()
    ),
    st.integers(0, 2**32 - 1),
    st.integers(1, 6),
    st.integers(1, 200),
)


@settings(max_examples=3 * settings.default.max_examples // 2)
@given(texts, st.integers(1, 15))
def test_a_proposal_continues_some_earlier_occurrence(text, limit):
    found = proposed(PromptLookupDrafter(512, threshold=0.0), text, limit)
    repeats = text[-1] in text[:-1]
    assert len(found) == (limit if repeats else 0)
    longer = text + found
    if found:
        sources = [i for i in range(len(text) - 1) if text[i] == text[-1]]
        assert any(all(longer[s + 1 + j] == found[j] for j in range(len(found))) for s in sources)


@given(texts, texts, st.data())
def test_state_is_a_function_of_the_committed_text(first, second, data):
    """However the text came about: in pieces, after other text, after a rewind."""
    expected = proposed(PromptLookupDrafter(512, threshold=0.4), second)
    assert proposed(PromptLookupDrafter(512, threshold=0.4), second) == expected

    pieces = PromptLookupDrafter(512, threshold=0.4)
    for cut in sorted(data.draw(st.lists(st.integers(0, len(second)), max_size=5))):
        pieces.commit(_history(second), cut)
        proposed(pieces, second[:cut])
    assert proposed(pieces, second) == expected

    rewound = PromptLookupDrafter(512, threshold=0.4)
    rewound.commit(_history(first), len(first))
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    rewound.rewind(shared)
    assert proposed(rewound, second) == expected


def test_rewind_to_the_present_or_beyond_keeps_everything():
    text = [1, 2, 3, 4] * 5
    drafter = PromptLookupDrafter(512, threshold=0.3)
    drafter.commit(_history(text), len(text))
    drafter.rewind(len(text))
    drafter.rewind(len(text) + 5)
    assert proposed(drafter, text) == [1, 2, 3, 4] * 2


def test_filling_the_capacity_exactly():
    text = [1, 2, 3, 4] * 16
    drafter = PromptLookupDrafter(64, threshold=0.3)
    history = _history(text, 64)
    assert drafter.propose(history, 64, fixed_budget(ROOM))[0] == ROOM
    drafter.rewind(0)
    assert drafter.propose(history, 64, fixed_budget(ROOM))[0] == ROOM


@pytest.mark.parametrize("given", [1, 3, 7])
def test_goes_on_behind_proposals_as_behind_a_text(given):
    text = [*range(30), 50, *range(10), 51, 4, 5, 6]
    behind = text[: len(text) - given]
    drafter, allowed = PromptLookupDrafter(512), fixed_budget(8)
    history = _history(text)
    proposal = drafter.extend(history, len(behind), allowed, given)
    expected = proposed(PromptLookupDrafter(512), text, limit=8 - given)
    assert history[len(behind) : len(behind) + proposal.size].tolist() == text[-given:] + expected
