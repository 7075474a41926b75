"""The functions that ggml calls, compiled: none needs the interpreter.

They are compiled at the first import on a machine and loaded from the cache afterwards.
"""

from __future__ import annotations

from edgespec.kernels import ggml, tables
from edgespec.kernels.attending import attend, supports_attention
from edgespec.kernels.branches import prepare_tree
from edgespec.kernels.formats import group_bytes, pack_row, packed_bytes, row_bytes, unpack_row
from edgespec.kernels.layers import compute_rows, supports_rows
from edgespec.kernels.multiplying import (
    flush,
    format_row,
    get_rows,
    multiply,
    multiply_chunks,
    multiply_experts,
    quantize_chunks,
)
from edgespec.kernels.native import (
    Bool,
    Int32,
    add_atomically,
    call,
    load8,
    load32,
    load64,
    native,
    store8,
    store64,
)

# -- buffers of weights ---------------------------------------------------------------------------


@native
def _table_of_buffer(buffer: int) -> int:
    return load64(load64(buffer + ggml.BUFFER_TYPE) + ggml.TYPE_CONTEXT)


@native
def free_buffer(buffer: int) -> None:
    """Free the memory of a buffer, not the buffer."""
    free = load64(_table_of_buffer(buffer) + 8 * tables.FREE)
    call(free, load64(buffer + ggml.BUFFER_BASE))


@native
def buffer_base(buffer: int) -> int:
    """Return where its memory begins."""
    return load64(buffer + ggml.BUFFER_BASE)


@native
def clear_buffer(buffer: int, value: int) -> None:
    """Do nothing: every byte that is read is written by `set_tensor` before."""


@native
def _plain_bytes(tensor: int) -> int:
    return load64(tensor + ggml.SIZES + 24) * load64(tensor + ggml.STRIDES + 24)


@native
def alloc_size(buffer_type: int, tensor: int) -> int:
    """Return the bytes of a tensor when packed."""
    table = load64(buffer_type + ggml.TYPE_CONTEXT)
    row = format_row(table, load32(tensor + ggml.TYPE))
    if row == 0:
        return _plain_bytes(tensor)
    matrices = load64(tensor + ggml.SIZES + 16) * load64(tensor + ggml.SIZES + 24)
    width, height = load64(tensor + ggml.SIZES), load64(tensor + ggml.SIZES + 8)
    return matrices * packed_bytes(row, width, height, load64(table + 8 * tables.ROWS))


# Slots of a task that moves rows.
_TABLE, _TENSOR, _PLAIN, _NEXT = 0, 1, 2, 8


@native
def _group_of(table: int, tensor: int, number: int) -> int:
    """Return the group that a row belongs to. Rows are counted through matrices."""
    rows = load64(table + 8 * tables.ROWS)
    row = format_row(table, load32(tensor + ggml.TYPE))
    width, height = load64(tensor + ggml.SIZES), load64(tensor + ggml.SIZES + 8)
    matrix = number // height * packed_bytes(row, width, height, rows)
    group = number % height // rows * group_bytes(row, width, rows)
    return load64(tensor + ggml.DATA) + matrix + group


@native
def _set_rows(table: int, tensor: int, plain: int, first: int, last: int) -> None:
    """Pack the rows from `first` to `last` of a tensor whose bytes begin at `plain`."""
    rows = load64(table + 8 * tables.ROWS)
    row = format_row(table, load32(tensor + ggml.TYPE))
    width, height = load64(tensor + ggml.SIZES), load64(tensor + ggml.SIZES + 8)
    size = row_bytes(row, width)
    for number in range(first, last):
        group, lane = _group_of(table, tensor, number), number % height % rows
        if lane == 0 and number % height + rows > height:  # the last group is not full
            for at in range(group_bytes(row, width, rows)):
                store8(group + at, 0)
        pack_row(row, plain + number * size, group, lane, width, rows)


