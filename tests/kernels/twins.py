"""Independent references: random weights of every format, and multiplication in NumPy.

The twin repeats the kernel's order of roundings with exact integers and float64 arithmetic; a
fused multiply-add of float32 is computed in float64 and rounded to odd first, which makes the
second rounding right (Boldo and Melquiond 2008).
"""

from __future__ import annotations

from typing import NamedTuple

import gguf
import numpy as np
import numpy.typing as npt

from edgespec._types import ByteArray, Float32Array
from edgespec.kernels.check import sample_weights
from edgespec.kernels.formats import FORMATS, Format

BLOCK = 32
Integers = npt.NDArray[np.int64]
_IQ4 = np.array(gguf.quants.IQ4_NL.kvalues)


def random_weights(
    format: Format, height: int, width: int, seed: int, *, wild: bool = False
) -> ByteArray:
    """Random weights with ordinary scales; or random bytes: scales may be infinite or NaN."""
    if not wild:
        return sample_weights(format, height, width, seed)
    shape = (height, width // format.weights * format.block)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def dequantized(format: Format, raw: ByteArray) -> Float32Array:
    """What gguf makes of the bytes: float32 (height, width)."""
    kind = gguf.GGMLQuantizationType(format.type)
    return gguf.quants.dequantize(raw, kind).astype(np.float32)


def quantized(x: Float32Array, block: int = BLOCK) -> tuple[npt.NDArray[np.int64], Float32Array]:
    """Codes (..., width) and scales (..., width / block) of activations."""
    blocks = x.reshape(*x.shape[:-1], -1, block)
    most = np.abs(blocks).max(-1)
    usable = most > np.float32(1e-30)
    safe = np.where(usable, most, np.float32(1)).astype(np.float32)
    scale = np.where(usable, safe / np.float32(127), np.float32(0)).astype(np.float32)
    factor = (np.float32(127) / safe).astype(np.float32)
    codes = np.rint(np.where(usable[..., None], blocks, 0) * factor[..., None]).astype(np.int64)
    return codes.reshape(x.shape), scale


def fused(x: npt.ArrayLike, y: npt.ArrayLike, z: Float32Array) -> Float32Array:
    """x y + z of float32 (or of small integers), rounded once; x and y fit z's shape."""
    product = np.asarray(x, np.float64) * np.asarray(y, np.float64)  # exact
    total = product + z.astype(np.float64)
    # Rounded to odd: where the sum was not exact, the last bit is set.
    back = total - product
    lost = (product - (total - back)) + (z.astype(np.float64) - back)
    bits = total.view(np.int64).copy()
    inexact = lost != 0
    even = (bits & 1) == 0
    toward_zero = np.where(np.sign(lost) == np.sign(total), 0, 1)
    bits = np.where(inexact & even, np.where(toward_zero == 0, bits + 1, bits - 1), bits)
    return bits.view(np.float64).astype(np.float32)


class Parts(NamedTuple):
    """Weights taken apart: weight = scale * factor * code + minimum * least.

    Attributes:
        codes: int64 (height, blocks, units, size); those of formats without minima are signed.
        scale: float32 (height, blocks).
        factor: int64 (height, blocks, units).
        minimum: float32 (height, blocks), or None.
        least: int64 (height, blocks, units).
    """

    codes: Integers
    scale: Float32Array
    factor: Integers
    minimum: Float32Array | None
    least: Integers

    def together(self) -> Float32Array:
        """The weights, rounded as gguf rounds them."""
        scale = self.scale[..., None] * self.factor.astype(np.float32)
        product = self.codes.astype(np.float32) * scale[..., None]
        if self.minimum is not None:
            minimum = self.minimum[..., None] * self.least.astype(np.float32)
            product = product + minimum[..., None]
        return product.reshape(len(product), -1)


def _nibbles(qs: ByteArray) -> ByteArray:
    """(..., 16) to (..., 32): low halves, then high ones."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _half(block: ByteArray, offset: int) -> Float32Array:
    return block[..., offset : offset + 2].copy().view(np.float16)[..., 0].astype(np.float32)


def _six_bits(packed: ByteArray) -> tuple[ByteArray, ByteArray]:
    """Scales and minima of Q4_K and Q5_K: (..., 12) to two of (..., 8)."""
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    return scales, minima


def taken_apart(format: Format, raw: ByteArray) -> Parts:
    """Codes, scales and minima, by the formulas of gguf's documentation of each type."""
    block = raw.reshape(len(raw), -1, format.block)
    codes, scale, *more = _APART[format.name](block)
    factor, minimum, least = more if len(more) == 3 else (1, *more, 1)
    units = np.broadcast_to(1, (*scale.shape, 1))
    if np.ndim(factor):
        units = np.broadcast_to(1, factor.shape)
    return Parts(
        codes.astype(np.int64).reshape(*units.shape, -1),
        scale.astype(np.float32),
        units * np.asarray(factor, np.int64),
        None if minimum is None else minimum.astype(np.float32),
        units * np.asarray(least, np.int64),
    )


def _high_bits(block: ByteArray, offset: int) -> ByteArray:
    word = block[..., offset : offset + 4]
    return np.unpackbits(word, axis=-1, bitorder="little") << 4


def _q4_0(b):
    return _nibbles(b[..., 2:]).astype(int) - 8, _half(b, 0), None


def _q4_1(b):
    return _nibbles(b[..., 4:]), _half(b, 0), _half(b, 2)


def _q5_0(b):
    codes = _nibbles(b[..., 6:]) | _high_bits(b, 2)
    return codes.astype(int) - 16, _half(b, 0), None


def _q5_1(b):
    return _nibbles(b[..., 8:]) | _high_bits(b, 4), _half(b, 0), _half(b, 2)


def _q8_0(b):
    return b[..., 2:].view(np.int8), _half(b, 0), None


def _iq4_nl(b):
    return _IQ4[_nibbles(b[..., 2:])], _half(b, 0), None


def _mxfp4(b):
    table = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
    scale = np.ldexp(np.float32(1), b[..., 0].astype(np.int32) - 128).astype(np.float32)
    return table[_nibbles(b[..., 1:])], scale, None


def _two_bits(qs: ByteArray) -> ByteArray:
    """(..., 64) to (..., 256): per half, four times 32 weights."""
    halves = qs.reshape(*qs.shape[:-1], 2, 1, 32)
    return ((halves >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3).reshape(*qs.shape[:-1], 256)


def _q2_k(b):
    scales = b[..., :16]
    codes = _two_bits(b[..., 16:80])
    return codes, _half(b, 80), scales & 15, -_half(b, 82), scales >> 4


def _q3_k(b):
    mask, packed = b[..., :32], b[..., 96:108]
    high = (mask[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    codes = _two_bits(b[..., 32:96]) | (high.reshape(*b.shape[:-1], 256) << 2)
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    top = np.concatenate([packed[..., 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    scales = (low | (top << 4)).astype(int) - 32
    return codes.astype(int) - 4, _half(b, 108), scales, None, 0


def _k_codes(qs: ByteArray) -> ByteArray:
    """(..., 128) to (..., 256): 32 low halves, then the 32 high ones, four times."""
    parts = qs.reshape(*qs.shape[:-1], 4, 1, 32)
    return ((parts >> np.array([0, 4], np.uint8)[:, None]) & 15).reshape(*qs.shape[:-1], 256)


def _k_scales(b):
    scales, minima = _six_bits(b[..., 4:16])
    return _half(b, 0), scales, -_half(b, 2), minima


def _q4_k(b):
    return _k_codes(b[..., 16:]), *_k_scales(b)


def _q5_k(b):
    high = (b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _k_codes(b[..., 48:]) | (high.reshape(*b.shape[:-1], 256) << 4), *_k_scales(b)


def _q6_k(b):
    low = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64)
    low = ((low >> np.array([0, 4], np.uint8)[:, None]) & 15).reshape(*b.shape[:-1], 256)
    high = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32)
    high = ((high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3).reshape(*b.shape[:-1], 256)
    codes = (low | (high << 4)).astype(int) - 32
    return codes, _half(b, 208), b[..., 192:208].view(np.int8), None, 0


def _iq4_xs(b):
    low = b[..., 4:8, None] >> np.array([0, 4], np.uint8) & 15
    high = b[..., 2:4].copy().view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low.reshape(*b.shape[:-1], 8) | (high << 4).astype(np.uint8)).astype(int) - 32
    codes = _nibbles(b[..., 8:].reshape(*b.shape[:-1], 8, 16))
    return _IQ4[codes], _half(b, 0), scales, None, 0


_APART = {
    name.upper().lstrip("_"): function
    for name, function in list(globals().items())
    if name in {f"_{found.name.lower()}" for found in FORMATS.values()}
}


def multiplied(format: Format, raw: ByteArray, x: Float32Array) -> Float32Array:
    """The product as the kernels round it: float32 (columns, height)."""
    if format.weights == 1:
        return _multiplied_floats(dequantized(format, raw), x)
    parts = taken_apart(format, raw)
    height, blocks, units, size = parts.codes.shape
    codes, scales = quantized(x, units * size)
    activations = codes.reshape(len(x), blocks, units, size)
    total = np.zeros((len(x), height), np.float32)
    for block in range(blocks):
        scale, ours = scales[:, block, None], activations[:, block]
        products = np.zeros(total.shape, np.float32)
        for unit in range(units):
            integers = (ours[:, unit] @ parts.codes[:, block, unit].T).astype(np.float32)
            products = fused(integers, parts.factor[:, block, unit], products)
        if parts.minimum is None or units == 1:
            total = fused(products * scale, parts.scale[:, block], total)
            if parts.minimum is not None:
                whole = ours.sum((1, 2)).astype(np.float32)[:, None] * scale
                total = fused(whole, parts.minimum[:, block], total)
        else:
            sums = (ours.sum(-1) @ parts.least[:, block].T).astype(np.float32)
            value = fused(sums, parts.minimum[:, block], products * parts.scale[:, block])
            total = fused(value, scale, total)
    return total


def _multiplied_floats(weights: Float32Array, x: Float32Array) -> Float32Array:
    sums = [np.zeros((len(x), len(weights)), np.float32) for _ in range(2)]
    width = weights.shape[1]
    for index in range(width):
        half = 0 if index == width - 1 and width % 2 else index % 2
        sums[half] = fused(x[:, index, None], weights[:, index], sums[half])
    return sums[0] + sums[1]
