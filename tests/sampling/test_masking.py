"""The mask of a row against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.sampling.masking import allowed_set, forbid


@pytest.mark.parametrize("size", [1, 31, 32, 33, 259, 1024])
def test_bits_forbid_tokens(size: int) -> None:
    random = np.random.default_rng(size)
    logits = random.normal(size=(3, size)).astype(np.float32)
    bits = random.integers(-(2**31), 2**31, (5, (size + 31) // 32 + 1)).astype(np.int32)
    bits[1] = -1
    bits[2] = 0
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:3, :size] == 1
    expected = np.where(allowed, logits, -np.inf)
    forbid(logits, bits)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("size", [0, 1, 2, 40, 41, 500])
def test_a_small_set_is_told_from_others(size: int) -> None:
    random = np.random.default_rng(size)
    keys = set()
    for _ in range(50):
        members = np.sort(random.choice(2048, size, replace=False))
        flags = np.zeros(2048, np.uint8)
        flags[members] = 1
        bits = np.packbits(flags, bitorder="little").view(np.int32)
        count, key, first = allowed_set(bits, 40)
        assert count == (size if size <= 40 else 0)
        if count:
            assert first == members[0]
            assert allowed_set(bits.copy(), 40) == (count, key, first)
            keys.add((key, tuple(members.tolist())))
    assert len({key for key, _ in keys}) == len(keys)
