"""The small operations of a layer: nodes whose rows are computed one by one.

One token has so few of them that the calling thread does them all; a prompt's are shared out.
"""

from __future__ import annotations

from edgespec.kernels import ggml, tables
from edgespec.kernels.multiplying import column_address, flush, run
from edgespec.kernels.native import add_atomically, call, load32, load64, native, store32, store64

__all__ = ["compute_rows", "rows_part", "supports_rows"]

_SERIAL = 32768
"""Numbers that one thread is through with before a team is awake."""
_SHARE = 4  # rows that a thread takes at a time

_SWIGLU, _GEGLU = 2, 1  # enum ggml_glu_op
_PAIRS, _HALVES = 0, 2  # modes of a rotation
_WIDEST_ROTATION = 512


@native
def supports_rows(table: int, node: int) -> bool:
    """Return whether a node is a row operation of a kind that is computed here."""
    operation = load32(node + ggml.OPERATION)
    x = load64(node + ggml.SOURCES)
    if load64(table + 8 * tables.RMS_NORM_ROW) == 0:
        return False
    if operation == load64(table + 8 * tables.SET_ROWS):
        return _supports_set_rows(node) or _scatters(node)
    if operation == load64(table + 8 * tables.FILL):
        return _packed(node)
    if x == 0 or not _plain(node) or not _plain(x):
        return False
    if operation == load64(table + 8 * tables.RMS_NORM):
        return True
    if operation == load64(table + 8 * tables.SCALE):
        return True
    if operation == load64(table + 8 * tables.ADD) or operation == load64(table + 8 * tables.MUL):
        return _plain(load64(node + ggml.SOURCES + 8)) and _repeats(node)
    if operation == load64(table + 8 * tables.GLU):
        kind, y = load32(node + ggml.PARAMETERS), load64(node + ggml.SOURCES + 8)
        return y != 0 and _plain(y) and kind - _GEGLU >= 0 and kind - _SWIGLU <= 0
    if operation == load64(table + 8 * tables.ROPE):
        return _supports_rotation(node)
    return False


@native
def _plain(tensor: int) -> bool:
    """Return whether rows are floats without gaps, of eights."""
    if load32(tensor + ggml.TYPE) != ggml.F32 or load64(tensor + ggml.STRIDES) != 4:
        return False
    return load64(tensor + ggml.SIZES) % 8 == 0


@native
def _repeats(node: int) -> bool:
    """Return whether the second source's rows are as wide as the first's, repeated as needed."""
    x, y = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    for at in range(0, 32, 8):
        whole = load64(x + ggml.SIZES + at)
        part = load64(y + ggml.SIZES + at)
        if part == 0 or whole % part != 0 or (at == 0 and whole != part):
            return False
    return True


@native
def _supports_set_rows(node: int) -> bool:
    """Return whether floats go to rows of a float16 or float32 cache, without more dimensions."""
    x, ids = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    kind = load32(node + ggml.TYPE)
    if not _plain(x) or load32(ids + ggml.TYPE) != ggml.I64:
        return False
    if (kind != ggml.F16 and kind != ggml.F32) or load64(ids + ggml.SIZES + 8) != 1:
        return False
    size = 2 if kind == ggml.F16 else 4
    flat = load64(x + ggml.SIZES + 16) * load64(x + ggml.SIZES + 24) == 1
    return flat and load64(node + ggml.STRIDES) == size


@native
def _packed(tensor: int) -> bool:
    """Floats side by side."""
    if load32(tensor + ggml.TYPE) != ggml.F32 or load64(tensor + ggml.STRIDES) != 4:
        return False
    size = 4
    for at in range(0, 32, 8):
        if load64(tensor + ggml.STRIDES + at) != size:
            return False
        size = size * load64(tensor + ggml.SIZES + at)
    return True


@native
def _scatters(node: int) -> bool:
    """Single floats to places that are the same for each plane: a head's logits to its tokens."""
    x, ids = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    if load64(node + ggml.SIZES) != 1 or load32(ids + ggml.TYPE) != ggml.I64:
        return False
    if load64(ids + ggml.SIZES + 8) != 1 or load64(ids + ggml.STRIDES) != 8:
        return False
    if load64(ids + ggml.SIZES + 16) != 1 or load64(x + ggml.SIZES + 24) != 1:
        return False
    return _packed(node) and _packed(x)


@native
def _scatter(node: int) -> None:
    x, ids = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    count, places = load64(x + ggml.SIZES + 8), load64(ids + ggml.DATA)
    for plane in range(load64(x + ggml.SIZES + 16)):
        source = load64(x + ggml.DATA) + 4 * count * plane
        out = load64(node + ggml.DATA) + 4 * load64(node + ggml.SIZES + 8) * plane
        for index in range(count):
            store32(out + 4 * load64(places + 8 * index), load32(source + 4 * index))


