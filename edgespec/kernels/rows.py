"""The small operations of a layer, on one row: norms, sums, products, activations, rotation.

All vectors have 8 lanes on every processor, sums have one order, and there is one exp.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from edgespec.kernels.isa import (
    F16,
    F32,
    I32,
    I64,
    POINTER,
    VOID,
    Builder,
    InstructionSet,
    Value,
    function,
    vector,
)

__all__ = [
    "FLOATS",
    "INTEGERS",
    "LANES",
    "ROW_KERNELS",
    "approximate_exp",
    "constant",
    "each_eight",
    "emit_rows",
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
    """Return a vector of eight times a number."""
    return ir.Constant(FLOATS, [value] * LANES)


def each_eight(b: Builder, count: Value, body: Callable[[Value], None]) -> None:
    """Run `body` for 0, 8, 16 ... below a count."""

    def step(index: Value, _: list[Value]) -> list[Value]:
        body(index)
        return []

    b.loop(I64(0), count, LANES, [], step)


def sums_of(b: Builder, vectors: list[Value]) -> Value:
    """Return the sum of each of eight vectors, in one: additions in a tree, the same for each."""
    for first, second in (_PAIRS, _FOURS, _HALVES):
        vectors = [
            b.fadd(_shuffled(b, x, y, first), _shuffled(b, x, y, second))
            for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _shuffled(b: Builder, x: Value, y: Value, lanes: tuple[int, ...]) -> Value:
    return b.shuffle_vector(x, y, ir.Constant(INTEGERS, list(lanes)))


def sum_of(b: Builder, x: Value) -> Value:
    """Return the sum of a vector's lanes."""
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


ROW_KERNELS = (
    *("rms_norm", "add_rows", "multiply_rows", "swiglu", "geglu"),
    *("rotation", "rotate_halves", "rotate_pairs", "to_half", "scale_rows"),
)
"""Names of the functions that `emit_rows` defines."""

_DOUBLE = ir.DoubleType()
_GELU = (0.7978845608028654, 0.044715)  # sqrt(2 / pi), and Hendrycks and Gimpel's constant


def emit_rows(module: ir.Module, isa: InstructionSet) -> None:
    """Define the functions of `ROW_KERNELS`."""
    _emit_norm(module, isa)
    _emit_pairs(module, "add_rows", lambda b, x, y: b.fadd(x, y))
    _emit_pairs(module, "multiply_rows", lambda b, x, y: b.fmul(x, y))
    _emit_pairs(module, "swiglu", lambda b, x, y: b.fmul(_gated(b, isa, x, x), y))
    _emit_pairs(module, "geglu", lambda b, x, y: b.fmul(_gelu(b, isa, x), y))
    _emit_rotation(module)
    _emit_rotate_halves(module)
    _emit_rotate_pairs(module)
    _emit_to_half(module)
    _emit_scale(module, isa)


def _load(b: Builder, pointer: Value, index: Value) -> Value:
    return b.load_at(pointer, b.mul(index, I64(4)), FLOATS)


def _store(b: Builder, value: Value, pointer: Value, index: Value) -> None:
    b.store_at(value, pointer, b.mul(index, I64(4)))


def _emit_norm(module: ir.Module, isa: InstructionSet) -> None:
    """Define ``void rms_norm(x, out, width, epsilon)``: x / sqrt(mean of x^2 + epsilon)."""
    b = function(module, "rms_norm", VOID, [POINTER, POINTER, I64, I64])
    x, out, width, bits = b.function.args

    def square(index: Value, sums: list[Value]) -> list[Value]:
        value = _load(b, x, index)
        return [isa.multiply_add(b, value, value, sums[0])]

    (squares,) = b.loop(I64(0), width, LANES, [constant(0.0)], square)
    mean = b.fdiv(sum_of(b, squares), b.uitofp(width, F32))
    epsilon = b.bitcast(b.trunc(bits, I32), F32)
    root = b.intrinsic("llvm.sqrt.f32", F32, b.fadd(mean, epsilon))
    scale = b.splat(b.fdiv(F32(1.0), root), LANES)
    each_eight(b, width, lambda at: _store(b, b.fmul(_load(b, x, at), scale), out, at))
    b.ret_void()


def _emit_pairs(
    module: ir.Module, name: str, combine: Callable[[Builder, Value, Value], Value]
) -> None:
    """Define ``void name(x, y, out, width)``; out may be x or y."""
    b = function(module, name, VOID, [POINTER, POINTER, POINTER, I64])
    x, y, out, width = b.function.args
    each_eight(
        b, width, lambda at: _store(b, combine(b, _load(b, x, at), _load(b, y, at)), out, at)
    )
    b.ret_void()


def _gated(b: Builder, isa: InstructionSet, x: Value, gate: Value) -> Value:
    """x times the logistic function of a gate."""
    negative = b.intrinsic("llvm.copysign.v8f32", FLOATS, gate, constant(-1.0))
    power = approximate_exp(b, isa, negative)
    upper = b.select(b.fcmp_ordered("<", gate, constant(0.0)), power, constant(1.0))
    return b.fmul(x, b.fdiv(upper, b.fadd(constant(1.0), power)))


def _gelu(b: Builder, isa: InstructionSet, x: Value) -> Value:
    """x (1 + tanh(z)) / 2 = x logistic(2 z), with z = sqrt(2 / pi) (x + 0.044715 x^3)."""
    root, cubic = _GELU
    square = b.fmul(x, x)
    inner = isa.multiply_add(b, square, constant(2 * root * cubic), constant(2 * root))
    return _gated(b, isa, x, b.fmul(x, inner))


