"""The small operations of a layer: against float64, and against llama.cpp's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgespec.backend.kernels import kernel_status, opened_device
from edgespec.backend.lifetime import lib
from edgespec.kernels.compiler import ROWS, compile_object
from edgespec.kernels.device import Device
from edgespec.kernels.isa import INSTRUCTION_SETS, InstructionSet
from edgespec.kernels.operations import Backend, Node, cpu_device

P, F = ctypes.c_void_p, ctypes.c_float
RANDOM = np.random.default_rng(7)
Array = npt.NDArray[Any]


def floats(*shape: int) -> npt.NDArray[np.float32]:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    status = kernel_status()
    if status.instruction_set is None:
        pytest.skip(reason=f"our kernels cannot be used here: {status.reason}")
    opened = opened_device()
    opened.prepare_layers()
    yield opened


@pytest.fixture(scope="module")
def library(device: Device) -> Any:
    found = lib.llama_cpp._lib
    cpu_device(found)  # declares
    for name, arguments in {
        "ggml_add": (P, P, P),
        "ggml_scale_bias": (P, P, F, F),
        "ggml_geglu_split": (P, P, P),
        "ggml_geglu_erf_split": (P, P, P),
    }.items():
        function = getattr(found, name)
        function.restype, function.argtypes = P, arguments
    return found


Run = Callable[..., Array]


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def run(request: pytest.FixtureRequest, device: Device, library: Any) -> Iterator[Run]:
    backend = Backend(library, device.address, request.param)
    node = Node(backend)

    def compute(build: Callable[..., int], *values: Array) -> Array:
        def asked(context: int, *tensors: int) -> int:
            made = build(context, *tensors)
            assert library.ggml_backend_dev_supports_op(device.address, made)
            return made

        return node.compute(asked, *values)

    yield compute
    node.close()
    backend.close()


def cpu(library: Any, build: Callable[..., int], *values: Array) -> Array:
    backend = Backend(library, cpu_device(library), 1)
    node = Node(backend)
    try:
        return node.compute(build, *values)
    finally:
        node.close()
        backend.close()


def close(got: Array, expected: Array, tolerance: float = 3e-6) -> bool:
    return bool(np.abs(got - expected).max() <= tolerance * max(1.0, np.abs(expected).max()))


SHAPES = [(1, 1, 576), (1, 9, 64), (300, 2, 128), (5, 1, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm(run: Run, library: Any, shape: tuple[int, ...]) -> None:
    x = floats(*shape)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    assert close(run(lambda c, x: library.ggml_rms_norm(c, x, 1e-5), x), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("repeated", [(0,), (1,), (0, 1), ()])
def test_sums_and_products_repeat_rows(
    run: Run, library: Any, shape: tuple[int, ...], repeated: tuple[int, ...]
) -> None:
    x = floats(*shape)
    y = floats(*(1 if axis in repeated else size for axis, size in enumerate(shape)))
    assert np.array_equal(run(library.ggml_add, x, y), x + y)
    assert np.array_equal(run(library.ggml_mul, x, y), x * y)


def logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def test_gates(run: Run, library: Any) -> None:
    x, y = 4 * floats(1, 40, 256), floats(1, 40, 256)
    x[0, 0, :8] = [0.0, -0.0, 88.0, -88.0, 1e30, -1e30, 1e-30, -1e-30]
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = wide * logistic(wide) * y
        assert close(run(library.ggml_swiglu_split, x, y) / 1e30, expected / 1e30)
        x[0, 0, 4:6] = 5.0
        wide = x.astype(np.float64)
        assert close(run(library.ggml_swiglu_split, x, y), wide * logistic(wide) * y)
        cubic = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
        assert close(run(library.ggml_geglu_split, x, y), wide * logistic(2 * cubic) * y)


def test_other_gates_are_llama_cpps(device: Device, library: Any) -> None:
    backend = Backend(library, cpu_device(library), 1)
    node = Node(backend)

    def build(context: int, x: int, y: int) -> int:
        made = library.ggml_geglu_erf_split(context, x, y)
        assert not library.ggml_backend_dev_supports_op(device.address, made)
        return int(made)

    node.compute(build, floats(1, 1, 64), floats(1, 1, 64))
    node.close()
    backend.close()


@pytest.mark.parametrize("mode", [0, 2], ids=["pairs", "halves"])
@pytest.mark.parametrize("dimensions", [64, 32])
@pytest.mark.parametrize("factored", [False, True])
def test_a_rotation(run: Run, library: Any, mode: int, dimensions: int, factored: bool) -> None:
    x, half = floats(70, 6, 64), dimensions // 2
    positions = RANDOM.integers(0, 8000, 70).astype(np.int32)
    factors = RANDOM.uniform(1, 8, half).astype(np.float32)
    numbers = (5e4, 0.5, 0.0, 1.25, 32.0, 1.0)

    def build(context: int, x: int, positions: int, *factors: int) -> int:
        given = factors[0] if factors else None
        sizes = (dimensions, mode, 4096)
        return int(library.ggml_rope_ext(context, x, positions, given, *sizes, *numbers))

    got = run(build, x, positions, *([factors] if factored else []))
    angle = positions[:, None, None] * 0.5 * 5e4 ** (-np.arange(half) / half)
    angle = angle / factors if factored else angle
    wide = x[..., :dimensions].astype(np.float64)
    pairs = (wide[..., ::2], wide[..., 1::2]) if mode == 0 else np.split(wide, 2, -1)
    turned = 1.25 * (pairs[0] + 1j * pairs[1]) * np.exp(1j * angle)
    parts = (turned.real, turned.imag)
    expected = np.stack(parts, -1).reshape(wide.shape) if mode == 0 else np.concatenate(parts, -1)
    assert close(got[..., :dimensions], expected)
    assert np.array_equal(got[..., dimensions:], x[..., dimensions:])


@pytest.mark.parametrize("isa", INSTRUCTION_SETS.values(), ids=lambda isa: isa.name)
def test_they_compile_for_every_processor(isa: InstructionSet) -> None:
    assert compile_object(isa, ROWS)[:4] == b"\x7fELF"