@native
def _fill(node: int) -> None:
    count, value = _row_count(node) * load64(node + ggml.SIZES), load32(node + ggml.PARAMETERS)
    out = load64(node + ggml.DATA)
    for index in range(count):
        store32(out + 4 * index, value)


@native
def _supports_rotation(node: int) -> bool:
    parameters = node + ggml.PARAMETERS
    mode, dimensions = load32(parameters + 8), load32(parameters + 4)
    if load32(parameters + 28) != 0:  # YaRN's mixing
        return False
    if mode != _PAIRS and mode != _HALVES:
        return False
    factors = load64(node + ggml.SOURCES + 16)
    if factors and (load32(factors + ggml.TYPE) != ggml.F32):
        return False
    wide = dimensions > _WIDEST_ROTATION or dimensions > load64(node + ggml.SIZES)
    return dimensions > 0 and dimensions % 16 == 0 and not wide


@native
def compute_rows(state: int, node: int) -> bool:
    """Compute a node that `supports_rows` said yes to; False if memory is lacking."""
    flush(state)
    table = load64(state + 8 * tables.TABLE)
    store64(state + 8 * tables.ROWS_NODE, node)
    rotates = load32(node + ggml.OPERATION) == load64(table + 8 * tables.ROPE)
    if rotates and not _prepare_rotation(state, node):
        return False
    if load64(state + 8 * tables.INPUT) == node:
        store64(state + 8 * tables.INPUT, 0)
    if load32(node + ggml.OPERATION) == load64(table + 8 * tables.FILL):
        _fill(node)
        return True
    if load32(node + ggml.OPERATION) == load64(table + 8 * tables.SET_ROWS) and _scatters(node):
        _scatter(node)
        return True
    rows = _row_count(node)
    threads = load64(state + 8 * tables.THREADS)
    if threads > 1 and rows > 1 and rows * load64(node + ggml.SIZES) > _SERIAL:
        run(state, tables.ROWS_PART, threads)
        return True
    for row in range(rows):
        _compute_row(state, node, row)
    return True


@native
def _row_count(node: int) -> int:
    tensor = node
    if load64(node + ggml.SOURCES + 8) and load32(load64(node + ggml.SOURCES + 8)) == ggml.I64:
        tensor = load64(node + ggml.SOURCES)  # a cache has more rows than are set
    count = load64(tensor + ggml.SIZES + 8) * load64(tensor + ggml.SIZES + 16)
    return count * load64(tensor + ggml.SIZES + 24)


@native
def rows_part(state: int) -> None:
    """Do what a thread does of a node's rows."""
    node = load64(state + 8 * tables.ROWS_NODE)
    rows = _row_count(node)
    while True:
        first = add_atomically(state + 8 * tables.NEXT, _SHARE)
        if first >= rows:
            return
        for row in range(first, min(first + _SHARE, rows)):
            _compute_row(state, node, row)


@native
def _compute_row(state: int, node: int, row: int) -> None:
    table, operation = load64(state + 8 * tables.TABLE), load32(node + ggml.OPERATION)
    x, y = load64(node + ggml.SOURCES), load64(node + ggml.SOURCES + 8)
    width, source = load64(node + ggml.SIZES), column_address(x, row)
    if operation == load64(table + 8 * tables.SET_ROWS):
        _set_row(table, node, source, row)
        return
    out = column_address(node, row)
    if operation == load64(table + 8 * tables.RMS_NORM):
        epsilon = load32(node + ggml.PARAMETERS)
        call(load64(table + 8 * tables.RMS_NORM_ROW), source, out, width, epsilon)
    elif operation == load64(table + 8 * tables.SCALE):
        factor, bias = load32(node + ggml.PARAMETERS), load32(node + ggml.PARAMETERS + 4)
        call(load64(table + 8 * tables.SCALE_ROW), source, out, width, factor, bias)
    elif operation == load64(table + 8 * tables.ADD):
        call(load64(table + 8 * tables.ADD_ROW), source, _repeated(y, node, row), out, width)
    elif operation == load64(table + 8 * tables.MUL):
        call(load64(table + 8 * tables.MUL_ROW), source, _repeated(y, node, row), out, width)
    elif operation == load64(table + 8 * tables.GLU):
        swiglu = load32(node + ggml.PARAMETERS) == _SWIGLU
        kernel = tables.SWIGLU_ROW if swiglu else tables.GEGLU_ROW
        call(load64(table + 8 * kernel), source, column_address(y, row), out, width)
    else:
        _rotate_row(state, node, source, out, row)


