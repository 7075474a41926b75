"""A builder of LLVM IR, and what a processor multiplies with: a class for each instruction set.

All compute the same integers, and `gemm` rounds floats in the same order for all of them, so that
a result does not depend on the processor (but for those without fused multiply-add).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import llvmlite.ir as ir

from edgespec.errors import UsageError

__all__ = [
    "F16",
    "F32",
    "I8",
    "I16",
    "I32",
    "I64",
    "INSTRUCTION_SETS",
    "LINE",
    "POINTER",
    "VARIABLE",
    "VOID",
    "Builder",
    "Codes",
    "InstructionSet",
    "arm_features",
    "choose",
    "runnable",
    "vector",
]

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
POINTER = I8.as_pointer()
VOID = ir.VoidType()

LINE = 64
"""Bytes of a cache line."""

Value = Any
"""An ir.Value: llvmlite has no types."""


def vector(element: Any, count: int) -> Any:
    """Return the type of so many elements."""
    return ir.VectorType(element, count)


class Builder(ir.IRBuilder):  # type: ignore[misc]
    """Appends instructions to a function."""

    def splat(self, value: Value, count: int) -> Value:
        """Return a vector of the same value."""
        kind = vector(value.type, count)
        if isinstance(value, ir.Constant):
            return ir.Constant(kind, [value.constant] * count)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.insert_element(undefined, value, I32(0))
        return self.shuffle_vector(first, undefined, ir.Constant(vector(I32, count), [0] * count))

    def shift(self, value: Value, right: int) -> Value:
        """Return every 32-bit lane shifted right (left if negative) without its sign."""
        if right == 0:
            return value
        distance = self.splat(I32(abs(right)), value.type.count)
        return self.lshr(value, distance) if right > 0 else self.shl(value, distance)

    def masked(self, value: Value, mask: int) -> Value:
        """Return every lane AND a constant."""
        return self.and_(value, self.splat(value.type.element(mask), value.type.count))

    def at(self, pointer: Value, offset: Value | int, kind: Any) -> Value:
        """Return a pointer to `kind`, so many bytes behind another pointer."""
        distance = I64(offset) if isinstance(offset, int) else offset
        return self.bitcast(self.gep(pointer, [distance]), kind.as_pointer())

    def load_at(self, pointer: Value, offset: Value | int, kind: Any) -> Value:
        """Load from any address."""
        loaded = self.load(self.at(pointer, offset, kind))
        loaded.align = 1
        return loaded

    def store_at(self, value: Value, pointer: Value, offset: Value | int) -> None:
        """Store to any address."""
        self.store(value, self.at(pointer, offset, value.type)).align = 1

    def intrinsic(self, name: str, result: Any, *arguments: Value) -> Value:
        """Call an intrinsic function of LLVM."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self.module, kind, name)
        return self.call(function, arguments)

    def loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """Run `body` for start, start + step ... below stop.

        Args:
            carried: values that `body` gets with the index, and returns anew.

        Returns:
            The carried values after the last round.
        """
        before = self.block
        head = self.append_basic_block("head")
        inside = self.append_basic_block("inside")
        after = self.append_basic_block("after")
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        values = [self.phi(value.type) for value in carried]
        index.add_incoming(start, before)
        for phi, value in zip(values, carried, strict=True):
            phi.add_incoming(value, before)
        self.cbranch(self.icmp_signed("<", index, stop), inside, after)
        self.position_at_end(inside)
        new = body(index, list(values))
        end = self.block
        index.add_incoming(self.add(index, I64(step)), end)
        for phi, value in zip(values, new, strict=True):
            phi.add_incoming(value, end)
        self.branch(head)
        self.position_at_end(after)
        return values


def function(module: ir.Module, name: str, result: Any, arguments: Sequence[Any]) -> Builder:
    """Begin a function; its arguments are `builder.function.args`."""
    made = ir.Function(module, ir.FunctionType(result, arguments), name)
    return Builder(made.append_basic_block("entry"))


VARIABLE = "EDGESPEC_KERNELS_ISA"
"""Environment variable that forces an instruction set by its name."""


class Codes(NamedTuple):
    """Integers that stand for weights.

    Attributes:
        vectors: <4 rows x i8>, each the same 4 weights of every row.
        most: the largest code if they are unsigned; 0 if they are signed (-127 or -128 to 127).
        zero: the code that stands for 0.
    """

    vectors: Sequence[Value]
    most: int
    zero: int = 0

    @property
    def signed(self) -> bool:
        """Whether codes may be negative."""
        return self.most == 0


