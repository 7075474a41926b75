"""Partial selection against a full sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.sampling.selection import collect, heapify, keep_largest, pop

FIXED = settings(max_examples=3 * settings.default.max_examples)

# Few distinct values, so that ties are the rule; and lengths around the size of a block.
rows = st.builds(
    lambda seed, size, distinct: (
        np.random.default_rng(seed).integers(-distinct, distinct + 1, size).astype(np.float32)
    ),
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.sampled_from([1, 3, 50, 10**6]),
)


def _descending(values):
    """Ids by value, largest first; equal values by id."""
    return np.lexsort((np.arange(len(values)), -values))


@FIXED
@given(rows, st.data())
def test_keep_largest_equals_sorting(values, data):
    n = len(values)
    limit = data.draw(st.sampled_from([1, n]) | st.integers(1, n))
    keys, tokens = np.full(n + 1, 7, np.float32), np.full(n + 1, -7, np.int32)
    assert keep_largest(values, limit, keys, tokens)
    assert sorted(tokens[:limit]) == sorted(_descending(values)[:limit])
    assert (keys[:limit] == values[tokens[:limit]]).all()
    assert (keys[limit:] == 7).all() and (tokens[limit:] == -7).all()


@FIXED
@given(rows, st.data())
def test_heap_pops_in_descending_order_with_ties_by_id(values, data):
    n = len(values)
    order = np.array(data.draw(st.permutations(range(n))), np.int32)
    keys, tokens = values[order], order.copy()
    heapify(keys, tokens, n)
    assert keys[0] == values.max()
    for size in range(n, 0, -1):
        pop(keys, tokens, size)
    assert (tokens[::-1] == _descending(values)).all()
    assert (keys == values[tokens]).all()


@FIXED
@given(rows, st.floats(-60, 60, width=32))
def test_collect_equals_a_mask(values, floor):
    keys, tokens = np.zeros(len(values), np.float32), np.zeros(len(values), np.int32)
    count = collect(values, np.float32(floor), keys, tokens)
    assert (tokens[:count] == np.flatnonzero(values >= floor)).all()
    assert (keys[:count] == values[values >= floor]).all()


@pytest.mark.parametrize("limit", [1, 40, 129])
def test_keep_largest_notices_every_nan(limit):
    keys, tokens = np.zeros(200, np.float32), np.zeros(200, np.int32)
    for where in range(200):
        values = np.linspace(9, -9, 200).astype(np.float32)
        values[where] = np.nan
        assert not keep_largest(values, limit, keys, tokens)


def test_keep_largest_with_infinities():
    values = np.array([-np.inf, 2, -np.inf, np.inf, 1, -np.inf], np.float32)
    keys, tokens = np.zeros(6, np.float32), np.zeros(6, np.int32)
    assert keep_largest(values, 4, keys, tokens)
    assert sorted(tokens[:4]) == [0, 1, 3, 4]
