"""What compiled code looks things up in: int64 slots at known places.

A *table* belongs to the device and lives as long as the process; a *state* belongs to one open
context. Each format has a row in the table.
"""

from __future__ import annotations

# Slots of the table.
BUFFER_TYPE = 0
ROWS = 1  # of a group
COLUMNS = 2  # that the widest kernel multiplies
QUANTIZE = 3  # the kernel that makes records of 32
PARALLEL = 4  # GOMP_parallel, or 0
QUANTIZE_PART, MULTIPLY_PART, PACK_PART = 5, 6, 7  # what threads run
MALLOC, FREE = 8, 9
GRAPH_COUNT, GRAPH_NODE = 10, 11  # ggml_graph_n_nodes, ggml_graph_node
LOADING_THREADS = 12
NONE, MUL_MAT, MUL_MAT_ID, GET_ROWS = 13, 14, 15, 16  # numbers of ggml's operations
RESHAPE, VIEW, PERMUTE, TRANSPOSE, FLASH_ATTN_EXT = 17, 18, 19, 20, 21
MERGE, FINISH = 22, 23  # kernels
ATTEND_PART = 24  # what threads run
RMS_NORM, ADD, MUL, GLU, ROPE, SET_ROWS = 26, 27, 28, 29, 30, 31
ATTEND = 32  # kernels, by the cache's type
ROWS_PART = 41
RMS_NORM_ROW, ADD_ROW, MUL_ROW, SWIGLU_ROW, GEGLU_ROW = 42, 43, 44, 45, 46  # kernels
ROTATION_ROW, HALVES_ROW, PAIRS_ROW, HALF_ROW, SCALE_ROW = 47, 48, 49, 50, 51
SCALE = 52
QUANTIZE_LARGE = 53  # the kernel that makes records of 256
ASK = 54  # has memory fetched: a kernel
FILL = 55
FORMATS = 64  # the first row

# Slots of a format's row.
TYPES, FORMAT_SLOTS = 48, 48
WEIGHTS, BLOCK, FIELDS, TO_FLOAT, FORM = 0, 1, 2, 3, 4  # WEIGHTS is 0 where unsupported
KERNELS = 8  # by columns - 1, at most 8
FIELD, FIELD_SLOTS = 16, 5  # offset, unit, count, transposed, bytes before

TABLE_SLOTS = FORMATS + TYPES * FORMAT_SLOTS

# Slots of a state.
TABLE, THREADS, ABORT, ABORT_DATA = 0, 1, 2, 3
ARENA, ARENA_SIZE, ARENA_USED = 4, 5, 6  # memory of the activations being multiplied
INPUT, INPUT_FORM, INPUT_COLUMNS = 7, 8, 9  # whose tensor, in which form, addresses
NEXT = 16  # the next chunk of work, on a cache line of its own
CHUNKS, JOB_COUNT = 24, 25
JOBS, MOST_JOBS, JOB_SLOTS = 32, 64, 16

# Slots of a job: weights times some columns.
WEIGHTS_AT, FORMAT, WIDTH, HEIGHT, COUNT, INPUTS, OUTPUTS, TAIL = 0, 1, 2, 3, 4, 5, 6, 7
CHUNK_GROUPS, FIRST_CHUNK = 8, 9

# Slots of an attention node.
ATTENTION = JOBS + MOST_JOBS * JOB_SLOTS
NODE, KERNEL, GROUP, TILE, TILES, BLOCKS, SPLIT = 0, 1, 2, 3, 4, 5, 6
RECORDS, RECORD_SIZE, SCRATCH, SCRATCH_SIZE, WORKERS = 7, 8, 9, 10, 11
BRANCHES = 12  # the tree, if this node is part of one
DONE = 13  # of each unit, how many blocks: an array
ATTENTION_SLOTS = 16

# The row operation at work, and the angles of a rotation with what they are of.
ROWS_NODE = ATTENTION + ATTENTION_SLOTS
ROTATION = ROWS_NODE + 1
ANGLES, ANGLES_SIZE, POSITIONS, FACTORS, FIRST_PARAMETER = 0, 1, 2, 3, 4
ROTATION_PARAMETERS = 11  # of a node, up to the betas

# The address of a tree that is being evaluated, or 0.
TREE = ROTATION + FIRST_PARAMETER + ROTATION_PARAMETERS

# Ranges of chunks, one for each thread: the next of each, on cache lines of their own.
RANGES = (TREE + 8) // 8 * 8
MOST_RANGES, RANGE_SLOTS = 64, 8

STATE_SLOTS = RANGES + MOST_RANGES * RANGE_SLOTS

# Slots of a tree. Its tokens lie in cells side by side, as those of a chain; a token's path is
# what it sees as if it lay alone behind the first `TREE_BASE` cells.
TREE_COUNT = 0  # tokens evaluated
TREE_BASE = 1  # cells that all of them see
TREE_CACHES = 2  # caches met so far: of keys and of values, for each layer
TREE_DEPTHS = 8  # by token: tokens above it, those of earlier evaluations among them
MOST_NODES = 64
TREE_ROWS = TREE_DEPTHS + MOST_NODES  # by token: whose row of the mask it has
TREE_PATHS = TREE_ROWS + MOST_NODES  # by token: cells of its path, itself last
TREE_CACHE = TREE_PATHS + MOST_NODES * MOST_NODES  # by cache: where it begins, bytes of a cell
MOST_CACHES = 1024
TREE_SLOTS = TREE_CACHE + 2 * MOST_CACHES

# Slots of a quantizing or packing task, which is made on the stack of who starts it.
TASK_SLOTS = 16