Start = Callable[[int], Value]
"""Gives -zero times the sum of the activations, as i32: what a dot product begins with, so that
codes need not be made signed."""


class InstructionSet:
    """Plain vectors: what LLVM makes of them on any processor.

    Attributes:
        name: for `VARIABLE` and `doctor`.
        rows: of a group: as many as a vector has 32-bit lanes.
        columns: activations that are multiplied at once; more would not fit into registers.
        tile: columns that one instruction multiplies.
        pairs: of queries and heads whose sums fit into registers together.
        needs: the processor's features, by LLVM's names.
        triple: the target that code is made for; "" is this machine's.
        fused: whether a multiplication and an addition can be rounded once.
    """

    name = "plain"
    rows = 4
    columns = 4
    tile = 1
    pairs = 1
    needs: tuple[str, ...] = ()
    triple = ""
    fused = False

    def dot(self, b: Builder, codes: Codes, x: Sequence[Value], start: Start) -> Value:
        """Sum products of codes less their zero and activations for each row: <rows x i32>.

        Args:
            x: as many i32 as there are vectors, each 4 signed activations of -127 to 127.
        """
        right = b.ashr if codes.signed else b.lshr
        total = self._begin(b, codes.zero, start)
        for code, four in zip(codes.vectors, x, strict=True):
            words = b.bitcast(code, vector(I32, self.rows))
            for byte in range(4):
                weight = right(b.shift(words, 8 * byte - 24), b.splat(I32(24), self.rows))
                one = b.ashr(b.shl(four, I32(24 - 8 * byte)), I32(24))
                total = b.add(total, b.mul(weight, b.splat(one, self.rows)))
        return total

    def _begin(self, b: Builder, zero: int, start: Start) -> Value:
        return b.splat(start(zero) if zero else I32(0), self.rows)

    def dots(
        self, b: Builder, codes: Codes, x: Sequence[Sequence[Value]], starts: Sequence[Start]
    ) -> list[Value]:
        """Compute the same for `tile` columns or fewer."""
        return [self.dot(b, codes, one, start) for one, start in zip(x, starts, strict=True)]

    def look_up(self, b: Builder, table: Sequence[int], indices: Value) -> Value:
        """Return the entries of a table of 16 signed bytes: <4 rows x i8>.

        Args:
            indices: <4 rows x i8>, 0 to 15.
        """
        count = 4 * self.rows
        found = b.splat(I8(table[0]), count)
        for index, entry in enumerate(table[1:], 1):
            hit = b.icmp_unsigned("==", indices, b.splat(I8(index), count))
            found = b.select(hit, b.splat(I8(entry), count), found)
        return found

    def multiply_add(self, b: Builder, x: Value, y: Value, z: Value) -> Value:
        """x y + z, rounded once where the processor can."""
        if not self.fused:
            return b.fadd(b.fmul(x, y), z)
        return b.intrinsic(f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)


class AVX2(InstructionSet):
    """Two products in 16 bits, as many of these added as cannot overflow, then 32 bits."""

    name = "avx2"
    rows = 8
    columns = 4
    needs: tuple[str, ...] = ("avx2", "fma", "f16c")
    triple = "x86_64"
    fused = True

    def dot(self, b: Builder, codes: Codes, x: Sequence[Value], start: Start) -> Value:
        fitting = 1 if codes.signed else 32767 // (2 * 127 * codes.most)
        sums = [self._begin(b, codes.zero, start)] if codes.zero else []
        for at in range(0, len(x), fitting):
            pairs = [
                self._pairs(b, code, four, codes.signed)
                for code, four in list(zip(codes.vectors, x, strict=True))[at : at + fitting]
            ]
            ones = b.splat(I16(1), 16)
            sums.append(
                b.intrinsic("llvm.x86.avx2.pmadd.wd", vector(I32, 8), added(b, pairs), ones)
            )
        return added(b, sums)

    def _pairs(self, b: Builder, code: Value, four: Value, signed: bool) -> Value:
        bytes32 = vector(I8, 32)
        x = b.bitcast(b.splat(four, 8), bytes32)
        if signed:  # |w| (x sign w): -128 is 128 without a sign, and x is never -128
            x = b.intrinsic("llvm.x86.avx2.psign.b", bytes32, x, code)
            code = b.intrinsic("llvm.abs.v32i8", bytes32, code, ir.IntType(1)(0))
        return b.intrinsic("llvm.x86.avx2.pmadd.ub.sw", vector(I16, 16), code, x)

    def look_up(self, b: Builder, table: Sequence[int], indices: Value) -> Value:
        entries = ir.Constant(vector(I8, 32), [*table] * 2)
        return b.intrinsic("llvm.x86.avx2.pshuf.b", vector(I8, 32), entries, indices)