@native
def _repeated(tensor: int, node: int, row: int) -> int:
    """Return the address of the row of a second source that belongs to a node's row."""
    second, third = load64(node + ggml.SIZES + 8), load64(node + ggml.SIZES + 16)
    address = load64(tensor + ggml.DATA)
    place = row % second % load64(tensor + ggml.SIZES + 8)
    address += place * load64(tensor + ggml.STRIDES + 8)
    place = row // second % third % load64(tensor + ggml.SIZES + 16)
    address += place * load64(tensor + ggml.STRIDES + 16)
    place = row // (second * third) % load64(tensor + ggml.SIZES + 24)
    return address + place * load64(tensor + ggml.STRIDES + 24)


@native
def _set_row(table: int, node: int, source: int, row: int) -> None:
    ids, width = load64(node + ggml.SOURCES + 8), load64(node + ggml.SIZES)
    number = load64(load64(ids + ggml.DATA) + row * load64(ids + ggml.STRIDES))
    out = load64(node + ggml.DATA) + number * load64(node + ggml.STRIDES + 8)
    if load32(node + ggml.TYPE) == ggml.F16:
        call(load64(table + 8 * tables.HALF_ROW), source, out, width)
    else:
        for at in range(0, 4 * width, 8):
            store64(out + at, load64(source + at))


# -- rotation -------------------------------------------------------------------------------------


@native
def _prepare_rotation(state: int, node: int) -> bool:
    """Have the angles of all positions ready: those of the node before, as a rule."""
    positions, factors = load64(node + ggml.SOURCES + 8), load64(node + ggml.SOURCES + 16)
    parameters, kept = node + ggml.PARAMETERS, state + 8 * tables.ROTATION
    known = load64(kept + 8 * tables.POSITIONS) == positions
    known = known and load64(kept + 8 * tables.FACTORS) == factors
    for slot in range(tables.ROTATION_PARAMETERS):
        same = load64(kept + 8 * (tables.FIRST_PARAMETER + slot)) == load32(parameters + 4 * slot)
        known = known and same
    if known:
        return True
    count, half = load64(positions + ggml.SIZES), load32(parameters + 4) // 2
    size = count * half * 8
    if load64(kept + 8 * tables.ANGLES_SIZE) < size:
        table = load64(state + 8 * tables.TABLE)
        if load64(kept + 8 * tables.ANGLES):
            call(load64(table + 8 * tables.FREE), load64(kept + 8 * tables.ANGLES))
        memory = call(load64(table + 8 * tables.MALLOC), 64, (size + 63) // 64 * 64)
        store64(kept + 8 * tables.ANGLES, memory)
        store64(kept + 8 * tables.ANGLES_SIZE, size if memory else 0)
        if not memory:
            return False
    _write_angles(state, node, count, half)
    store64(kept + 8 * tables.POSITIONS, positions)
    store64(kept + 8 * tables.FACTORS, factors)
    for slot in range(tables.ROTATION_PARAMETERS):
        place = kept + 8 * (tables.FIRST_PARAMETER + slot)
        store64(place, load32(parameters + 4 * slot))
    return True


@native
def _write_angles(state: int, node: int, count: int, half: int) -> None:
    table, angles = load64(state + 8 * tables.TABLE), state + 8 * tables.ROTATION
    positions, factors = load64(node + ggml.SOURCES + 8), load64(node + ggml.SOURCES + 16)
    parameters = node + ggml.PARAMETERS
    for index in range(count):
        call(
            load64(table + 8 * tables.ROTATION_ROW),
            load64(angles + 8 * tables.ANGLES) + index * half * 8,
            load32(load64(positions + ggml.DATA) + 4 * index),
            half,
            load32(parameters + 20),
            load32(parameters + 24),
            load64(factors + ggml.DATA) if factors else 0,
            load32(parameters + 32),
        )


@native
def _rotate_row(state: int, node: int, source: int, out: int, row: int) -> None:
    """Rotate a row; rows are heads, then tokens."""
    table = load64(state + 8 * tables.TABLE)
    dimensions, width = load32(node + ggml.PARAMETERS + 4), load64(node + ggml.SIZES)
    half = dimensions // 2
    token = row // load64(node + ggml.SIZES + 8) % load64(node + ggml.SIZES + 16)
    angles = load64(state + 8 * (tables.ROTATION + tables.ANGLES)) + token * half * 8
    pairs = load32(node + ggml.PARAMETERS + 8) == _PAIRS
    kernel = tables.PAIRS_ROW if pairs else tables.HALVES_ROW
    call(load64(table + 8 * kernel), source, out, angles, half)
    for at in range(4 * dimensions, 4 * width, 8):
        store64(out + at, load64(source + at))