@native
def pack_part(task: int) -> None:
    """Do a thread's share of packing: groups of rows, taken one after the other."""
    table, tensor = load64(task + 8 * _TABLE), load64(task + 8 * _TENSOR)
    height = load64(tensor + ggml.SIZES + 8)
    matrices = load64(tensor + ggml.SIZES + 16) * load64(tensor + ggml.SIZES + 24)
    rows = load64(table + 8 * tables.ROWS)
    groups = (height + rows - 1) // rows
    while True:
        at = add_atomically(task + 8 * _NEXT, 1)
        if at >= groups * matrices:
            return
        first = at // groups * height + at % groups * rows
        last = min(first + rows, (at // groups + 1) * height)
        _set_rows(table, tensor, load64(task + 8 * _PLAIN), first, last)


@native
def _copy(source: int, target: int, size: int) -> None:
    for at in range(size):
        store8(target + at, load8(source + at))


@native
def _change_rows(table: int, tensor: int, data: int, offset: int, size: int, forth: bool) -> None:
    """Set or get any bytes of a packed tensor, row by row."""
    row = format_row(table, load32(tensor + ggml.TYPE))
    width, height = load64(tensor + ggml.SIZES), load64(tensor + ggml.SIZES + 8)
    rows, row_size = load64(table + 8 * tables.ROWS), row_bytes(row, width)
    plain = call(load64(table + 8 * tables.MALLOC), 64, (row_size + 63) // 64 * 64)
    end = offset + size
    while plain and offset < end:
        number, within = offset // row_size, offset % row_size
        part = min(row_size - within, end - offset)
        group, lane = _group_of(table, tensor, number), number % height % rows
        unpack_row(row, plain, group, lane, width, rows)
        if forth:
            _copy(data, plain + within, part)
            pack_row(row, plain, group, lane, width, rows)
        else:
            _copy(plain + within, data, part)
        offset += part
        data += part
    call(load64(table + 8 * tables.FREE), plain)


@native
def set_tensor(buffer: int, tensor: int, data: int, offset: int, size: int) -> None:
    """Pack what is loaded from a file."""
    table = _table_of_buffer(buffer)
    if load64(tensor + ggml.VIEWED):
        offset += load64(tensor + ggml.VIEW_OFFSET)
        tensor = load64(tensor + ggml.VIEWED)
    if format_row(table, load32(tensor + ggml.TYPE)) == 0:
        _copy(data, load64(tensor + ggml.DATA) + offset, size)
        return
    if offset != 0 or size != _plain_bytes(tensor):
        _change_rows(table, tensor, data, offset, size, True)
        return
    task = call(load64(table + 8 * tables.MALLOC), 64, 8 * tables.TASK_SLOTS)
    if task == 0:
        return
    store64(task + 8 * _TABLE, table)
    store64(task + 8 * _TENSOR, tensor)
    store64(task + 8 * _PLAIN, data)
    store64(task + 8 * _NEXT, 0)
    part = load64(table + 8 * tables.PACK_PART)
    threads = load64(table + 8 * tables.LOADING_THREADS)
    call(load64(table + 8 * tables.PARALLEL), part, task, threads, 0)
    call(load64(table + 8 * tables.FREE), task)


@native
def get_tensor(buffer: int, tensor: int, data: int, offset: int, size: int) -> None:
    """Give back a tensor's bytes as they were in the file."""
    table = _table_of_buffer(buffer)
    if load64(tensor + ggml.VIEWED):
        offset += load64(tensor + ggml.VIEW_OFFSET)
        tensor = load64(tensor + ggml.VIEWED)
    if format_row(table, load32(tensor + ggml.TYPE)) == 0:
        _copy(load64(tensor + ggml.DATA) + offset, data, size)
    else:
        _change_rows(table, tensor, data, offset, size, False)


_STEPS_TO_WEIGHTS = 16
"""From queries back over rotation, norm, bias and views to their multiplication."""

# -- the device -----------------------------------------------------------------------------------


@native
def alignment(buffer_type: int) -> int:
    """Return it, in bytes."""
    return 64


@native
def is_host(buffer_type: int) -> Bool:
    """Say no: llama.cpp must not take packed bytes for weights."""
    return 0


@native
def _ours(table: int, tensor: int) -> bool:
    """Return whether a tensor lies packed in one of our buffers."""
    if load64(tensor + ggml.VIEWED) or load32(tensor + ggml.OPERATION):
        return False
    buffer = load64(tensor + ggml.BUFFER)
    if buffer == 0 or load64(buffer + ggml.BUFFER_TYPE) != load64(table + 8 * tables.BUFFER_TYPE):
        return False
    return format_row(table, load32(tensor + ggml.TYPE)) != 0


@native
def _floats(tensor: int) -> bool:
    """Return whether a tensor's columns are float32 without gaps."""
    return load32(tensor + ggml.TYPE) == ggml.F32 and load64(tensor + ggml.STRIDES) == 4


@native
def _single(tensor: int) -> bool:
    """Return whether a tensor is no more than a matrix."""
    return load64(tensor + ggml.SIZES + 16) * load64(tensor + ggml.SIZES + 24) == 1


@native
def _does_nothing(table: int, operation: int) -> bool:
    """Return whether a node only names memory: ggml ends the process if ours is refused."""
    return (
        operation == load64(table + 8 * tables.NONE)
        or operation == load64(table + 8 * tables.RESHAPE)
        or operation == load64(table + 8 * tables.VIEW)
        or operation == load64(table + 8 * tables.PERMUTE)
        or operation == load64(table + 8 * tables.TRANSPOSE)
    )


@native
def supports(device: int, node: int) -> Bool:
    """Return whether a node of a graph can be computed here."""
    table = load64(device + ggml.DEVICE_CONTEXT)
    operation = load32(node + ggml.OPERATION)
    if _does_nothing(table, operation):
        return 1
    if operation == load64(table + 8 * tables.MUL_MAT):
        matrix, columns = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
        return _ours(table, matrix) and _single(matrix) and _floats(columns) and _floats(node)
    if operation == load64(table + 8 * tables.MUL_MAT_ID):
        matrix, columns = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
        return _ours(table, matrix) and _floats(columns) and _floats(node)
    if operation == load64(table + 8 * tables.FLASH_ATTN_EXT):
        return supports_attention(table, node) and _asked_by_us(table, node)
    if supports_rows(table, node):
        return 1
    if operation == load64(table + 8 * tables.GET_ROWS):
        matrix, ids = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
        if load32(ids + ggml.TYPE) != ggml.I32 or load64(ids + ggml.SIZES + 8) != 1:
            return 0
        return _ours(table, matrix) and _single(matrix) and _single(ids) and _floats(node)
    return 0


@native
def _asked_by_us(table: int, node: int) -> bool:
    """Return whether queries come from weights of ours: other models' attention is llama.cpp's."""
    tensor = load64(node + ggml.SOURCES)
    for _ in range(_STEPS_TO_WEIGHTS):
        if tensor == 0:
            return False
        if load32(tensor + ggml.OPERATION) == load64(table + 8 * tables.MUL_MAT):
            return _ours(table, load64(tensor + ggml.SOURCES))
        tensor = load64(tensor + ggml.SOURCES)
    return False


@native
def supports_buffer_type(device: int, buffer_type: int) -> Bool:
    """Return whether tensors of this type can be read here: ours, and those in host memory."""
    if buffer_type == load64(load64(device + ggml.DEVICE_CONTEXT) + 8 * tables.BUFFER_TYPE):
        return 1
    is_host = load64(buffer_type + ggml.TYPE_IS_HOST)
    return call(is_host, buffer_type) & 255 if is_host else 0


@native
def _empty(node: int) -> bool:
    """Return whether a node has nothing to compute: no logits are wanted."""
    area = load64(node + ggml.SIZES) * load64(node + ggml.SIZES + 8)
    return area * load64(node + ggml.SIZES + 16) * load64(node + ggml.SIZES + 24) == 0


@native
def compute(backend: int, graph: int) -> Int32:
    """Compute all nodes of a graph, each of which `supports` said yes to."""
    state = load64(backend + ggml.BACKEND_CONTEXT)
    table = load64(state + 8 * tables.TABLE)
    abort = load64(state + 8 * tables.ABORT)
    if abort and call(abort, load64(state + 8 * tables.ABORT_DATA)) & 255:
        return ggml.ABORTED
    store64(state + 8 * (tables.ROTATION + tables.POSITIONS), 0)
    prepare_tree(state, graph)
    done = True
    for index in range(call(load64(table + 8 * tables.GRAPH_COUNT), graph) & 0x7FFFFFFF):
        node = call(load64(table + 8 * tables.GRAPH_NODE), graph, index)
        operation = load32(node + ggml.OPERATION)
        if _empty(node):
            operation = load64(table + 8 * tables.NONE)
        if operation == load64(table + 8 * tables.MUL_MAT):
            done = done and multiply(state, node)
        elif operation == load64(table + 8 * tables.MUL_MAT_ID):
            done = done and multiply_experts(state, node)
        elif operation == load64(table + 8 * tables.GET_ROWS):
            done = done and get_rows(state, node)
        elif operation == load64(table + 8 * tables.FLASH_ATTN_EXT):
            done = done and attend(state, node)
        elif not _does_nothing(table, operation):
            done = done and compute_rows(state, node)
    flush(state)
    store64(state + 8 * tables.INPUT, 0)
    return ggml.SUCCESS if done else ggml.OUT_OF_MEMORY


@native
def quantize_part(state: int) -> None:
    """Do what a thread does when activations are rounded."""
    quantize_chunks(state)


@native
def multiply_part(state: int) -> None:
    """Do what a thread does when jobs are done."""
    multiply_chunks(state)


@native
def free_backend(backend: int) -> None:
    """Free what belongs to a context that is closed."""
    state = load64(backend + ggml.BACKEND_CONTEXT)
    free = load64(load64(state + 8 * tables.TABLE) + 8 * tables.FREE)
    if load64(state + 8 * tables.ARENA):
        call(free, load64(state + 8 * tables.ARENA))
    if load64(state + 8 * (tables.ROTATION + tables.ANGLES)):
        call(free, load64(state + 8 * (tables.ROTATION + tables.ANGLES)))
    call(free, state)
    call(free, backend)


@native
def set_threads(backend: int, threads: Int32) -> None:
    """Note how many; llama.cpp says so before every evaluation."""
    state = load64(backend + ggml.BACKEND_CONTEXT)
    store64(state + 8 * tables.THREADS, max(1, threads))


@native
def set_abort(backend: int, callback: int, data: int) -> None:
    """Note what to ask whether to continue."""
    state = load64(backend + ggml.BACKEND_CONTEXT)
    store64(state + 8 * tables.ABORT, callback)
    store64(state + 8 * tables.ABORT_DATA, data)
