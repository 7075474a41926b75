"""Reductions over whole rows of logits, written so that the compiler makes vector code of them."""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel

__all__ = ["argmax", "best_two", "log_normalizer", "softmax"]

_BLOCK = 256

_MAGNITUDE = np.int32(0x7FFFFFFF)
_POSITIVE_INFINITY = np.int32(0x7F800000)  # as `_ordered` gives it
_NEGATIVE_INFINITY = np.int32(-0x7F800000)

_PER_LN2 = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # 355 / 512: its products with small integers are exact
_LN2_LOW = np.float32(-2.1219444005469057e-4)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_TAYLOR_3, _TAYLOR_4, _TAYLOR_5 = np.float32(1 / 6), np.float32(1 / 24), np.float32(1 / 120)
_TAYLOR_6, _TAYLOR_7 = np.float32(1 / 720), np.float32(1 / 5040)
_NEGLIGIBLE = np.float32(-86.5)  # exp of this is 3e-38, nearly the smallest normal float32
_MANTISSA_BITS = np.int32(23)


@kernel
def _ordered(bits: np.int32) -> np.int32:
    """Turn IEEE-754 bits into an integer ordered as the floats; NaNs are outside [-inf, +inf]."""
    sign = np.int32(bits >> np.int32(31))
    ordered: np.int32 = np.int32(((bits & _MAGNITUDE) ^ sign) - sign)
    return ordered


@kernel
def argmax(logits: Float32Array) -> int:
    """Return the index of the largest value of a float32 row, the first among equals.

    -1 if any value is NaN or +inf. Values are compared as integers, so that NaNs are found in the
    same pass.
    """
    bits = logits.view(np.int32)
    largest, smallest = _ordered(bits[0]), _ordered(bits[0])
    where = 0
    for start in range(0, len(bits), _BLOCK):
        highest, lowest = largest, smallest
        for i in range(start, min(start + _BLOCK, len(bits))):
            value = _ordered(bits[i])
            highest = max(highest, value)
            lowest = min(lowest, value)
        smallest = lowest
        if highest > largest:
            largest, where = highest, start
    if largest >= _POSITIVE_INFINITY or smallest < _NEGATIVE_INFINITY:
        return -1
    while _ordered(bits[where]) != largest:
        where += 1
    return where


@kernel
def best_two(logits: Float32Array) -> tuple[int, float]:
    """Return the index of the largest value, and how far it stands above the second.

    -1 if any value is NaN or +inf, or all are -inf.
    """
    best = argmax(logits)
    if best < 0 or logits[best] == -np.inf:
        return -1, 0.0
    bits = logits.view(np.int32)
    second = _NEGATIVE_INFINITY
    for i in range(best):
        second = max(second, _ordered(bits[i]))
    for i in range(best + 1, len(bits)):
        second = max(second, _ordered(bits[i]))
    for i in range(len(bits)):
        if i != best and _ordered(bits[i]) == second:
            return best, float(logits[best] - logits[i])
    return best, 0.0


@kernel
def softmax(
    values: Float32Array,
    count: int,
    largest: np.float32,
    inverse_temperature: np.float32,
    out: Float32Array,
) -> float:
    """Write the softmax of the first `count` values at a temperature; return its divisor.

    exp((v - largest) / T) through 2**n * exp(r) with abs(r) <= ln(2) / 2 and the Taylor series
    of exp(r), to 1e-7; what is below 1e-37 of the largest becomes 0.

    Args:
        values: float32; -inf is allowed.
        count: how many to look at.
        largest: their maximum, finite.
        inverse_temperature: positive and finite.
        out: float32, receives the probabilities.
    """
    bits = out.view(np.int32)
    for i in range(count):
        x = (values[i] - largest) * inverse_temperature
        wanted = np.int32(x > _NEGLIGIBLE)
        x = max(x, _NEGLIGIBLE)
        n = np.int32(x * _PER_LN2 - _HALF)  # x <= 0: cutting off rounds to the nearest
        r = (x - np.float32(n) * _LN2_HIGH) - np.float32(n) * _LN2_LOW
        y = _TAYLOR_5 + r * (_TAYLOR_6 + r * _TAYLOR_7)
        y = _HALF + r * (_TAYLOR_3 + r * (_TAYLOR_4 + r * y))
        out[i] = _ONE + r * (_ONE + r * y)
        bits[i] = (bits[i] + (n << _MANTISSA_BITS)) * wanted
    total = _sum(out, count)
    scale = np.float32(1.0 / total)
    for i in range(count):
        out[i] *= scale
    return total


@kernel
def _sum(values: Float32Array, count: int) -> float:
    """Sum in float64, in four independent strands."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = count - count % 4
    for i in range(0, whole, 4):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
    for i in range(whole, count):
        a += values[i]
    return (a + b) + (c + d)


@kernel
def log_normalizer(
    logits: Float32Array, scratch: Float32Array, ids: Int32Array, values: Float32Array
) -> float:
    """Return ln of the sum of exp over a row of logits; list the row's most likely tokens.

    The log-probability of a token is its logit less this: of the model's own distribution, at
    temperature 1 and before every filter.

    Args:
        logits: float32 (n_vocab,).
        scratch: float32 (n_vocab,), overwritten.
        ids: int32 (n,), n <= n_vocab; receives the most likely tokens, of equals the smaller id
            first.
        values: float32 (n,), receives their logits.

    Returns:
        NaN if the row has NaN or +inf.
    """
    best = argmax(logits)
    if best < 0:
        return math.nan
    values[:] = -np.inf
    ids[:] = -1
    last = len(ids) - 1
    if last >= 0:
        for token in range(len(logits)):
            if logits[token] > values[last]:
                _insert(token, logits[token], ids, values)
    largest = logits[best]
    total = softmax(logits, len(logits), largest, np.float32(1.0), scratch)
    return float(largest) + math.log(total)


@kernel
def _insert(token: int, value: np.float32, ids: Int32Array, values: Float32Array) -> None:
    """Insert a token into a descending list and drop the last one."""
    at = len(ids) - 1
    while at > 0 and values[at - 1] < value:
        ids[at], values[at] = ids[at - 1], values[at - 1]
        at -= 1
    ids[at], values[at] = token, value
