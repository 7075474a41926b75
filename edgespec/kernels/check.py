"""Try a format's kernels through ggml: do they give what NumPy gives, and how fast are they?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, quants

from edgespec._types import ByteArray, Float32Array
from edgespec.kernels import ggml
from edgespec.kernels.activations import record_of
from edgespec.kernels.device import Device, DeviceError
from edgespec.kernels.formats import Format
from edgespec.kernels.gemm import is_float
from edgespec.kernels.operations import (
    Attention,
    Backend,
    Node,
    Operation,
    cpu_device,
    repacking_buffers,
)

__all__ = ["FormatTimes", "check", "check_attention", "check_rows", "sample_weights", "time_format"]

_WIDTH, _HEIGHT, _COLUMNS = 256, 21, 7
_TOLERANCE = 1e-5
"""Of the largest result: float32 sums of 256 products are exact to about 1e-6 of it."""


def sample_weights(format: Format, height: int, width: int, seed: int) -> ByteArray:
    """Return random weights with scales of an ordinary size: uint8 (height, bytes of a row)."""
    random = np.random.default_rng(seed)
    if is_float(format):
        values = random.standard_normal((height, width)).astype(np.float32)
        half = values.astype(np.float16).view(np.uint16)
        words = half if format.name == "F16" else (values.view(np.uint32) >> 16).astype(np.uint16)
        return words.view(np.uint8).reshape(height, -1)
    raw = random.integers(0, 256, (height, width // format.weights * format.block), np.uint8)
    blocks = raw.reshape(height, -1, format.block)
    for field in format.fields:
        part = blocks[..., field.offset : field.offset + field.size]
        if field.name in ("scale", "minimum") and field.unit == 2:
            scales = random.uniform(-0.1, 0.1, part.shape[:-1]).astype(np.float16)
            part[...] = scales[..., None].view(np.uint8)
        elif field.name == "scale":  # an exponent
            part[...] = random.integers(118, 130, part.shape, np.uint8)
    return raw


def check(device: Device, library: Any, format: Format) -> None:
    """Multiply random weights by one column and by several.

    Raises:
        DeviceError: the results differ from NumPy's, or from each other.
    """
    weights = sample_weights(format, _HEIGHT, _WIDTH, 1)
    x = np.random.default_rng(2).standard_normal((_COLUMNS, _WIDTH)).astype(np.float32)
    backend = Backend(library, device.address, threads=2)
    operation = Operation(backend, device.buffer_type, format.type, weights[None], _WIDTH)
    try:
        together, _ = operation.multiply(x)
        alone, _ = operation.multiply(x[:1])
    finally:
        operation.close()
        backend.close()
    expected = _expected(format, weights, x)
    most = np.abs(expected).max()
    if not np.abs(together - expected).max() <= _TOLERANCE * most:
        raise DeviceError(f"its {format.name} kernels multiply wrongly on this machine")
    if not np.array_equal(together[:1], alone):
        raise DeviceError(f"its {format.name} kernels round batches differently on this machine")


def _expected(format: Format, weights: ByteArray, x: Float32Array) -> Any:
    """Return float64 products of dequantized weights and activations rounded to 8 bits."""
    matrix = quants.dequantize(weights, GGMLQuantizationType(format.type)).astype(np.float64)
    if is_float(format):
        return x.astype(np.float64) @ matrix.T
    blocks = x.reshape(len(x), -1, record_of(format).block)
    most = np.abs(blocks).max(-1, keepdims=True)
    codes = np.rint(blocks * (np.float32(127) / most))
    rounded = codes.astype(np.float64) * (most / np.float32(127))
    return rounded.reshape(x.shape) @ matrix.T


_HEADS, _QUERIES, _KEYS, _KEY_WIDTH = 4, 3, 320, 64


def check_attention(device: Device, library: Any) -> None:
    """Compare attention of random queries with NumPy's, and one query alone with several.

    Raises:
        DeviceError: the results differ.
    """
    random = np.random.default_rng(3)
    q = random.standard_normal((_HEADS, _QUERIES, _KEY_WIDTH)).astype(np.float32)
    k, v = random.standard_normal((2, 1, _KEYS, _KEY_WIDTH)).astype(np.float16)
    mask = np.where(np.arange(_KEYS) < _KEYS - 30, 0, -np.inf).astype(np.float16)
    backend = Backend(library, device.address, threads=2)
    node = Attention(backend)

    def run(queries: int) -> Float32Array:
        return node.compute(
            q[:, :queries],
            k.view(np.uint8),
            v.view(np.uint8),
            np.tile(mask, (queries, 1)),
            kind=ggml.F16,
            value_width=_KEY_WIDTH,
            scale=1.0,
        )[0]

    try:
        together, alone = run(_QUERIES), run(1)
    finally:
        node.close()
        backend.close()
    scores = q.astype(np.float64) @ k[0].astype(np.float64).T + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ v[0].astype(np.float64) / weights.sum(-1, keepdims=True)
    if not np.abs(together - expected.transpose(1, 0, 2)).max() <= _TOLERANCE * np.abs(v).max():
        raise DeviceError("its attention is wrong on this machine")
    if not np.array_equal(together[:1], alone):
        raise DeviceError("its attention rounds batches differently on this machine")


def check_rows(device: Device, library: Any) -> None:
    """Compare a norm, a gate and a rotation of random rows with NumPy's.

    Raises:
        DeviceError: the results differ.
    """
    random = np.random.default_rng(4)
    x, y = random.standard_normal((2, _QUERIES, _KEY_WIDTH)).astype(np.float32)
    wide = x.astype(np.float64)
    angle = np.arange(_QUERIES)[:, None] * 1e4 ** (-np.arange(_KEY_WIDTH // 2) / (_KEY_WIDTH // 2))
    first, second = wide[:, ::2], wide[:, 1::2]
    turned = (first + 1j * second) * np.exp(1j * angle)
    positions = np.arange(_QUERIES, dtype=np.int32)
    sizes = (_KEY_WIDTH, 0, 4096)
    factors = (1e4, 1.0, 0.0, 1.0, 32.0, 1.0)
    cases = (
        (
            lambda c, x: library.ggml_rms_norm(c, x, 1e-5),
            (x,),
            wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5),
        ),
        (library.ggml_swiglu_split, (x, y), wide / (1 + np.exp(-wide)) * y),
        (
            lambda c, x, at: library.ggml_rope_ext(c, x, at, None, *sizes, *factors),
            (x[:, None], positions),
            np.stack([turned.real, turned.imag], -1).reshape(_QUERIES, 1, _KEY_WIDTH),
        ),
    )
    backend = Backend(library, device.address, threads=1)
    node = Node(backend)
    try:
        for build, values, expected in cases:
            got = node.compute(build, *values).reshape(expected.shape)
            if not np.abs(got - expected).max() <= _TOLERANCE * np.abs(expected).max():
                raise DeviceError("its small operations are wrong on this machine")
    finally:
        node.close()
        backend.close()


class FormatTimes(NamedTuple):
    """Seconds of a multiplication, by columns.

    Attributes:
        ours: by our kernels.
        theirs: by the faster of llama.cpp's, with weights as in the file or rearranged.
    """

    ours: dict[int, float]
    theirs: dict[int, float]


def time_format(
    device: Device,
    library: Any,
    format: Format,
    *,
    threads: int,
    columns: Sequence[int],
    width: int = 2048,
    height: int = 2048,
    seconds: float,
) -> FormatTimes:
    """Multiply random weights, the rivals taking turns; the best of all rounds counts.

    Args:
        seconds: after which no round is begun but the first two.

    Weights are far larger than one core's caches but not than the last level's: enough to tell
    which kernels are faster, in a fraction of a second.
    """
    weights = sample_weights(format, height, width, 1)[None]
    x = np.random.default_rng(2).standard_normal((max(columns), width)).astype(np.float32)
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Backend(library, device.address, threads)))
        cpu = stack.enter_context(closing(Backend(library, cpu_device(library), threads)))
        rearranged = repacking_buffers(library, format.type, width, height)
        places = [(ours, device.buffer_type), *((cpu, place) for place in (None, *rearranged))]
        rivals = [
            stack.enter_context(closing(Operation(backend, place, format.type, weights, width)))
            for backend, place in places
        ]
        best: list[dict[int, float]] = [{} for _ in rivals]
        started, finished = perf_counter(), 0
        while finished < 2 or perf_counter() - started < seconds:
            finished += 1
            for rival, times in zip(rivals, best, strict=True):
                for count in columns:
                    _, taken = rival.multiply(x[:count], 2)
                    times[count] = min(times.get(count, 1e9), *taken)
    theirs = {count: min(times[count] for times in best[1:]) for count in columns}
    return FormatTimes(best[0], theirs)