class AVXVNNI(AVX2):
    """Four products in 32 bits by one instruction, 256 bits wide."""

    name = "avx-vnni"
    columns = 6
    needs: tuple[str, ...] = ("avx2", "avxvnni", "fma", "f16c")
    instruction = "llvm.x86.avx512.vpdpbusd.256"

    def dot(self, b: Builder, codes: Codes, x: Sequence[Value], start: Start) -> Value:
        # Signed codes plus 128 are unsigned.
        total = self._begin(b, 128 if codes.signed else codes.zero, start)
        count = 4 * self.rows
        for code, four in zip(codes.vectors, x, strict=True):
            if codes.signed:
                code = b.xor(code, b.splat(I8(-128), count))
            spread = b.bitcast(b.splat(four, self.rows), vector(I8, count))
            total = self._accumulate(b, total, code, spread)
        return total

    def _accumulate(self, b: Builder, total: Value, codes: Value, x: Value) -> Value:
        """Add the products of unsigned and signed bytes, four to a lane."""
        words = vector(I32, self.rows)
        if not _vnni_takes_bytes():
            codes, x = b.bitcast(codes, words), b.bitcast(x, words)
        return b.intrinsic(self.instruction, words, total, codes, x)


class AVX512VLVNNI(AVXVNNI):
    """The same in AVX-512's encoding, with twice the registers."""

    name = "avx512vl-vnni"
    columns = 8
    pairs = 3
    needs: tuple[str, ...] = ("avx2", "avx512vl", "avx512bw", "avx512vnni", "fma", "f16c")


class AVX512VNNI(AVXVNNI):
    """512 bits."""

    name = "avx512-vnni"
    rows = 16
    columns = 8
    pairs = 3
    needs: tuple[str, ...] = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "fma", "f16c")
    instruction = "llvm.x86.avx512.vpdpbusd.512"

    def look_up(self, b: Builder, table: Sequence[int], indices: Value) -> Value:
        entries = ir.Constant(vector(I8, 64), [*table] * 4)
        return b.intrinsic("llvm.x86.avx512.pshuf.b.512", vector(I8, 64), entries, indices)


class NEONDot(InstructionSet):
    """ARM's dot product of signed bytes."""

    name = "neon-dotprod"
    columns = 6
    needs: tuple[str, ...] = ("neon", "dotprod")
    triple = "aarch64"
    fused = True

    def dot(self, b: Builder, codes: Codes, x: Sequence[Value], start: Start) -> Value:
        words, name = vector(I32, 4), "llvm.aarch64.neon.sdot.v4i32.v16i8"
        total = self._begin(b, codes.zero, start)
        for code, four in zip(codes.vectors, x, strict=True):
            spread = b.bitcast(b.splat(four, 4), vector(I8, 16))
            total = b.intrinsic(name, words, total, code, spread)
        return total

    def look_up(self, b: Builder, table: Sequence[int], indices: Value) -> Value:
        entries = ir.Constant(vector(I8, 16), [*table])
        return b.intrinsic("llvm.aarch64.neon.tbl1.v16i8", vector(I8, 16), entries, indices)


