"""Vectors of 8 lanes: the same order of additions, and the same exp, on every processor."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from edgespec.kernels.emit import F32, I32, I64, Builder, Value, vector
from edgespec.kernels.isa import InstructionSet

__all__ = [
    "FLOATS",
    "INTEGERS",
    "LANES",
    "approximate_exp",
    "constant",
    "each_eight",
    "sum_of",
    "sums_of",
]

LANES = 8
FLOATS, INTEGERS = vector(F32, LANES), vector(I32, LANES)

_PAIRS = ((0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15))
_FOURS = ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
_HALVES = ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))

_LEAST = -87.0
_LN2 = (0.693359375, -2.12194440e-4)
"""A number of few bits, and what is missing to ln 2: Cody and Waite 1980."""
_POLYNOMIAL = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2)
"""Taylor's: within ln(2)/2 of 0 the next term is under 6e-9."""


def constant(value: float) -> Value:
    """A vector of eight times a number."""
    return ir.Constant(FLOATS, [value] * LANES)


def each_eight(b: Builder, count: Value, body: Callable[[Value], None]) -> None:
    """Run `body` for 0, 8, 16 ... below a count."""

    def step(index: Value, _: list[Value]) -> list[Value]:
        body(index)
        return []

    b.loop(I64(0), count, LANES, [], step)


def sums_of(b: Builder, vectors: list[Value]) -> Value:
    """The sum of each of eight vectors, in one: additions in a tree, the same for each."""
    for first, second in (_PAIRS, _FOURS, _HALVES):
        vectors = [
            b.fadd(_shuffled(b, x, y, first), _shuffled(b, x, y, second))
            for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _shuffled(b: Builder, x: Value, y: Value, lanes: tuple[int, ...]) -> Value:
    return b.shuffle_vector(x, y, ir.Constant(INTEGERS, list(lanes)))


def sum_of(b: Builder, x: Value) -> Value:
    """The sum of a vector's lanes."""
    return b.extract_element(sums_of(b, [x] * LANES), I32(0))


def approximate_exp(b: Builder, isa: InstructionSet, x: Value) -> Value:
    """Approximate exp of numbers of at most 0: 1 for 0 exactly, 0 under -87, NaN for NaN."""
    small = b.fcmp_ordered("<", x, constant(_LEAST))
    bounded = b.select(small, constant(_LEAST), x)
    turns = b.intrinsic(
        f"llvm.rint.v{LANES}f32", FLOATS, b.fmul(bounded, constant(1.44269504088896341))
    )
    rest = bounded
    for part in _LN2:
        rest = isa.multiply_add(b, turns, constant(-part), rest)
    series = constant(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        series = isa.multiply_add(b, series, rest, constant(coefficient))
    near = b.fadd(isa.multiply_add(b, b.fmul(rest, rest), series, rest), constant(1.0))
    number = b.select(b.fcmp_ordered("ord", x, x), turns, constant(0.0))
    exponent = b.add(b.fptosi(number, INTEGERS), b.splat(I32(127), LANES))
    power = b.bitcast(b.shl(exponent, b.splat(I32(23), LANES)), FLOATS)
    return b.select(small, constant(0.0), b.fmul(near, power))
