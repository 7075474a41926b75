"""Operations run through ggml on the registered device, against NumPy and ggml's own CPU code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from edgespec._types import Float32Array
from edgespec.backend.kernels import kernel_status, opened_device
from edgespec.backend.lifetime import lib
from edgespec.kernels.device import Device
from edgespec.kernels.formats import FORMATS, Format
from edgespec.kernels.operations import Backend, Operation
from tests.kernels.twins import dequantized, multiplied, random_weights

ALL = pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)
WIDTH, HEIGHT = 512, 61


@pytest.fixture(scope="module")
def device() -> Device:
    status = kernel_status()
    assert status.instruction_set is not None, status.reason
    found = opened_device()
    found.prepare(FORMATS)
    return found


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def backend(request: pytest.FixtureRequest, device: Device) -> Iterator[Backend]:
    with closing(Backend(lib.llama_cpp._lib, device.address, request.param)) as opened:
        yield opened


def columns(count: int) -> Float32Array:
    return np.random.default_rng(8).standard_normal((count, WIDTH)).astype(np.float32)


@ALL
def test_products_are_the_twins_for_any_number_of_columns_and_threads(
    format: Format, backend: Backend, device: Device
) -> None:
    raw, x = random_weights(format, HEIGHT, WIDTH, 11), columns(64)
    expected = multiplied(format, raw, x)
    order = np.random.default_rng(3).permutation(64)
    with closing(Operation(backend, device.buffer_type, format.type, raw[None], WIDTH)) as one:
        for count in (*range(1, 18), 31, 64):
            got, _ = one.multiply(x[:count])
            if device.isa.fused:
                assert np.array_equal(got, expected[:count]), count
        shuffled, _ = one.multiply(x[order])
        plain, _ = one.multiply(x)
    assert np.array_equal(shuffled, plain[order])
    assert np.abs(plain - expected).max() < 2e-6 * np.abs(expected).max()


@ALL
@pytest.mark.parametrize("height", [1, 7, 8, 16, 40])
def test_heights_that_fill_no_group(format: Format, height: int, device: Device) -> None:
    raw, x = random_weights(format, height, WIDTH, 12), columns(9)
    with (
        closing(Backend(lib.llama_cpp._lib, device.address, 2)) as backend,
        closing(Operation(backend, device.buffer_type, format.type, raw[None], WIDTH)) as one,
    ):
        got, _ = one.multiply(x)
    expected = multiplied(format, raw, x)
    assert np.abs(got - expected).max() < 2e-6 * np.abs(expected).max()


@ALL
def test_rows_are_ggufs_own_dequantization(format: Format, device: Device) -> None:
    raw = random_weights(format, HEIGHT, WIDTH, 13)
    ids = np.array([0, 60, 8, 7, 8, 33], np.int32)
    with (
        closing(Backend(lib.llama_cpp._lib, device.address, 2)) as backend,
        closing(Operation(backend, device.buffer_type, format.type, raw[None], WIDTH)) as one,
    ):
        assert np.array_equal(one.rows(ids, WIDTH), dequantized(format, raw)[ids])


@ALL
def test_experts(format: Format, backend: Backend, device: Device) -> None:
    experts, used, tokens = 5, 2, 11
    raw = np.stack([random_weights(format, HEIGHT, WIDTH, 20 + i) for i in range(experts)])
    random = np.random.default_rng(4)
    ids = np.stack([random.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)
    shared = columns(tokens)[:, None]
    own = np.stack([columns(tokens), columns(2 * tokens)[tokens:]], axis=1)
    with closing(Operation(backend, device.buffer_type, format.type, raw, WIDTH)) as one:
        for x in (shared, own):
            got = one.multiply_experts(x, ids)
            for token in range(tokens):
                for slot in range(used):
                    column = x[token, min(slot, x.shape[1] - 1)][None]
                    expected = multiplied(format, raw[ids[token, slot]], column)[0]
                    error = np.abs(got[token, slot] - expected).max()
                    assert error == 0 if device.isa.fused else error < 1e-3


@ALL
def test_any_bytes_can_be_read_and_changed(format: Format, device: Device) -> None:
    raw = np.stack([random_weights(format, HEIGHT, WIDTH, 30 + i, wild=True) for i in range(3)])
    with (
        closing(Backend(lib.llama_cpp._lib, device.address, 2)) as backend,
        closing(Operation(backend, device.buffer_type, format.type, raw, WIDTH)) as one,
    ):
        flat = raw.reshape(-1).copy()
        assert np.array_equal(one.stored(0, flat.size), flat)
        start, size = raw.shape[2] * 60 + 3, raw.shape[2] * 2 + 5  # over a matrix's end
        assert np.array_equal(one.stored(start, size), flat[start : start + size])
        patch = np.arange(size, dtype=np.uint8)
        one.store(start, patch)
        flat[start : start + size] = patch
        assert np.array_equal(one.stored(0, flat.size), flat)