def _emit_rotation(module: ir.Module) -> None:
    """Define ``void rotation(out, position, half, base, scale, factors, magnitude)``.

    Cosines, then sines, of position * scale * base^(-i / half) / factors[i], times a magnitude
    (Su et al. 2021, "RoFormer", section 3.2.2). base, scale, magnitude: bits of floats. factors:
    an address, or 0.
    """
    b = function(module, "rotation", VOID, [POINTER, *[I64] * 6])
    out, position, half, base, scale, factors, magnitude = b.function.args
    base, scale, magnitude = (
        b.fpext(b.bitcast(b.trunc(bits, I32), F32), _DOUBLE) for bits in (base, scale, magnitude)
    )
    turn = b.fmul(b.sitofp(position, _DOUBLE), scale)

    def angle(index: Value, _: list[Value]) -> list[Value]:
        exponent = b.fdiv(b.sitofp(b.neg(index), _DOUBLE), b.sitofp(half, _DOUBLE))
        theta = b.fmul(turn, _libm(b, "pow", base, exponent))
        before = b.block
        with b.if_then(b.icmp_unsigned("!=", factors, I64(0))):
            given = b.load_at(b.inttoptr(factors, POINTER), b.mul(index, I64(4)), F32)
            divided = b.fdiv(theta, b.fpext(given, _DOUBLE))
            inside = b.block
        chosen = b.phi(_DOUBLE)
        chosen.add_incoming(theta, before)
        chosen.add_incoming(divided, inside)
        for name, place in (("cos", index), ("sin", b.add(index, half))):
            value = b.fmul(_libm(b, name, chosen), magnitude)
            b.store_at(b.fptrunc(value, F32), out, b.mul(place, I64(4)))
        return []

    b.loop(I64(0), half, 1, [], angle)
    b.ret_void()


def _libm(b: Builder, name: str, *arguments: Value) -> Value:
    """Return a function of the C library on doubles."""
    found = b.module.globals.get(name)
    if found is None:
        found = ir.Function(b.module, ir.FunctionType(_DOUBLE, [_DOUBLE] * len(arguments)), name)
    return b.call(found, arguments)


def _emit_rotate_halves(module: ir.Module) -> None:
    """Define ``void rotate_halves(x, out, table, half)``: pairs are i and i + half."""
    b = function(module, "rotate_halves", VOID, [POINTER, POINTER, POINTER, I64])
    x, out, table, half = b.function.args

    def turn(at: Value) -> None:
        behind = b.add(at, half)
        first, second = _load(b, x, at), _load(b, x, behind)
        cosine, sine = _load(b, table, at), _load(b, table, behind)
        _store(b, b.fsub(b.fmul(first, cosine), b.fmul(second, sine)), out, at)
        _store(b, b.fadd(b.fmul(first, sine), b.fmul(second, cosine)), out, behind)

    each_eight(b, half, turn)
    b.ret_void()


def _emit_rotate_pairs(module: ir.Module) -> None:
    """Define ``void rotate_pairs(x, out, table, half)``: pairs are neighbours."""
    b = function(module, "rotate_pairs", VOID, [POINTER, POINTER, POINTER, I64])
    x, out, table, half = b.function.args
    fours = vector(F32, LANES // 2)
    signs = ir.Constant(FLOATS, [-1.0, 1.0] * (LANES // 2))

    def twice(pointer: Value) -> Value:
        four = b.load_at(pointer, 0, fours)
        return b.shuffle_vector(four, four, _lanes([i // 2 for i in range(LANES)]))

    def turn(at: Value) -> None:
        value = _load(b, x, at)
        other = b.shuffle_vector(value, value, _lanes([i ^ 1 for i in range(LANES)]))
        place = b.mul(at, I64(2))  # half as many angles, of 4 bytes
        cosine = twice(b.gep(table, [place]))
        sine = twice(b.gep(table, [b.add(place, b.mul(half, I64(4)))]))
        turned = b.fadd(b.fmul(value, cosine), b.fmul(b.fmul(other, sine), signs))
        _store(b, turned, out, at)

    each_eight(b, b.mul(half, I64(2)), turn)
    b.ret_void()


def _lanes(numbers: list[int]) -> Value:
    return ir.Constant(vector(I32, len(numbers)), numbers)


def _emit_to_half(module: ir.Module) -> None:
    """Define ``void to_half(x, out, width)``: float32 to float16, to the nearest."""
    b = function(module, "to_half", VOID, [POINTER, POINTER, I64])
    x, out, width = b.function.args

    def convert(at: Value) -> None:
        halves = b.fptrunc(_load(b, x, at), vector(F16, LANES))
        b.store_at(halves, out, b.mul(at, I64(2)))

    each_eight(b, width, convert)
    b.ret_void()


def _emit_scale(module: ir.Module, isa: InstructionSet) -> None:
    """Define ``void scale_rows(x, out, width, factor, bias)``; both are bits of floats."""
    b = function(module, "scale_rows", VOID, [POINTER, POINTER, *[I64] * 3])
    x, out, width, *bits = b.function.args
    factor, bias = (b.splat(b.bitcast(b.trunc(each, I32), F32), LANES) for each in bits)
    each_eight(
        b, width, lambda at: _store(b, isa.multiply_add(b, _load(b, x, at), factor, bias), out, at)
    )
    b.ret_void()
