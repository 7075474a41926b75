"""Attention: queries against a cache of keys and values, in blocks of keys.

A *record* is what some keys contribute to one head of one query: the largest score, the sum of
exp(score - largest), and the values weighted by these (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention", section 3.1). Records of
fixed blocks of keys are merged in their order. So what comes out for a query does not depend on
how many others there are, nor on how many threads share the blocks.

All vectors have 8 lanes on every processor, so that sums have one order everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import llvmlite.ir as ir

from edgespec.kernels.isa import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    LINE,
    POINTER,
    VOID,
    Builder,
    InstructionSet,
    Value,
    function,
    vector,
)
from edgespec.kernels.rows import (
    FLOATS,
    INTEGERS,
    LANES,
    approximate_exp,
    constant,
    each_eight,
    sum_of,
    sums_of,
)

__all__ = [
    "CACHE_TYPES",
    "CHUNK",
    "KEYS",
    "RECORD_HEAD",
    "emit_attention",
]

CACHE_TYPES = {0: "F32", 1: "F16", 8: "Q8_0"}
"""By ggml's numbers."""

KEYS = 32
"""Keys that are unpacked at a time; a cache has a multiple of them."""

CHUNK = 64
"""Values that are summed in registers; a record has a multiple of them."""

RECORD_HEAD = 64
"""Bytes of a record before its values: float largest, sum, and the factor of the last change."""

_LARGEST, _SUM, _FACTOR = 0, 4, 8
_LOWEST = -3e38
_MASKED = 0xFC00  # float16 of -inf

_Q8_BLOCK, _Q8_WEIGHTS = 34, 32


def emit_attention(module: ir.Module, isa: InstructionSet) -> None:
    """Define ``attend_F16`` and so on for each type of cache, ``merge``, ``finish``, ``ask``."""
    for name in CACHE_TYPES.values():
        _emit_attend(module, isa, name)
    _emit_merge(module, isa)
    _emit_finish(module)
    _emit_ask(module)


def _emit_attend(module: ir.Module, isa: InstructionSet, kind: str) -> None:
    """Define ``void attend(k, k_stride, k_width, v, v_stride, v_width, keys, scale, count,
    ask_k, ask_v, ask_stride, ask_size, queries, masks, records, scratch)``: one record for each
    pair of a query and a head.

    k, v: rows of the cache, so many bytes apart; widths are numbers in a row. keys: a multiple of
    `KEYS`. scale: the bits of a float. count: of pairs. ask_k, ask_v: what the memory is asked for
    meanwhile: for each key so many bytes, so far apart. queries: their addresses, float rows.
    masks: addresses of a float16 for each key, or 0. scratch: `KEYS` rows of floats, then `KEYS`
    floats for each pair.

    A few pairs read the cache itself. For more, rows are unpacked first, which gives the same
    floats.
    """
    kinds = [*[POINTER, I64, I64] * 2, *[I64] * 3, *[POINTER] * 2, *[I64] * 2, *[POINTER] * 4]
    b = function(module, f"attend_{kind}", VOID, kinds)
    k, k_stride, k_width, v, v_stride, v_width, keys, scale, count, *more = b.function.args
    ask_k, ask_v, ask_stride, ask_size, queries, masks, records, rows = more
    padded, size = _padded(b, v_width), _record_size(b, v_width)
    widest = b.select(b.icmp_signed(">", k_width, padded), k_width, padded)
    weights = b.gep(rows, [b.mul(widest, I64(4 * KEYS))])
    factor = b.splat(b.bitcast(b.trunc(scale, I32), F32), LANES)
    few = b.icmp_signed("<=", count, I64(2 * isa.pairs))
    few = b.and_(few, b.icmp_signed("==", v_width, padded))

    def pair(index: Value) -> _Pair:
        query = b.inttoptr(b.load_at(queries, b.mul(index, I64(8)), I64), POINTER)
        mask = b.load_at(masks, b.mul(index, I64(8)), I64)
        record = b.gep(records, [b.mul(index, size)])
        return _Pair(query, mask, record, b.gep(weights, [b.mul(index, I64(4 * KEYS))]))

    def each(body: Callable[[list[_Pair]], None]) -> None:
        def some(index: Value, number: int) -> list[Value]:
            body([pair(b.add(index, I64(at))) for at in range(number)])
            return []

        whole = b.sub(count, b.srem(count, I64(isa.pairs)))
        if isa.pairs > 1:
            b.loop(I64(0), whole, isa.pairs, [], lambda index, _: some(index, isa.pairs))
        b.loop(whole if isa.pairs > 1 else I64(0), count, 1, [], lambda index, _: some(index, 1))

    def score(first: Value, rows: _Rows) -> None:
        def eight_keys(part: Value, _: list[Value]) -> list[Value]:
            for wanted in (ask_k, ask_v):
                start = b.gep(wanted, [b.mul(b.add(first, part), ask_stride)])
                _ask(b, start, ask_stride, ask_size)
            each(lambda pairs: _scores(b, isa, pairs, rows, part, k_width, factor))
            return []

        def some(pairs: list[_Pair]) -> None:
            for one in pairs:
                with b.if_then(b.icmp_unsigned("!=", one.mask, I64(0))):
                    mask = b.inttoptr(b.add(one.mask, b.mul(first, I64(2))), POINTER)
                    _add_mask(b, mask, one.weights)
            for one in pairs:
                _exponentiate(b, isa, one.record, one.weights)

        b.loop(I64(0), I64(KEYS), LANES, [], eight_keys)
        each(some)

    def gather(rows: _Rows) -> None:
        each(lambda pairs: _gather(b, isa, rows, padded, pairs))

    def block(first: Value, _: list[Value]) -> list[Value]:
        with b.if_then(_any_live(b, masks, count, first)):
            these_k, these_v = (
                b.gep(k, [b.mul(first, k_stride)]),
                b.gep(v, [b.mul(first, v_stride)]),
            )
            with b.if_else(few) as (near, many):
                with near:
                    score(first, _Rows(kind, these_k, k_stride))
                    gather(_Rows(kind, these_v, v_stride))
                with many:
                    _unpack(b, kind, these_k, k_stride, k_width, k_width, rows)
                    score(first, _Rows("F32", rows, b.mul(k_width, I64(4))))
                    _unpack(b, kind, these_v, v_stride, v_width, padded, rows)
                    gather(_Rows("F32", rows, b.mul(padded, I64(4))))
        return []

    def clear(pairs: list[_Pair]) -> None:
        for one in pairs:
            _clear(b, one.record, padded)

    each(clear)
    b.loop(I64(0), keys, KEYS, [], block)
    b.ret_void()


