"""Weights times activations: the work of a graph, shared by a team of threads.

Multiplications that read the same activations are collected as *jobs*, then done together: the
activations are rounded to 8 bits once, and the threads take chunks of rows until none is left: each
from a range of its own first, since weights are asked for in the order in which they lie. A chunk
is small enough to stay in the second-level cache while many columns pass.
"""

from __future__ import annotations

from edgespec.kernels import ggml, tables
from edgespec.kernels.activations import BLOCK, FLOATS, LARGE, LARGE_BLOCK, RECORD_BYTES
from edgespec.kernels.formats import group_bytes, packed_bytes, row_bytes, unpack_row
from edgespec.kernels.gemm import AHEAD
from edgespec.kernels.native import (
    add_atomically,
    call,
    load32,
    load64,
    native,
    store32,
    store64,
)

__all__ = [
    "allocate",
    "column_address",
    "flush",
    "get_rows",
    "multiply",
    "multiply_chunks",
    "multiply_experts",
    "quantize_chunks",
    "reserve",
    "run",
]

_CHUNK_BYTES, _ONE_PASS_BYTES = 96 * 1024, 512 * 1024
"""Of weights: so that they stay in the second-level cache for all columns, or need not."""
_CHUNKS_A_THREAD = 8
_SERIAL = 16384
"""Activations that one thread rounds faster than a team is woken."""


@native
def format_row(table: int, kind: int) -> int:
    """Return the address of a format's row in the table; 0 if it has none."""
    if kind < 0 or kind >= tables.TYPES:
        return 0
    row = table + 8 * (tables.FORMATS + kind * tables.FORMAT_SLOTS)
    return row if load64(row + 8 * tables.WEIGHTS) != 0 else 0


@native
def run(state: int, part: int, threads: int) -> None:
    """Have a team of threads run a part of the table with this state."""
    table = load64(state + 8 * tables.TABLE)
    parallel = load64(table + 8 * tables.PARALLEL)
    store64(state + 8 * tables.NEXT, 0)
    call(parallel, load64(table + 8 * part), state, threads, 0)


@native
def quantize_chunks(state: int) -> None:
    """Do a thread's share of rounding columns, taken one after the other."""
    table = load64(state + 8 * tables.TABLE)
    tensor = load64(state + 8 * tables.INPUT)
    columns = load64(state + 8 * tables.INPUT_COLUMNS)
    width = load64(tensor + ggml.SIZES)
    count = load64(tensor + ggml.SIZES + 8) * load64(tensor + ggml.SIZES + 16)
    count *= load64(tensor + ggml.SIZES + 24)
    large = load64(state + 8 * tables.INPUT_FORM) == LARGE
    kernel = load64(table + 8 * (tables.QUANTIZE_LARGE if large else tables.QUANTIZE))
    blocks = width // (LARGE_BLOCK if large else BLOCK)
    while True:
        column = add_atomically(state + 8 * tables.NEXT, 1)
        if column >= count:
            return
        source = column_address(tensor, column)
        call(kernel, source, load64(columns + 8 * column), blocks)


@native
def column_address(tensor: int, column: int) -> int:
    """Return the address of a column's first float, counted through all dimensions."""
    second, third = load64(tensor + ggml.SIZES + 8), load64(tensor + ggml.SIZES + 16)
    address = load64(tensor + ggml.DATA)
    address += column % second * load64(tensor + ggml.STRIDES + 8)
    address += column // second % third * load64(tensor + ggml.STRIDES + 16)
    return address + column // (second * third) * load64(tensor + ggml.STRIDES + 24)


