"""Attention nodes: which queries and keys a thread takes, and in what memory.

A *unit* is a tile of queries and the heads that share one head of keys. If there are few units,
as for one token, the blocks of keys are shared out too, and whoever did a unit's last one merges
their records; else a thread goes through all blocks of its unit. Both merge the same records in
the same order.
"""

from __future__ import annotations

from edgespec.kernels import ggml, tables
from edgespec.kernels.attention import CHUNK, KEYS, RECORD_HEAD
from edgespec.kernels.branches import copy_bytes, path_cell
from edgespec.kernels.multiplying import allocate, flush, reserve, run
from edgespec.kernels.native import (
    add_atomically,
    call,
    load16,
    load32,
    load64,
    native,
    store16,
    store64,
)

__all__ = ["attend", "attend_units", "supports_attention"]

BLOCK = 128
"""Keys of one record."""

_AHEAD = 256
"""Keys: how far ahead of a shared block the memory is asked for others."""

_PAIRS = 32
"""Of queries and heads in a unit, where one head of keys has so few heads: what was unpacked for
one is used for all."""

_WIDEST = 1024
_MINUS_INFINITY = 0xFC00  # float16
_UNITS_A_THREAD = 4
_MOST_RECORDS = 1 << 24
"""Bytes for the records of shared blocks."""


@native
def supports_attention(table: int, node: int) -> bool:
    """Return whether a FLASH_ATTN_EXT node is of the common kind."""
    q, k = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    v = load64(node + ggml.SOURCES + 16)
    mask, sinks = load64(node + ggml.SOURCES + 24), load64(node + ggml.SOURCES + 32)
    kind = load32(k + ggml.TYPE)
    if sinks or load32(node + ggml.PARAMETERS + 4) or load32(node + ggml.PARAMETERS + 8):
        return False  # ALiBi, soft-capping
    if kind != load32(v + ggml.TYPE) or kind < 0 or kind > 8:
        return False
    if load64(table + 8 * (tables.ATTEND + kind)) == 0:
        return False
    if mask and (load32(mask + ggml.TYPE) != ggml.F16 or load64(mask + ggml.STRIDES) != 2):
        return False
    if load32(q + ggml.TYPE) != ggml.F32 or load64(q + ggml.STRIDES) != 4:
        return False
    if load32(node + ggml.TYPE) != ggml.F32 or load64(node + ggml.STRIDES) != 4:
        return False
    heads, shared = load64(q + ggml.SIZES + 16), load64(k + ggml.SIZES + 16)
    if shared == 0 or heads % shared != 0 or load64(v + ggml.SIZES + 16) != shared:
        return False
    if load64(k + ggml.SIZES + 24) != load64(q + ggml.SIZES + 24):
        return False
    return _fits(kind, k) and _fits(kind, v) and load64(k + ggml.SIZES + 8) % KEYS == 0


@native
def _fits(kind: int, cache: int) -> bool:
    """Return whether rows of keys or values have a width that the kernels read, and no gaps."""
    width, stride = load64(cache + ggml.SIZES), load64(cache + ggml.STRIDES)
    if kind == ggml.Q8_0:
        whole = width % 32 == 0 and stride == 34
    elif kind == ggml.F16:
        whole = width % 8 == 0 and stride == 2
    else:
        whole = width % 8 == 0 and stride == 4
    return whole and width > 0 and width <= _WIDEST