class _Pair(NamedTuple):
    """A query and a head: addresses of the query, its record and its weights; its mask as I64."""

    query: Value
    mask: Value
    record: Value
    weights: Value


class _Rows(NamedTuple):
    """Rows of a cache, or unpacked ones: their type, the first, and how many bytes apart."""

    kind: str
    first: Value
    stride: Value

    def row(self, b: Builder, index: Value) -> Value:
        """Return the address of a row."""
        return b.gep(self.first, [b.mul(index, self.stride)])

    def eight(self, b: Builder, row: Value, column: Value) -> Value:
        """Return eight of its numbers: <8 x float>."""
        return _eight(b, self.kind, row, column)


def _padded(b: Builder, width: Value) -> Value:
    return b.and_(b.add(width, I64(CHUNK - 1)), I64(-CHUNK))


def _record_size(b: Builder, width: Value) -> Value:
    return b.add(b.mul(_padded(b, width), I64(4)), I64(RECORD_HEAD))


def _clear(b: Builder, record: Value, padded: Value) -> None:
    b.store_at(F32(_LOWEST), record, _LARGEST)
    b.store_at(F32(0.0), record, _SUM)
    each_eight(b, padded, lambda at: b.store_at(constant(0.0), record, _value_at(b, at)))


def _value_at(b: Builder, index: Value) -> Value:
    return b.add(b.mul(index, I64(4)), I64(RECORD_HEAD))


def _any_live(b: Builder, masks: Value, count: Value, first: Value) -> Value:
    """Return whether some pair sees one of the next keys: an i1."""
    halves, bit = vector(I16, KEYS), ir.IntType(1)

    def pair(index: Value, live: list[Value]) -> list[Value]:
        mask, before = b.load_at(masks, b.mul(index, I64(8)), I64), b.block
        with b.if_then(b.icmp_unsigned("!=", mask, I64(0))):
            where = b.inttoptr(b.add(mask, b.mul(first, I64(2))), POINTER)
            bits = b.load_at(where, 0, halves)
            seen = b.icmp_unsigned("!=", bits, b.splat(I16(_MASKED), KEYS))
            some = b.intrinsic(f"llvm.vector.reduce.or.v{KEYS}i1", bit, seen)
            inside = b.block
        found = b.phi(bit)
        found.add_incoming(bit(1), before)
        found.add_incoming(some, inside)
        return [b.or_(live[0], b.zext(found, I64))]

    (live,) = b.loop(I64(0), count, 1, [I64(0)], pair)
    return b.icmp_unsigned("!=", live, I64(0))


def _ask(b: Builder, rows: Value, stride: Value, size: Value) -> None:
    """Have the memory fetch so many bytes of each of eight rows."""

    def row(index: Value, _: list[Value]) -> list[Value]:
        _ask_row(b, b.gep(rows, [b.mul(index, stride)]), size)
        return []

    b.loop(I64(0), I64(LANES), 1, [], row)


