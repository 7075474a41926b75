from __future__ import annotations

from itertools import pairwise

import gguf
import numpy as np
import pytest

from edgespec.kernels.formats import FORMATS, Format, group_size, pack, packed_size, unpack
from tests.kernels.twins import dequantized, random_weights, taken_apart

ALL = pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)


@ALL
def test_formats_are_those_of_gguf(format: Format) -> None:
    kind = gguf.GGMLQuantizationType(format.type)
    assert kind.name == format.name
    assert gguf.GGML_QUANT_SIZES[kind] == (format.weights, format.block)
    covered = sorted((field.offset, field.offset + field.size) for field in format.fields)
    assert covered[0][0] == 0 and covered[-1][1] == format.block
    assert all(end == start for (_, end), (start, _) in pairwise(covered))


@ALL
@pytest.mark.parametrize("rows", [4, 8, 16])
def test_packing_loses_nothing(format: Format, rows: int) -> None:
    raw = random_weights(format, 37, 512, 1, wild=True)
    packed = pack(format, raw, 512, rows)
    assert packed.size == packed_size(format, 512, 37, rows)
    assert packed.size - -(-37 // rows) * rows * raw.shape[1] < 64 * len(packed)
    assert group_size(format, 512, rows) % 64 == 0
    assert np.array_equal(unpack(format, packed, 512, 37, rows), raw)


@ALL
def test_the_twin_has_ggufs_own_weights(format: Format) -> None:
    if format.weights == 1:
        pytest.skip("16-bit floats have no parts")
    raw = random_weights(format, 16, 512, 2)
    assert np.array_equal(taken_apart(format, raw).together(), dequantized(format, raw))