class NEONMatrix(NEONDot):
    """ARM's product of a 2x8 and an 8x2 matrix of signed bytes: two rows by two columns."""

    name = "neon-i8mm"
    tile = 2
    needs: tuple[str, ...] = ("neon", "dotprod", "i8mm")

    def dots(
        self, b: Builder, codes: Codes, x: Sequence[Sequence[Value]], starts: Sequence[Start]
    ) -> list[Value]:
        if len(x) < self.tile:
            return super().dots(b, codes, x, starts)
        words, name = vector(I32, 4), "llvm.aarch64.neon.smmla.v4i32.v16i8"
        first, second = (self._begin(b, codes.zero, start) for start in starts)
        totals = [_shuffled(b, first, second, (0, 4, 1, 5))] * 2
        for at, rows in enumerate(self._row_pairs(b, codes.vectors)):
            eights = [_eight(b, one[2 * at], one[2 * at + 1]) for one in x]
            both = b.insert_element(b.splat(eights[0], 2), eights[1], I32(1))
            matrix = b.bitcast(both, vector(I8, 16))
            totals = [
                b.intrinsic(name, words, total, b.bitcast(row, vector(I8, 16)), matrix)
                for total, row in zip(totals, rows, strict=True)
            ]
        return [_shuffled(b, totals[0], totals[1], lanes) for lanes in ((0, 2, 4, 6), (1, 3, 5, 7))]

    def _row_pairs(self, b: Builder, vectors: Sequence[Value]) -> list[tuple[Value, Value]]:
        """Return for each 8 weights: those of rows 0 and 1, and those of rows 2 and 3."""
        words = [b.bitcast(code, vector(I32, 4)) for code in vectors]
        return [
            (_shuffled(b, first, second, (0, 4, 1, 5)), _shuffled(b, first, second, (2, 6, 3, 7)))
            for first, second in zip(words[::2], words[1::2], strict=True)
        ]


def _shuffled(b: Builder, first: Value, second: Value, lanes: Sequence[int]) -> Value:
    return b.shuffle_vector(first, second, ir.Constant(vector(I32, len(lanes)), list(lanes)))


def _eight(b: Builder, low: Value, high: Value) -> Value:
    """Return two neighbouring i32 as an i64: one load, as the compiler sees."""
    return b.or_(b.zext(low, I64), b.shl(b.zext(high, I64), I64(32)))


INSTRUCTION_SETS: dict[str, InstructionSet] = {
    found.name: found
    for found in (
        AVX512VNNI(),
        AVX512VLVNNI(),
        AVXVNNI(),
        AVX2(),
        NEONMatrix(),
        NEONDot(),
        InstructionSet(),
    )
}
"""By name, fastest first."""


def runnable(found: InstructionSet) -> bool:
    """Return whether this machine can run it."""
    features = {name for name, has in llvm.get_host_cpu_features().items() if has}
    here = llvm.get_process_triple().partition("-")[0].replace("arm64", "aarch64")
    if here == "aarch64":
        features |= arm_features(_auxiliary(16), _auxiliary(26))
    return found.triple in ("", here) and features.issuperset(found.needs)


def arm_features(capabilities: int, more: int) -> set[str]:
    """Return LLVM's names of what Linux says of an ARM processor: older LLVMs do not ask.

    Args:
        capabilities, more: AT_HWCAP and AT_HWCAP2 (Linux, arch/arm64/include/uapi/asm/hwcap.h).
    """
    bits = {"neon": capabilities >> 1, "dotprod": capabilities >> 20, "i8mm": more >> 13}
    return {name for name, bit in bits.items() if bit & 1}


def _auxiliary(kind: int) -> int:
    """Return an entry of the auxiliary vector; 0 where the C library cannot tell."""
    get = getattr(ctypes.CDLL(None), "getauxval", None)
    if get is None:
        return 0
    get.restype, get.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return int(get(kind))


def choose() -> InstructionSet:
    """Return the fastest that this machine can run, or the one that `VARIABLE` names.

    Raises:
        UsageError: that one is unknown or cannot be run here.
    """
    usable = {name: found for name, found in INSTRUCTION_SETS.items() if runnable(found)}
    name = os.environ.get(VARIABLE)
    if not name:
        return next(iter(usable.values()))
    if name not in usable:
        raise UsageError(f"{VARIABLE} is {name!r}: this machine can run {', '.join(usable)}")
    return usable[name]


def added(b: Builder, values: Sequence[Value]) -> Value:
    """Return their sum."""
    total = values[0]
    for value in values[1:]:
        total = b.add(total, value)
    return total


@cache
def _vnni_takes_bytes() -> bool:
    """Return whether this LLVM declares the instruction for vectors of bytes, as newer ones do."""
    module = ir.Module()
    b = function(module, "probe", VOID, [vector(I32, 8), vector(I8, 32)])
    total, codes = b.function.args
    b.intrinsic(AVXVNNI.instruction, total.type, total, codes, codes)
    b.ret_void()
    try:
        llvm.parse_assembly(str(module)).verify()
    except RuntimeError:
        return False
    return True