def _ask_row(b: Builder, start: Value, size: Value) -> None:
    """Into the second-level cache."""

    def line(at: Value, _: list[Value]) -> list[Value]:
        address = b.gep(start, [at])
        b.intrinsic("llvm.prefetch.p0", VOID, address, I32(0), I32(2), I32(1))
        return []

    b.loop(I64(0), size, LINE, [], line)


def _emit_ask(module: ir.Module) -> None:
    """Define ``void ask(start, size)``: have the memory fetch so many bytes."""
    b = function(module, "ask", VOID, [POINTER, I64])
    _ask_row(b, *b.function.args)
    b.ret_void()


def _unpack(
    b: Builder, kind: str, source: Value, stride: Value, width: Value, padded: Value, rows: Value
) -> None:
    """Write the next rows of a cache as floats, filled with zeros up to `padded`."""

    def row(index: Value, _: list[Value]) -> list[Value]:
        start = b.gep(source, [b.mul(index, stride)])
        target = b.gep(rows, [b.mul(b.mul(index, padded), I64(4))])

        def copy(column: Value, eights: int) -> list[Value]:
            for eight in range(eights):
                at = b.add(column, I64(LANES * eight))
                b.store_at(_eight(b, kind, start, at), target, b.mul(at, I64(4)))
            return []

        def fill(column: Value, _: list[Value]) -> list[Value]:
            b.store_at(constant(0.0), target, b.mul(column, I64(4)))
            return []

        whole = b.and_(width, I64(-CHUNK))
        b.loop(I64(0), whole, CHUNK, [], lambda column, _: copy(column, CHUNK // LANES))
        b.loop(whole, width, LANES, [], lambda column, _: copy(column, 1))
        b.loop(width, padded, LANES, [], fill)
        return []

    b.loop(I64(0), I64(KEYS), 1, [], row)


def _eight(b: Builder, kind: str, start: Value, column: Value) -> Value:
    """Return eight numbers of a cache's row: <8 x float>."""
    if kind == "F32":
        return b.load_at(start, b.mul(column, I64(4)), FLOATS)
    if kind == "F16":
        return b.fpext(b.load_at(start, b.mul(column, I64(2)), vector(F16, LANES)), FLOATS)
    block = b.gep(start, [b.mul(b.lshr(column, I64(5)), I64(_Q8_BLOCK))])
    scale = b.fpext(b.load_at(block, 0, F16), F32)
    within = b.add(b.and_(column, I64(_Q8_WEIGHTS - 1)), I64(2))
    codes = b.sext(b.load_at(block, within, vector(I8, LANES)), INTEGERS)
    return b.fmul(b.sitofp(codes, FLOATS), b.splat(scale, LANES))


def _scores(
    b: Builder,
    isa: InstructionSet,
    pairs: list[_Pair],
    rows: _Rows,
    part: Value,
    width: Value,
    factor: Value,
) -> None:
    """Write the products of queries and eight rows from `part` on, times the factor."""
    keys = [rows.row(b, b.add(part, I64(key))) for key in range(LANES)]

    def add(column: Value, sums: list[Value]) -> list[Value]:
        at = b.mul(column, I64(4))
        x = [b.load_at(pair.query, at, FLOATS) for pair in pairs]
        products = [list[Value]() for _ in pairs]
        for number, key in enumerate(keys):
            row = rows.eight(b, key, column)
            for index, found in enumerate(products):
                total = sums[LANES * index + number]
                found.append(isa.multiply_add(b, row, x[index], total))
        return [total for found in products for total in found]

    sums = b.loop(I64(0), width, LANES, [constant(0.0)] * (LANES * len(pairs)), add)
    for index, pair in enumerate(pairs):
        eight = sums_of(b, sums[LANES * index : LANES * (index + 1)])
        b.store_at(b.fmul(eight, factor), pair.weights, b.mul(part, I64(4)))


def _parts(b: Builder, p: Value) -> list[Value]:
    return [b.load_at(p, 4 * at, FLOATS) for at in range(0, KEYS, LANES)]


def _add_mask(b: Builder, mask: Value, p: Value) -> None:
    for index, score in enumerate(_parts(b, p)):
        halves = b.load_at(mask, 2 * LANES * index, vector(F16, LANES))
        b.store_at(b.fadd(score, b.fpext(halves, FLOATS)), p, 4 * LANES * index)


def _exponentiate(b: Builder, isa: InstructionSet, record: Value, p: Value) -> None:
    """Make exp(score - largest) of scores, and bring the record's head up to date."""
    scores, before = _parts(b, p), b.load_at(record, _LARGEST, F32)
    most = scores[0]
    for score in scores[1:]:
        most = _larger(b, score, most)
    for distance in (4, 2, 1):
        lanes = [(lane + distance) % LANES for lane in range(LANES)]
        most = _larger(b, b.shuffle_vector(most, most, ir.Constant(INTEGERS, lanes)), most)
    largest = _larger(b, b.extract_element(most, I32(0)), before)
    shift = b.splat(largest, LANES)
    total = constant(0.0)
    for index, score in enumerate(scores):
        exponential = approximate_exp(b, isa, b.fsub(score, shift))
        b.store_at(exponential, p, 4 * LANES * index)
        total = b.fadd(total, exponential)
    change = _exp_one(b, isa, b.fsub(before, largest))
    old = b.fmul(b.load_at(record, _SUM, F32), change)
    b.store_at(largest, record, _LARGEST)
    b.store_at(b.fadd(old, sum_of(b, total)), record, _SUM)
    b.store_at(change, record, _FACTOR)


def _larger(b: Builder, x: Value, y: Value) -> Value:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _gather(
    b: Builder, isa: InstructionSet, rows: _Rows, padded: Value, pairs: list[_Pair]
) -> None:
    """Add the values of `KEYS` rows to the pairs' records, weighted."""
    changes = [b.splat(b.load_at(pair.record, _FACTOR, F32), LANES) for pair in pairs]
    offsets, many = range(0, 4 * CHUNK, 4 * LANES), CHUNK // LANES

    def chunk(first: Value, _: list[Value]) -> list[Value]:
        values = [b.gep(pair.record, [_value_at(b, first)]) for pair in pairs]
        sums = [
            b.fmul(b.load_at(value, at, FLOATS), change)
            for value, change in zip(values, changes, strict=True)
            for at in offsets
        ]

        def add(key: Value, sums: list[Value]) -> list[Value]:
            row, where = rows.row(b, key), b.mul(key, I64(4))
            weights = [b.splat(b.load_at(pair.weights, where, F32), LANES) for pair in pairs]
            totals = list(sums)
            for eight in range(many):
                found = rows.eight(b, row, b.add(first, I64(LANES * eight)))
                for index, weight in enumerate(weights):
                    at = many * index + eight
                    totals[at] = isa.multiply_add(b, found, weight, sums[at])
            return totals

        totals = b.loop(I64(0), I64(KEYS), 1, sums, add)
        for index, value in enumerate(values):
            for eight, at in enumerate(offsets):
                b.store_at(totals[many * index + eight], value, at)
        return []

    b.loop(I64(0), padded, CHUNK, [], chunk)


def _emit_merge(module: ir.Module, isa: InstructionSet) -> None:
    """Define ``void merge(record, next, v_width)``: the first becomes that of both."""
    b = function(module, "merge", VOID, [POINTER, POINTER, I64])
    record, behind, width = b.function.args
    tops = [b.load_at(each, _LARGEST, F32) for each in (record, behind)]
    largest = _larger(b, tops[1], tops[0])
    factors = [_exp_one(b, isa, b.fsub(top, largest)) for top in tops]
    sums = [b.load_at(each, _SUM, F32) for each in (record, behind)]
    b.store_at(largest, record, _LARGEST)
    old = b.fmul(sums[0], factors[0])
    b.store_at(b.fadd(old, b.fmul(sums[1], factors[1])), record, _SUM)
    first, second = (b.splat(factor, LANES) for factor in factors)

    def add(at: Value) -> None:
        where = _value_at(b, at)
        ours = b.fmul(b.load_at(record, where, FLOATS), first)
        theirs = b.fmul(b.load_at(behind, where, FLOATS), second)
        b.store_at(b.fadd(ours, theirs), record, where)

    each_eight(b, _padded(b, width), add)
    b.ret_void()


def _emit_finish(module: ir.Module) -> None:
    """Define ``void finish(record, out, v_width)``: the weighted mean of the values.

    A query that sees no key gets zeros, as from llama.cpp.
    """
    b = function(module, "finish", VOID, [POINTER, POINTER, I64])
    record, out, width = b.function.args
    total = b.load_at(record, _SUM, F32)
    nothing = b.fcmp_ordered("==", total, F32(0.0))
    inverse = b.select(nothing, F32(0.0), b.fdiv(F32(1.0), total))
    scale = b.splat(inverse, LANES)

    def divide(at: Value) -> None:
        value = b.fmul(b.load_at(record, _value_at(b, at), FLOATS), scale)
        b.store_at(value, out, b.mul(at, I64(4)))

    each_eight(b, width, divide)
    b.ret_void()


def _exp_one(b: Builder, isa: InstructionSet, x: Value) -> Value:
    return b.extract_element(approximate_exp(b, isa, b.splat(x, LANES)), I32(0))
