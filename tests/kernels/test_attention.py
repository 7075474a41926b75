"""Attention: against float64, and bit for bit against itself in other company."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, quants

from edgespec.backend.kernels import kernel_status, opened_device
from edgespec.backend.lifetime import lib
from edgespec.kernels import ggml
from edgespec.kernels.compiler import ATTENTION, compile_object
from edgespec.kernels.device import Device
from edgespec.kernels.isa import INSTRUCTION_SETS, InstructionSet
from edgespec.kernels.operations import Attention, Backend

F32, F16, Q8_0 = ggml.F32, ggml.F16, ggml.Q8_0
KINDS = {F32: "f32", F16: "f16", Q8_0: "q8_0"}


class Case:
    """Queries, and a cache with a causal mask whose last cells are unused."""

    def __init__(
        self,
        kind: int = F16,
        *,
        heads: int = 6,
        shared: int = 2,
        queries: int = 5,
        width: int = 64,
        value_width: int = 64,
        keys: int = 384,
        unused: int = 37,
        seed: int = 1,
    ) -> None:
        random = np.random.default_rng(seed)
        self.kind, self.value_width = kind, value_width
        self.q = random.standard_normal((heads, queries, width)).astype(np.float32)
        self.k = packed(random.standard_normal((shared, keys, width)), kind)
        self.v = packed(random.standard_normal((shared, keys, value_width)), kind)
        last = keys - unused - queries + np.arange(queries)[:, None]
        allowed = np.arange(keys) <= last
        self.mask = np.where(allowed, 0, -np.inf).astype(np.float16)
        self.scale = width**-0.5

    def run(self, device: Device, threads: int = 2) -> npt.NDArray[np.float32]:
        """(queries, heads, value width)."""
        backend = Backend(lib.llama_cpp._lib, device.address, threads)
        node = Attention(backend)
        try:
            return node.compute(
                self.q,
                self.k,
                self.v,
                self.mask,
                kind=self.kind,
                value_width=self.value_width,
                scale=self.scale,
            )[0]
        finally:
            node.close()
            backend.close()

    def expected(self) -> npt.NDArray[np.float64]:
        k, v = unpacked(self.k, self.kind), unpacked(self.v, self.kind)
        group = len(self.q) // len(k)
        out = np.zeros((self.q.shape[1], len(self.q), self.value_width))
        for head, q in enumerate(self.q.astype(np.float64)):
            scores = q @ k[head // group].T * self.scale + self.mask
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights @ v[head // group] / weights.sum(-1, keepdims=True)
        return out


def packed(values: npt.NDArray[np.float64], kind: int) -> npt.NDArray[np.uint8]:
    if kind == Q8_0:
        return quants.quantize(values.astype(np.float32), GGMLQuantizationType.Q8_0)
    return values.astype(np.float32 if kind == F32 else np.float16).view(np.uint8)


def unpacked(data: npt.NDArray[np.uint8], kind: int) -> npt.NDArray[np.float64]:
    if kind == Q8_0:
        return quants.dequantize(data, GGMLQuantizationType.Q8_0).astype(np.float64)
    return data.view(np.float32 if kind == F32 else np.float16).astype(np.float64)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    status = kernel_status()
    if status.instruction_set is None:
        pytest.skip(reason=f"our kernels cannot be used here: {status.reason}")
    opened = opened_device()
    opened.prepare_layers()
    yield opened


@pytest.mark.parametrize("kind", KINDS, ids=KINDS.values())
@pytest.mark.parametrize(
    ("width", "value_width"), [(64, 64), (128, 128), (96, 96), (256, 256), (192, 128), (32, 32)]
)
@pytest.mark.parametrize(("heads", "shared"), [(6, 2), (4, 4), (8, 1), (40, 1)])
def test_it_is_attention(
    device: Device, kind: int, width: int, value_width: int, heads: int, shared: int
) -> None:
    case = Case(kind, heads=heads, shared=shared, width=width, value_width=value_width)
    assert np.abs(case.run(device) - case.expected()).max() < 2e-6


@pytest.mark.parametrize("width", [8, 40, 80, 120])
def test_widths_of_eights(device: Device, width: int) -> None:
    case = Case(F16, width=width, value_width=width)
    assert np.abs(case.run(device) - case.expected()).max() < 2e-6


@pytest.mark.parametrize("keys", [32, 128, 160, 1024, 4096])
@pytest.mark.parametrize("kind", KINDS, ids=KINDS.values())
def test_a_query_has_the_same_bits_in_any_company(device: Device, kind: int, keys: int) -> None:
    """Alone, among 1 to 40 others, with 1 to 4 threads: blocks are shared out or not."""
    case = Case(kind, queries=40, keys=keys, unused=0 if keys == 32 else 20)
    if keys == 32:
        case.mask[...] = 0
    whole, q, mask = case.run(device, 1), case.q, case.mask
    for threads, queries in product((1, 2, 3, 4), (1, 2, 3, 8, 40)):
        for first in (0, 40 - queries):
            case.q = q[:, first : first + queries]
            case.mask = mask[first : first + queries]
            got = case.run(device, threads)
            assert np.array_equal(got, whole[first : first + queries]), (threads, queries, first)


def test_the_order_of_queries_does_not_matter(device: Device) -> None:
    case = Case(queries=16)
    expected, order = case.run(device), np.random.default_rng(5).permutation(16)
    case.q, case.mask = case.q[:, order], case.mask[order]
    assert np.array_equal(case.run(device), expected[order])


def test_any_mask(device: Device) -> None:
    """As of a tree, of a window, and with a bias."""
    case, random = Case(queries=7, keys=512), np.random.default_rng(6)
    case.mask = np.where(random.random(case.mask.shape) < 0.3, 0, -np.inf).astype(np.float16)
    case.mask[3, :400] = -np.inf
    case.mask[4] = random.standard_normal(512).astype(np.float16)
    assert np.abs(case.run(device) - case.expected()).max() < 2e-6


def test_a_query_that_sees_nothing_gets_zeros(device: Device) -> None:
    case = Case(queries=3)
    case.mask[1] = -np.inf
    assert not case.run(device)[1].any()


def test_unused_cells_may_hold_anything(device: Device) -> None:
    case = Case(F16, keys=384, unused=100)
    expected = case.run(device)
    for cache in (case.k, case.v):
        cache.view(np.float16)[:, 320:] = np.nan
    assert np.array_equal(case.run(device), expected)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_query_breaks_only_itself(device: Device, value: float) -> None:
    case = Case(queries=6)
    expected = case.run(device)
    case.q[2, 3, 5] = value
    got = case.run(device)
    broken = np.zeros(got.shape, bool)
    broken[3, 2] = True
    assert np.isnan(got[broken]).all()
    assert np.array_equal(got[~broken], expected[~broken])


@pytest.mark.parametrize("factor", [1e-30, 1.0, 300.0, 1e4])
def test_scores_of_any_size(device: Device, factor: float) -> None:
    case = Case(F32, queries=4)
    case.q *= np.float32(factor)
    assert np.abs(case.run(device) - case.expected()).max() < (2e-6 if factor <= 1 else 2e-2)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS.values(), ids=lambda isa: isa.name)
def test_it_compiles_for_every_processor(isa: InstructionSet) -> None:
    assert compile_object(isa, ATTENTION)[:4] == b"\x7fELF"
