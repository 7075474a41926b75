"""The mask of a row against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.sampling.masking import forbid


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
