"""The suffix automaton against brute force, and its memory in the worst cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafters.automaton import ending, extend, follow, make_automaton, reset
from edgespec.drafters.automaton import match as match_from

FIXED = settings(max_examples=3 * settings.default.max_examples // 2)
STATES, EDGES = 0, 1  # in `counters`

texts = st.builds(
    lambda seed, alphabet, length: (
        np.random.default_rng(seed).integers(0, alphabet, length).tolist()
    ),
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(0, 300),
)


def match(automaton, level):
    return match_from(automaton, *ending(automaton), level)


def longest_repeated_suffix(text):
    """Length of the longest suffix that occurs earlier, too; overlaps count."""
    best = 0
    for end in range(len(text) - 1):  # of the earlier occurrence
        length = 0
        while length <= end and text[end - length] == text[-1 - length]:
            length += 1
        best = max(best, length)
    return best


def occurrences(text, suffix):
    return sum(text[i : i + len(suffix)] == suffix for i in range(len(text) - len(suffix) + 1))


def check_matches(automaton, text, levels=5):
    """Every level: an earlier occurrence, as long as can be; shorter at each level."""
    length, end = match(automaton, 0)
    assert length == longest_repeated_suffix(text)
    previous = None
    for level in range(levels):
        length, end = match(automaton, level)
        if length == 0:
            assert end == -1
            previous = 0
            continue
        assert previous is None or 0 < length < previous
        assert length - 1 <= end < len(text) - 1
        suffix = text[len(text) - length :]
        assert text[end - length + 1 : end + 1] == suffix
        if previous is not None:
            # A suffix link leads to the longest suffix that occurs more often.
            often = occurrences(text, suffix)
            assert occurrences(text, text[len(text) - previous :]) < often
            assert occurrences(text, text[len(text) - length - 1 :]) < often
        previous = length


@FIXED
@given(texts)
def test_match_is_the_longest_suffix_that_occurred_before(text):
    automaton = make_automaton(max(len(text), 1))
    assert match(automaton, 0) == (0, -1)
    for position, token in enumerate(text):
        extend(automaton, token, position)
        length, end = match(automaton, 0)
        assert end < position
        if length:
            assert text[end - length + 1 : end + 1] == text[position - length + 1 : position + 1]
        if position % 37 == 0:
            check_matches(automaton, text[: position + 1])
    if text:
        check_matches(automaton, text)


@FIXED
@given(texts, texts)
def test_following_finds_the_longest_suffix_that_occurs(text, other):
    automaton = make_automaton(max(len(text), 1))
    for position, token in enumerate(text):
        extend(automaton, token, position)
    state, matched = 0, 0
    spelled = "".join(chr(97 + t) for t in text)
    for end, token in enumerate(other[:40], 1):
        state, matched = follow(automaton, state, matched, token)
        suffixes = ("".join(chr(97 + t) for t in other[start:end]) for start in range(end + 1))
        assert matched == next(len(suffix) for suffix in suffixes if suffix in spelled)
        length, place = match_from(automaton, state, matched, 0)
        assert text[place - length + 1 : place + 1] == other[end - length : end]


@FIXED
@given(texts, texts)
def test_after_reset_nothing_is_left(first, second):
    automaton = make_automaton(max(len(first), len(second), 1))
    fresh = make_automaton(max(len(first), len(second), 1))
    for position, token in enumerate(first):
        extend(automaton, token, position)
    reset(automaton)
    assert match(automaton, 0) == (0, -1)
    for position, token in enumerate(second):
        extend(automaton, token, position)
        extend(fresh, token, position)
        assert [match(automaton, i) for i in range(4)] == [match(fresh, i) for i in range(4)]


def test_the_most_recent_occurrence_is_preferred():
    text = [7, 1, 2, 8, 7, 1, 3, 9, 7, 1]
    automaton = make_automaton(len(text))
    for position, token in enumerate(text):
        extend(automaton, token, position)
    assert match(automaton, 0) == (2, 5)


def _fibonacci(n):
    a, b = [0], [0, 1]
    while len(b) < n:
        a, b = b, b + a
    return b[:n]


WORST = {
    "all the same": lambda n: [3] * n,
    "a b b b": lambda n: [0] + [1] * (n - 1),
    "b b b c": lambda n: [1] * (n - 1) + [2],
    "a b b b c": lambda n: [0] + [1] * (n - 2) + [2] if n > 2 else [0] * n,
    "all different": lambda n: list(range(n)),
    "fibonacci": _fibonacci,
    "halves": lambda n: [i % (n // 2 + 1) for i in range(n)],
    "a b a b": lambda n: [i % 2 for i in range(n)],
    "large ids": lambda n: [(i * i) % 11 + 2**31 - 12 for i in range(n)],
    "random, 2": lambda n: np.random.default_rng(0).integers(0, 2, n).tolist(),
    "random, 1000": lambda n: np.random.default_rng(0).integers(0, 1000, n).tolist(),
}


@pytest.mark.parametrize("kind", WORST)
def test_states_and_edges_fit_the_arrays_at_full_capacity(kind):
    for n in (1, 2, 3, 4, 5, 17, 64, 1000, 4096):
        text = WORST[kind](n)
        assert len(text) == n
        automaton = make_automaton(n)
        for position, token in enumerate(text):
            extend(automaton, token, position)
        states, edges = int(automaton.counters[STATES]), int(automaton.counters[EDGES])
        # The known bounds (Blumer et al. 1985), which the arrays have to have room for.
        assert states <= max(2 * n - 1, 2) <= len(automaton.length)
        assert edges <= max(3 * n - 4, 2 * n) <= len(automaton.edge_token)
        assert (automaton.table >= 0).sum() == edges <= len(automaton.table) // 2
        assert (automaton.link[1:states] < states).all()
        assert (automaton.edge_target[:edges] < states).all()
        if n <= 64:
            check_matches(automaton, text)


def test_work_per_token_does_not_grow_with_the_text():
    """Edges written per token stay below the bound for any prefix, not only at the end."""
    for make in WORST.values():
        automaton = make_automaton(2000)
        for position, token in enumerate(make(2000)):
            extend(automaton, token, position)
            assert automaton.counters[EDGES] <= max(3 * (position + 1) - 4, 2 * (position + 1))