@native
def attend(state: int, node: int) -> bool:
    """Compute FLASH_ATTN_EXT; return False if memory is lacking."""
    flush(state)
    store64(state + 8 * tables.INPUT, 0)
    table, work = load64(state + 8 * tables.TABLE), state + 8 * tables.ATTENTION
    q, k = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    threads = load64(state + 8 * tables.THREADS)
    queries, shared = load64(q + ggml.SIZES + 8), load64(k + ggml.SIZES + 16)
    group = load64(q + ggml.SIZES + 16) // shared
    tile = min(queries, max(1, _PAIRS // group))
    tiles = (queries + tile - 1) // tile
    units = tiles * shared * load64(q + ggml.SIZES + 24)
    blocks = (load64(k + ggml.SIZES + 8) + BLOCK - 1) // BLOCK
    record = _record_bytes(load64(node + ggml.SIZES))
    split = threads > 1 and blocks > 1 and units < _UNITS_A_THREAD * threads
    records = units * blocks * tile * group * record if split else 0
    if records > _MOST_RECORDS:
        split, records = False, 0
    scratch = _scratch_bytes(load64(k + ggml.SIZES), load64(node + ggml.SIZES), tile * group)
    tree = load64(state + 8 * tables.TREE)
    if tree and load64(tree + 8 * tables.TREE_COUNT) == queries:
        scratch += _laid_bytes(k) + _laid_bytes(load64(node + ggml.SOURCES + 16)) + 2 * BLOCK
    else:
        tree = 0
    if not reserve(state, records + 64 + threads * scratch + 8 * units + 64):
        return False
    store64(work + 8 * tables.NODE, node)
    store64(work + 8 * tables.BRANCHES, tree)
    kernel = load64(table + 8 * (tables.ATTEND + load32(k + ggml.TYPE)))
    store64(work + 8 * tables.KERNEL, kernel)
    store64(work + 8 * tables.GROUP, group)
    store64(work + 8 * tables.TILE, tile)
    store64(work + 8 * tables.TILES, tiles)
    store64(work + 8 * tables.BLOCKS, blocks)
    store64(work + 8 * tables.SPLIT, split)
    store64(work + 8 * tables.RECORDS, allocate(state, records))
    store64(work + 8 * tables.RECORD_SIZE, record)
    store64(work + 8 * tables.SCRATCH, allocate(state, threads * scratch))
    store64(work + 8 * tables.SCRATCH_SIZE, scratch)
    done = allocate(state, 8 * units)
    store64(work + 8 * tables.DONE, done)
    for unit in range(units):
        store64(done + 8 * unit, 0)
    store64(work + 8 * tables.WORKERS, 0)
    if threads > 1:
        run(state, tables.ATTEND_PART, threads)
    else:
        store64(state + 8 * tables.NEXT, 0)
        attend_units(state)
    return True


@native
def _record_bytes(width: int) -> int:
    return (width + CHUNK - 1) // CHUNK * CHUNK * 4 + RECORD_HEAD


@native
def _scratch_bytes(key_width: int, value_width: int, pairs: int) -> int:
    """Return a thread's bytes: addresses, records of a unit and a block, rows, weights."""
    record = _record_bytes(value_width)
    widest = max(key_width, record // 4)
    return 16 * pairs + 64 + 2 * pairs * record + 4 * KEYS * (widest + pairs) + 64


@native
def _units(work: int) -> int:
    node = load64(work + 8 * tables.NODE)
    q, k = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    shared, batches = load64(k + ggml.SIZES + 16), load64(q + ggml.SIZES + 24)
    return load64(work + 8 * tables.TILES) * shared * batches


@native
def _pairs_of(work: int, unit: int) -> int:
    """Return the pairs of queries and heads; the last tile may have fewer."""
    node, tile = load64(work + 8 * tables.NODE), load64(work + 8 * tables.TILE)
    queries = load64(load64(node + ggml.SOURCES) + ggml.SIZES + 8)
    first = unit % load64(work + 8 * tables.TILES) * tile
    return min(tile, queries - first) * load64(work + 8 * tables.GROUP)


@native
def attend_units(state: int) -> None:
    """Do a thread's share of an attention node."""
    work = state + 8 * tables.ATTENTION
    worker = add_atomically(work + 8 * tables.WORKERS, 1)
    scratch = load64(work + 8 * tables.SCRATCH) + worker * load64(work + 8 * tables.SCRATCH_SIZE)
    blocks, split = load64(work + 8 * tables.BLOCKS), load64(work + 8 * tables.SPLIT)
    units = _units(work)
    total = units * blocks if split else units
    if split:
        _ask_first(state, worker)
    while True:
        number = add_atomically(state + 8 * tables.NEXT, 1)
        if number >= total:
            return
        if split:
            # Heads lie side by side in a cache: all of them while a block is near.
            unit = number % units
            _attend_shared(state, unit, number // units, scratch)
            if add_atomically(load64(work + 8 * tables.DONE) + 8 * unit, 1) == blocks - 1:
                _merge_unit(state, unit)
        else:
            _attend_whole(state, number, scratch)


@native
def _ask_first(state: int, worker: int) -> None:
    """Have the memory fetch a thread's share of the rows that no block before asks for."""
    node = load64(state + 8 * (tables.ATTENTION + tables.NODE))
    threads = load64(state + 8 * tables.THREADS)
    for source in range(8, 24, 8):
        cache = load64(node + ggml.SOURCES + source)
        rows = min(_AHEAD, load64(cache + ggml.SIZES + 8))
        size = rows * load64(cache + ggml.STRIDES + 8) // threads
        start = load64(cache + ggml.DATA) + worker * size
        call(load64(load64(state + 8 * tables.TABLE) + 8 * tables.ASK), start, size)


@native
def _attend_shared(state: int, unit: int, block: int, scratch: int) -> None:
    """Return one block of a unit; its records are kept for `_merge_unit`."""
    work = state + 8 * tables.ATTENTION
    pairs = _pairs_of(work, unit)
    free = _addresses(work, unit, block, scratch)
    _attend_block(work, unit, block, scratch, _shared_record(work, unit, block), free, pairs)


@native
def _shared_record(work: int, unit: int, block: int) -> int:
    """Return where the first record of a block begins."""
    most = load64(work + 8 * tables.TILE) * load64(work + 8 * tables.GROUP)
    number = (unit * load64(work + 8 * tables.BLOCKS) + block) * most
    return load64(work + 8 * tables.RECORDS) + number * load64(work + 8 * tables.RECORD_SIZE)


@native
def _attend_whole(state: int, unit: int, scratch: int) -> None:
    """Attend to all blocks of a unit, merged one after the other."""
    work = state + 8 * tables.ATTENTION
    table, record = load64(state + 8 * tables.TABLE), load64(work + 8 * tables.RECORD_SIZE)
    width = load64(load64(work + 8 * tables.NODE) + ggml.SIZES)
    pairs = _pairs_of(work, unit)
    for block in range(load64(work + 8 * tables.BLOCKS)):
        ours = _addresses(work, unit, block, scratch)
        fresh = ours + pairs * record
        target = fresh if block > 0 else ours
        _attend_block(work, unit, block, scratch, target, fresh + pairs * record, pairs)
        if block > 0:
            for pair in range(pairs):
                merge = load64(table + 8 * tables.MERGE)
                call(merge, ours + pair * record, fresh + pair * record, width)
    for pair in range(pairs):
        finish = load64(table + 8 * tables.FINISH)
        records = scratch + (16 * pairs + 63) // 64 * 64
        call(finish, records + pair * record, _output(work, unit, pair), width)


@native
def _addresses(work: int, unit: int, block: int, scratch: int) -> int:
    """Write where queries and masks of a unit's pairs are; the free memory behind them."""
    node = load64(work + 8 * tables.NODE)
    q, mask = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 24)
    pairs = _pairs_of(work, unit)
    for pair in range(pairs):
        query, head, batch = _query(work, unit, pair), _head(work, unit, pair), _batch(work, unit)
        address = load64(q + ggml.DATA) + query * load64(q + ggml.STRIDES + 8)
        address += head * load64(q + ggml.STRIDES + 16) + batch * load64(q + ggml.STRIDES + 24)
        store64(scratch + 8 * pair, address)
        address = 0
        if mask:
            row = _mask_row(work, query)
            address = load64(mask + ggml.DATA) + row * load64(mask + ggml.STRIDES + 8)
            plane = head % load64(mask + ggml.SIZES + 16)
            address += plane * load64(mask + ggml.STRIDES + 16) + 2 * BLOCK * block
            plane = batch % load64(mask + ggml.SIZES + 24)
            address += plane * load64(mask + ggml.STRIDES + 24)
        store64(scratch + 8 * (pairs + pair), address)
    return scratch + (16 * pairs + 63) // 64 * 64


@native
def _mask_row(work: int, query: int) -> int:
    """Return whose row of the mask a query has."""
    tree = load64(work + 8 * tables.BRANCHES)
    return load64(tree + 8 * (tables.TREE_ROWS + query)) if tree else query


@native
def _query(work: int, unit: int, pair: int) -> int:
    tile = load64(work + 8 * tables.TILE)
    first = unit % load64(work + 8 * tables.TILES) * tile
    return first + pair // load64(work + 8 * tables.GROUP)


@native
def _shared_head(work: int, unit: int) -> int:
    k = load64(load64(work + 8 * tables.NODE) + ggml.SOURCES + 8)
    return unit // load64(work + 8 * tables.TILES) % load64(k + ggml.SIZES + 16)


@native
def _head(work: int, unit: int, pair: int) -> int:
    group = load64(work + 8 * tables.GROUP)
    return _shared_head(work, unit) * group + pair % group


@native
def _batch(work: int, unit: int) -> int:
    k = load64(load64(work + 8 * tables.NODE) + ggml.SOURCES + 8)
    return unit // (load64(work + 8 * tables.TILES) * load64(k + ggml.SIZES + 16))


@native
def _attend_block(
    work: int, unit: int, block: int, addresses: int, records: int, scratch: int, pairs: int
) -> None:
    node, tree = load64(work + 8 * tables.NODE), load64(work + 8 * tables.BRANCHES)
    k, v = load64(node + ggml.SOURCES + 8), load64(node + ggml.SOURCES + 16)
    if tree and BLOCK * (block + 1) > load64(tree + 8 * tables.TREE_BASE):
        _attend_branches(work, unit, block, addresses, records, scratch, pairs)
        return
    first, stride = BLOCK * block, load64(k + ggml.STRIDES + 8)
    keys = min(BLOCK, load64(k + ggml.SIZES + 8) - first)
    ask_k, ask_v = _rows(k, work, unit, first + BLOCK), _rows(v, work, unit, first + BLOCK)
    size = _row_bytes(k)
    if load64(work + 8 * tables.SPLIT):  # what all units will read, in one piece
        units = _units(work)
        ask_k = _block_share(k, work, unit, first + _AHEAD)
        ask_v = _block_share(v, work, unit, first + _AHEAD)
        size = stride // units
        stride = size
    call(
        load64(work + 8 * tables.KERNEL),
        _rows(k, work, unit, first),
        load64(k + ggml.STRIDES + 8),
        load64(k + ggml.SIZES),
        _rows(v, work, unit, first),
        load64(v + ggml.STRIDES + 8),
        load64(v + ggml.SIZES),
        keys,
        load32(node + ggml.PARAMETERS),
        pairs,
        ask_k,
        ask_v,
        stride,
        size,
        addresses,
        addresses + 8 * pairs,
        records,
        scratch,
    )


@native
def _attend_branches(
    work: int, unit: int, block: int, addresses: int, records: int, scratch: int, pairs: int
) -> None:
    """Attend to a block whose queries, of a tree, see different cells: one by one."""
    node, group = load64(work + 8 * tables.NODE), load64(work + 8 * tables.GROUP)
    k, v = load64(node + ggml.SOURCES + 8), load64(node + ggml.SOURCES + 16)
    first, last = BLOCK * block, load64(k + ggml.SIZES + 8)
    keys = min(BLOCK, last - first)
    laid_k = scratch
    laid_v = laid_k + _laid_bytes(k)
    mask = laid_v + _laid_bytes(v)
    _lay(k, work, unit, first, keys, laid_k)
    _lay(v, work, unit, first, keys, laid_v)
    for query in range(pairs // group):
        token = _query(work, unit, query * group)
        _lay_path(k, work, unit, first, keys, token, laid_k)
        _lay_path(v, work, unit, first, keys, token, laid_v)
        masks = addresses + 8 * (pairs + query * group)
        _limit_mask(work, load64(masks), first, keys, token, mask)
        for pair in range(group):
            store64(masks + 8 * pair, mask)
        call(
            load64(work + 8 * tables.KERNEL),
            laid_k,
            _row_bytes(k),
            load64(k + ggml.SIZES),
            laid_v,
            _row_bytes(v),
            load64(v + ggml.SIZES),
            keys,
            load32(node + ggml.PARAMETERS),
            group,
            laid_k,
            laid_v,
            0,
            0,
            addresses + 8 * query * group,
            masks,
            records + query * group * load64(work + 8 * tables.RECORD_SIZE),
            mask + 2 * BLOCK,
        )


@native
def _row_bytes(cache: int) -> int:
    """Return the bytes of one head's keys or values."""
    width, kind = load64(cache + ggml.SIZES), load32(cache + ggml.TYPE)
    if kind == ggml.Q8_0:
        return width // 32 * 34
    return 2 * width if kind == ggml.F16 else 4 * width


@native
def _laid_bytes(cache: int) -> int:
    return (BLOCK * _row_bytes(cache) + 63) // 64 * 64


@native
def _lay(cache: int, work: int, unit: int, first: int, keys: int, target: int) -> None:
    """Copy a block's rows as they lie."""
    source, size = _rows(cache, work, unit, first), _row_bytes(cache)
    for key in range(keys):
        copy_bytes(source + key * load64(cache + ggml.STRIDES + 8), target + key * size, size)


@native
def _lay_path(
    cache: int, work: int, unit: int, first: int, keys: int, token: int, target: int
) -> None:
    """Copy the cells of a token's path to their places in the block."""
    tree, size = load64(work + 8 * tables.BRANCHES), _row_bytes(cache)
    base = load64(tree + 8 * tables.TREE_BASE)
    for depth in range(load64(tree + 8 * (tables.TREE_DEPTHS + token)) + 1):
        place = base + depth - first
        if place >= 0 and place < keys:
            source = _rows(cache, work, unit, path_cell(tree, token, depth))
            copy_bytes(source, target + place * size, size)


@native
def _limit_mask(work: int, row: int, first: int, keys: int, token: int, target: int) -> None:
    """Copy a row of the mask, without what lies behind the token's path."""
    tree = load64(work + 8 * tables.BRANCHES)
    end = load64(tree + 8 * tables.TREE_BASE) + load64(tree + 8 * (tables.TREE_DEPTHS + token)) + 1
    for key in range(keys):
        seen = load16(row + 2 * key) if row else 0
        store16(target + 2 * key, seen if first + key < end else _MINUS_INFINITY)


@native
def _rows(cache: int, work: int, unit: int, first: int) -> int:
    """Return where the rows of a unit's head begin."""
    address = load64(cache + ggml.DATA) + first * load64(cache + ggml.STRIDES + 8)
    address += _shared_head(work, unit) * load64(cache + ggml.STRIDES + 16)
    return address + _batch(work, unit) * load64(cache + ggml.STRIDES + 24)


@native
def _block_share(cache: int, work: int, unit: int, first: int) -> int:
    """Return where the unit's share of a block's rows begins, if units share whole rows."""
    stride = load64(cache + ggml.STRIDES + 8)
    share = unit * (BLOCK * stride // _units(work))
    return load64(cache + ggml.DATA) + first * stride + share


@native
def _output(work: int, unit: int, pair: int) -> int:
    """Return where the result of a pair goes: heads of a query lie side by side."""
    node = load64(work + 8 * tables.NODE)
    address = load64(node + ggml.DATA) + _head(work, unit, pair) * load64(node + ggml.STRIDES + 8)
    address += _query(work, unit, pair) * load64(node + ggml.STRIDES + 16)
    return address + _batch(work, unit) * load64(node + ggml.STRIDES + 24)


@native
def _merge_unit(state: int, unit: int) -> None:
    """Merge the records of a unit's blocks, in their order; whoever did the last one does this."""
    work = state + 8 * tables.ATTENTION
    table, record = load64(state + 8 * tables.TABLE), load64(work + 8 * tables.RECORD_SIZE)
    width = load64(load64(work + 8 * tables.NODE) + ggml.SIZES)
    for pair in range(_pairs_of(work, unit)):
        ours = _shared_record(work, unit, 0) + pair * record
        for block in range(1, load64(work + 8 * tables.BLOCKS)):
            behind = _shared_record(work, unit, block) + pair * record
            call(load64(table + 8 * tables.MERGE), ours, behind, width)
        call(load64(table + 8 * tables.FINISH), ours, _output(work, unit, pair), width)