@native
def allocate(state: int, size: int) -> int:
    """Return the memory of the arena, which `_prepare` made large enough."""
    used = load64(state + 8 * tables.ARENA_USED)
    store64(state + 8 * tables.ARENA_USED, used + (size + 63) // 64 * 64)
    return load64(state + 8 * tables.ARENA) + used


@native
def reserve(state: int, size: int) -> bool:
    """Make the arena so large, losing what it holds; whether there is that much memory."""
    if load64(state + 8 * tables.ARENA_SIZE) < size:
        table = load64(state + 8 * tables.TABLE)
        old = load64(state + 8 * tables.ARENA)
        if old:
            call(load64(table + 8 * tables.FREE), old)
        new = call(load64(table + 8 * tables.MALLOC), 64, (size + 63) // 64 * 64)
        store64(state + 8 * tables.ARENA, new)
        store64(state + 8 * tables.ARENA_SIZE, size if new else 0)
        if not new:
            return False
    store64(state + 8 * tables.ARENA_USED, 0)
    return True


@native
def _job_bytes(count: int, rows: int) -> int:
    """Return a job's arena memory: arrays of addresses, results of the last, partial group."""
    return 3 * (8 * count + 64) + count * rows * 4 + 64


@native
def _prepare(state: int, tensor: int, form: int, jobs: int) -> bool:
    """Have the columns of a tensor ready for multiplication; False if memory is lacking."""
    known = load64(state + 8 * tables.INPUT) == tensor
    if known and load64(state + 8 * tables.INPUT_FORM) == form:
        left = load64(state + 8 * tables.ARENA_SIZE) - load64(state + 8 * tables.ARENA_USED)
        if left >= jobs:
            return True
    flush(state)
    width = load64(tensor + ggml.SIZES)
    count = load64(tensor + ggml.SIZES + 8) * load64(tensor + ggml.SIZES + 16)
    count *= load64(tensor + ggml.SIZES + 24)
    floats = form == FLOATS
    record = 0 if floats else width * RECORD_BYTES
    store64(state + 8 * tables.INPUT, 0)
    if not reserve(state, 8 * count + 64 + record * count + 64 + 4 * jobs):
        return False
    columns = allocate(state, 8 * count)
    records = allocate(state, record * count)
    for column in range(count):
        address = column_address(tensor, column) if floats else records + column * record
        store64(columns + 8 * column, address)
    store64(state + 8 * tables.INPUT, tensor)
    store64(state + 8 * tables.INPUT_FORM, form)
    store64(state + 8 * tables.INPUT_COLUMNS, columns)
    if not floats:
        threads = load64(state + 8 * tables.THREADS)
        if threads > 1 and count > 1 and width * count > _SERIAL:
            run(state, tables.QUANTIZE_PART, threads)
        else:
            store64(state + 8 * tables.NEXT, 0)
            quantize_chunks(state)
    return True


@native
def _add_job(
    state: int,
    weights: int,
    row: int,
    width: int,
    height: int,
    count: int,
    inputs: int,
    outputs: int,
) -> None:
    """Append a multiplication. inputs, outputs: arrays of `count` addresses."""
    table = load64(state + 8 * tables.TABLE)
    rows = load64(table + 8 * tables.ROWS)
    if load64(state + 8 * tables.JOB_COUNT) == tables.MOST_JOBS:
        flush(state)
    number = load64(state + 8 * tables.JOB_COUNT)
    job = state + 8 * (tables.JOBS + number * tables.JOB_SLOTS)
    groups = (height + rows - 1) // rows
    tail = 0
    if height % rows:  # the kernel writes whole groups: elsewhere for the last one
        tail = allocate(state, 8 * count)
        results = allocate(state, 4 * rows * count)
        for column in range(count):
            store64(tail + 8 * column, results + 4 * rows * (column - groups + 1))
    share = groups // (_CHUNKS_A_THREAD * load64(state + 8 * tables.THREADS)) + 1
    once = count <= load64(table + 8 * tables.COLUMNS)
    fitting = (_ONE_PASS_BYTES if once else _CHUNK_BYTES) // group_bytes(row, width, rows) + 1
    chunk = min(share, fitting)
    store64(job + 8 * tables.WEIGHTS_AT, weights)
    store64(job + 8 * tables.FORMAT, row)
    store64(job + 8 * tables.WIDTH, width)
    store64(job + 8 * tables.HEIGHT, height)
    store64(job + 8 * tables.COUNT, count)
    store64(job + 8 * tables.INPUTS, inputs)
    store64(job + 8 * tables.OUTPUTS, outputs)
    store64(job + 8 * tables.TAIL, tail)
    store64(job + 8 * tables.CHUNK_GROUPS, chunk)
    first = load64(state + 8 * tables.CHUNKS)
    store64(job + 8 * tables.FIRST_CHUNK, first)
    store64(state + 8 * tables.CHUNKS, first + (groups + chunk - 1) // chunk)
    store64(state + 8 * tables.JOB_COUNT, number + 1)


@native
def flush(state: int) -> None:
    """Do all collected jobs."""
    if load64(state + 8 * tables.JOB_COUNT) == 0:
        return
    threads, chunks = load64(state + 8 * tables.THREADS), load64(state + 8 * tables.CHUNKS)
    ranges = min(threads, tables.MOST_RANGES)
    for number in range(ranges):
        store64(_range(state, number), chunks * number // ranges)
    if threads > 1:
        run(state, tables.MULTIPLY_PART, threads)
    else:
        store64(state + 8 * tables.NEXT, 0)
        multiply_chunks(state)
    store64(state + 8 * tables.JOB_COUNT, 0)
    store64(state + 8 * tables.CHUNKS, 0)


@native
def _range(state: int, number: int) -> int:
    """Return where the next chunk of a range is counted."""
    return state + 8 * (tables.RANGES + number * tables.RANGE_SLOTS)


@native
def multiply_chunks(state: int) -> None:
    """Do a thread's share of all jobs: the chunks of a range, then what others have left."""
    chunks = load64(state + 8 * tables.CHUNKS)
    ranges = min(load64(state + 8 * tables.THREADS), tables.MOST_RANGES)
    first = add_atomically(state + 8 * tables.NEXT, 1)
    for step in range(ranges):
        number = (first + step) % ranges
        _multiply_range(state, _range(state, number), chunks * (number + 1) // ranges, step == 0)


@native
def _multiply_range(state: int, counter: int, end: int, whole: int) -> None:
    """Return the chunks of a range that no other thread takes; whole: from its beginning on."""
    job, table = state + 8 * tables.JOBS, load64(state + 8 * tables.TABLE)
    last = job + 8 * tables.JOB_SLOTS * (load64(state + 8 * tables.JOB_COUNT) - 1)
    chunk = add_atomically(counter, 1)
    while chunk < end:
        while job < last and load64(job + 8 * (tables.JOB_SLOTS + tables.FIRST_CHUNK)) <= chunk:
            job += 8 * tables.JOB_SLOTS
        number = chunk - load64(job + 8 * tables.FIRST_CHUNK)
        if whole:
            _ask_for(table, job, number)
            whole = 0
        _multiply_chunk(table, job, number)
        chunk = add_atomically(counter, 1)


@native
def _ask_for(table: int, job: int, chunk: int) -> None:
    """Have the memory fetch the weights that no kernel before asks for."""
    row, rows = load64(job + 8 * tables.FORMAT), load64(table + 8 * tables.ROWS)
    size = group_bytes(row, load64(job + 8 * tables.WIDTH), rows)
    groups = load64(job + 8 * tables.CHUNK_GROUPS)
    start = load64(job + 8 * tables.WEIGHTS_AT) + chunk * groups * size
    call(load64(table + 8 * tables.ASK), start, min(AHEAD, groups * size))


@native
def _multiply_chunk(table: int, job: int, chunk: int) -> None:
    rows = load64(table + 8 * tables.ROWS)
    height = load64(job + 8 * tables.HEIGHT)
    groups = (height + rows - 1) // rows
    first = chunk * load64(job + 8 * tables.CHUNK_GROUPS)
    last = min(groups, first + load64(job + 8 * tables.CHUNK_GROUPS))
    tail = load64(job + 8 * tables.TAIL)
    outputs = load64(job + 8 * tables.OUTPUTS)
    if tail == 0 or last < groups:
        _multiply_groups(table, job, outputs, first, last)
        return
    _multiply_groups(table, job, outputs, first, last - 1)
    _multiply_groups(table, job, tail, last - 1, last)
    for column in range(load64(job + 8 * tables.COUNT)):
        source, target = load64(tail + 8 * column), load64(outputs + 8 * column)
        for at in range(4 * rows * (groups - 1), 4 * height, 4):
            store32(target + at, load32(source + at))


@native
def _multiply_groups(table: int, job: int, outputs: int, first: int, last: int) -> None:
    """Multiply all columns, as evenly divided as the kernels allow."""
    if first >= last:
        return
    row = load64(job + 8 * tables.FORMAT)
    count, most = load64(job + 8 * tables.COUNT), load64(table + 8 * tables.COLUMNS)
    blocks = load64(job + 8 * tables.WIDTH) // load64(row + 8 * tables.WEIGHTS)
    weights, inputs = load64(job + 8 * tables.WEIGHTS_AT), load64(job + 8 * tables.INPUTS)
    parts = (count + most - 1) // most
    start = 0
    for part in range(parts):
        end = count * (part + 1) // parts
        kernel = load64(row + 8 * (tables.KERNELS + end - start - 1))
        where = 8 * start
        call(kernel, weights, inputs + where, outputs + where, blocks, first, last)
        start = end


@native
def multiply(state: int, node: int) -> bool:
    """Compute MUL_MAT: a matrix of ours by all columns of the second source."""
    matrix, tensor = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    table = load64(state + 8 * tables.TABLE)
    row = format_row(table, load32(matrix + ggml.TYPE))
    width, height = load64(matrix + ggml.SIZES), load64(matrix + ggml.SIZES + 8)
    count = load64(node + ggml.SIZES + 8) * load64(node + ggml.SIZES + 16)
    count *= load64(node + ggml.SIZES + 24)
    rows = load64(table + 8 * tables.ROWS)
    if not _prepare(state, tensor, load64(row + 8 * tables.FORM), _job_bytes(count, rows)):
        return False
    outputs = allocate(state, 8 * count)
    for column in range(count):
        store64(outputs + 8 * column, column_address(node, column))
    inputs = load64(state + 8 * tables.INPUT_COLUMNS)
    _add_job(state, load64(matrix + ggml.DATA), row, width, height, count, inputs, outputs)
    return True


@native
def multiply_experts(state: int, node: int) -> bool:
    """Compute MUL_MAT_ID: every column by the matrices that its ids name."""
    matrix, tensor = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    ids = load64(node + ggml.SOURCES + 16)
    table = load64(state + 8 * tables.TABLE)
    rows = load64(table + 8 * tables.ROWS)
    row = format_row(table, load32(matrix + ggml.TYPE))
    width, height = load64(matrix + ggml.SIZES), load64(matrix + ggml.SIZES + 8)
    experts = load64(matrix + ggml.SIZES + 16)
    used, tokens = load64(ids + ggml.SIZES), load64(ids + ggml.SIZES + 8)
    count = used * tokens
    need = _job_bytes(count, rows) + experts * (8 * rows + 256)
    if not _prepare(state, tensor, load64(row + 8 * tables.FORM), need):
        return False
    inputs, outputs = allocate(state, 8 * count), allocate(state, 8 * count)
    columns = load64(state + 8 * tables.INPUT_COLUMNS)
    size = packed_bytes(row, width, height, rows)
    start = 0
    for expert in range(experts):
        end = _columns_of(expert, node, columns, inputs, outputs, start)
        if end > start:
            weights = load64(matrix + ggml.DATA) + expert * size
            at = 8 * start
            _add_job(state, weights, row, width, height, end - start, inputs + at, outputs + at)
        start = end
    return True


@native
def _columns_of(expert: int, node: int, columns: int, inputs: int, outputs: int, start: int) -> int:
    """Append the columns that an expert multiplies, and where results go; the new end."""
    tensor, ids = load64(node + ggml.SOURCES + 8), load64(node + ggml.SOURCES + 16)
    shared = load64(tensor + ggml.SIZES + 8)  # 1: all experts of a token read the same column
    used, tokens = load64(ids + ggml.SIZES), load64(ids + ggml.SIZES + 8)
    for token in range(tokens):
        line = load64(ids + ggml.DATA) + token * load64(ids + ggml.STRIDES + 8)
        for slot in range(used):
            if load32(line + slot * load64(ids + ggml.STRIDES)) == expert:
                column = token * shared + slot % shared
                store64(inputs + 8 * start, load64(columns + 8 * column))
                result = load64(node + ggml.DATA) + slot * load64(node + ggml.STRIDES + 8)
                result += token * load64(node + ggml.STRIDES + 16)
                store64(outputs + 8 * start, result)
                start += 1
    return start


@native
def get_rows(state: int, node: int) -> bool:
    """Compute GET_ROWS: rows as floats, by ggml's own conversion."""
    matrix, ids = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    table = load64(state + 8 * tables.TABLE)
    rows = load64(table + 8 * tables.ROWS)
    row = format_row(table, load32(matrix + ggml.TYPE))
    width, height = load64(matrix + ggml.SIZES), load64(matrix + ggml.SIZES + 8)
    flush(state)
    store64(state + 8 * tables.INPUT, 0)
    if not reserve(state, row_bytes(row, width) + 64):
        return False
    plain = allocate(state, row_bytes(row, width))
    for index in range(load64(ids + ggml.SIZES)):
        number = load32(load64(ids + ggml.DATA) + index * load64(ids + ggml.STRIDES))
        if number >= 0 and number < height:
            group = load64(matrix + ggml.DATA)
            group += number // rows * group_bytes(row, width, rows)
            unpack_row(row, plain, group, number % rows, width, rows)
            target = load64(node + ggml.DATA) + index * load64(node + ggml.STRIDES + 8)
            call(load64(row + 8 * tables.TO_FLOAT), plain, target, width)
    return True
