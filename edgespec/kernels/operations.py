"""Graphs run through ggml without a model, on our device or on llama.cpp's own.

Single operations, to check and to time, and the heads of a draft.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.kernels import ggml

__all__ = [
    "Attention",
    "Backend",
    "Matrix",
    "Node",
    "Operation",
    "StateHeads",
    "cpu_device",
    "repacking_buffers",
]

_P, _S, _I, _L = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
_F = ctypes.c_float
_KINDS = {np.float32: ggml.F32, np.float16: ggml.F16, np.int32: ggml.I32, np.int64: ggml.I64}
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_backend_dev_init": (_P, (_P, ctypes.c_char_p)),
    "ggml_backend_dev_by_type": (_P, (_I,)),
    "ggml_backend_dev_backend_reg": (_P, (_P,)),
    "ggml_backend_reg_get_proc_address": (_P, (_P, ctypes.c_char_p)),
    "ggml_backend_cpu_buffer_type": (_P, ()),
    "ggml_backend_buft_alloc_buffer": (_P, (_P, _S)),
    "ggml_backend_buft_get_alloc_size": (_S, (_P, _P)),
    "ggml_backend_buffer_get_base": (_P, (_P,)),
    "ggml_backend_buffer_free": (None, (_P,)),
    "ggml_backend_free": (None, (_P,)),
    "ggml_backend_tensor_alloc": (_I, (_P, _P, _P)),
    "ggml_backend_tensor_set": (None, (_P, _P, _S, _S)),
    "ggml_backend_tensor_get": (None, (_P, _P, _S, _S)),
    "ggml_backend_buft_name": (ctypes.c_char_p, (_P,)),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, (_P, _P)),
    "ggml_backend_graph_compute": (_I, (_P, _P)),
    "ggml_free": (None, (_P,)),
    "ggml_new_tensor_3d": (_P, (_P, _I, _L, _L, _L)),
    "ggml_mul_mat": (_P, (_P, _P, _P)),
    "ggml_mul_mat_id": (_P, (_P, _P, _P, _P)),
    "ggml_get_rows": (_P, (_P, _P, _P)),
    "ggml_flash_attn_ext": (_P, (_P, _P, _P, _P, _P, _F, _F, _F)),
    "ggml_add": (_P, (_P, _P, _P)),
    "ggml_rms_norm": (_P, (_P, _P, _F)),
    "ggml_mul": (_P, (_P, _P, _P)),
    "ggml_rope_ext": (_P, (_P, _P, _P, _P, *[_I] * 3, *[_F] * 6)),
    "ggml_swiglu_split": (_P, (_P, _P, _P)),
    "ggml_new_graph": (_P, (_P,)),
    "ggml_build_forward_expand": (None, (_P, _P)),
    "ggml_tensor_overhead": (_S, ()),
    "ggml_graph_overhead": (_S, ()),
    "ggml_nbytes": (_S, (_P,)),
}


def declare(library: Any) -> None:
    """Tell ctypes what the functions used here take and return."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.ggml_init.restype, library.ggml_init.argtypes = _P, (ggml.InitParameters,)


def cpu_device(library: Any) -> int:
    """Return llama.cpp's own device."""
    declare(library)
    return int(library.ggml_backend_dev_by_type(0))


def repacking_buffers(library: Any, kind: int, width: int, height: int) -> list[int]:
    """Yield buffer types in which llama.cpp rearranges weights of this type and size."""
    device = cpu_device(library)
    registration = library.ggml_backend_dev_backend_reg(device)
    address = library.ggml_backend_reg_get_proc_address(
        registration, b"ggml_backend_dev_get_extra_bufts"
    )
    if not address:
        return []
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(_P), _P)(address)(device)
    found, index = [], 0
    while listed and listed[index]:
        name = library.ggml_backend_buft_name(listed[index]) or b""
        # AMX crashes when built with some compilers.
        if b"AMX" not in name and _takes(library, device, listed[index], kind, width, height):
            found.append(int(listed[index]))
        index += 1
    return found


def _takes(library: Any, device: int, buffer_type: int, kind: int, width: int, height: int) -> bool:
    """Ask as llama.cpp asks: with a tensor in an empty buffer of the type."""
    context = library.ggml_init(ggml.InitParameters(1 << 14, None, True))
    weights = library.ggml_new_tensor_3d(context, kind, width, height, 1)
    x = library.ggml_new_tensor_3d(context, ggml.F32, width, 512, 1)
    node = library.ggml_mul_mat(context, weights, x)
    buffer = library.ggml_backend_buft_alloc_buffer(buffer_type, 0)
    ctypes.c_void_p.from_address(weights + ggml.BUFFER).value = buffer
    takes = bool(library.ggml_backend_dev_supports_op(device, node))
    library.ggml_backend_buffer_free(buffer)
    library.ggml_free(context)
    return takes


class Backend:
    """Something that computes graphs. Close it.

    Args:
        device: as ggml knows it.
        threads: for all operations.
    """

    def __init__(self, library: Any, device: int, threads: int) -> None:
        declare(library)
        self.library = library
        self.pointer = library.ggml_backend_dev_init(device, None)
        registration = library.ggml_backend_dev_backend_reg(device)
        address = library.ggml_backend_reg_get_proc_address(
            registration, b"ggml_backend_set_n_threads"
        )
        self._set_threads = ctypes.CFUNCTYPE(None, _P, _I)(address)
        self.use_threads(threads)

    def use_threads(self, threads: int) -> None:
        """Compute with so many threads from now on."""
        self._set_threads(self.pointer, threads)

    def close(self) -> None:
        """Free it."""
        self.library.ggml_backend_free(self.pointer)


class _Graph:
    """Tensors in ordinary memory, and one node computed from them. Close it."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._library = backend, backend.library
        self._undo = ExitStack()

    def close(self) -> None:
        """Free the memory."""
        self._undo.close()

    def _run(
        self, context: int, node: int, shape: Sequence[int], repeats: int
    ) -> tuple[npt.NDArray[np.float32], list[float]]:
        self._place(node, self._library.ggml_backend_cpu_buffer_type(), 0)
        graph = self._library.ggml_new_graph(context)
        self._library.ggml_build_forward_expand(graph, node)
        seconds = []
        for _ in range(repeats):
            started = perf_counter()
            status = self._library.ggml_backend_graph_compute(self._backend.pointer, graph)
            seconds.append(perf_counter() - started)
            if status != ggml.SUCCESS:
                raise RuntimeError(f"ggml computed nothing (status {status})")
        result = np.empty(tuple(shape), np.float32)
        self._library.ggml_backend_tensor_get(node, result.ctypes.data, 0, result.nbytes)
        return result, seconds

    # -- memory ----------------------------------------------------------------------------------

    def _context(self) -> int:
        size = 16 * self._library.ggml_tensor_overhead() + self._library.ggml_graph_overhead()
        context = int(self._library.ggml_init(ggml.InitParameters(size, None, True)))
        self._undo.callback(self._library.ggml_free, context)
        return context

    @contextmanager
    def _temporary(self) -> Iterator[int]:
        """Return a context whose tensors are freed at the end."""
        outer, self._undo = self._undo, ExitStack()
        try:
            with self._undo:
                yield self._context()
        finally:
            self._undo = outer

    def _new(self, context: int, kind: int, values: npt.NDArray[Any]) -> int:
        values = np.ascontiguousarray(values)
        sizes = [*reversed(values.shape), 1, 1][:3]
        return self._filled(context, kind, sizes, values)

    def _filled(
        self, context: int, kind: int, sizes: Sequence[int], values: npt.NDArray[Any]
    ) -> int:
        """Return a tensor of these sizes, the width first, with these bytes."""
        tensor = int(self._library.ggml_new_tensor_3d(context, kind, *sizes))
        self._place(tensor, self._library.ggml_backend_cpu_buffer_type(), 0)
        self._set(tensor, values)
        return tensor

    def _place(self, tensor: int, buffer_type: int, size: int) -> None:
        size = max(size, self._library.ggml_nbytes(tensor))
        buffer = self._library.ggml_backend_buft_alloc_buffer(buffer_type, size)
        self._undo.callback(self._library.ggml_backend_buffer_free, buffer)
        base = self._library.ggml_backend_buffer_get_base(buffer)
        self._library.ggml_backend_tensor_alloc(buffer, tensor, base)

    def _set(self, tensor: int, values: npt.NDArray[Any]) -> None:
        self._library.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)

    def _stored(
        self, context: int, kind: int, sizes: Sequence[int], data: npt.NDArray[np.uint8], place: int
    ) -> int:
        """Return a tensor of weights in a buffer of the type `place`, which may pack them."""
        tensor = int(self._library.ggml_new_tensor_3d(context, kind, *sizes))
        self._place(tensor, place, self._library.ggml_backend_buft_get_alloc_size(place, tensor))
        self._set(tensor, np.ascontiguousarray(data))
        return tensor


class Operation(_Graph):
    """Packed or plain weights, and one operation on them. Close it.

    Args:
        backend: what computes.
        buffer_type: where the weights lie; None for ordinary memory.
        kind: ggml's number of the weights' type.
        weights: uint8 (matrices, height, bytes of a row), as in a file.
        width: weights in a row.
    """

    def __init__(
        self,
        backend: Backend,
        buffer_type: int | None,
        kind: int,
        weights: npt.NDArray[np.uint8],
        width: int,
    ) -> None:
        super().__init__(backend)
        matrices, height, _ = weights.shape
        self._height = height
        context = self._context()
        if buffer_type is None:
            buffer_type = int(self._library.ggml_backend_cpu_buffer_type())
        sizes = (width, height, matrices)
        self._weights = self._stored(context, kind, sizes, weights, buffer_type)

    def stored(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of the weights, in the file's order."""
        data = np.empty(size, np.uint8)
        self._library.ggml_backend_tensor_get(self._weights, data.ctypes.data, offset, size)
        return data

    def store(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        """Change some bytes of the weights."""
        self._library.ggml_backend_tensor_set(self._weights, data.ctypes.data, offset, data.nbytes)

    def multiply(
        self, x: npt.NDArray[np.float32], repeats: int = 1
    ) -> tuple[npt.NDArray[np.float32], list[float]]:
        """MUL_MAT of the only matrix: x is (columns, width), the result (columns, height).

        Returns:
            The result, and the seconds of each of `repeats` times.
        """
        with self._temporary() as context:
            input = self._new(context, ggml.F32, x)
            node = self._library.ggml_mul_mat(context, self._weights, input)
            return self._run(context, node, (len(x), self._height), repeats)

    def multiply_experts(
        self, x: npt.NDArray[np.float32], ids: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]:
        """Compute MUL_MAT_ID: x is (tokens, 1 or used, width), ids (tokens, used)."""
        with self._temporary() as context:
            input = self._new(context, ggml.F32, x)
            chosen = self._new(context, ggml.I32, ids)
            node = self._library.ggml_mul_mat_id(context, self._weights, input, chosen)
            return self._run(context, node, (*ids.shape, self._height), 1)[0]

    def rows(self, ids: npt.NDArray[np.int32], width: int) -> npt.NDArray[np.float32]:
        """Compute GET_ROWS: (ids, width)."""
        with self._temporary() as context:
            chosen = self._new(context, ggml.I32, ids)
            node = self._library.ggml_get_rows(context, self._weights, chosen)
            return self._run(context, node, (len(ids), width), 1)[0]


class Node(_Graph):
    """Any operation on floats."""

    def compute(
        self, build: Callable[..., int], *values: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]:
        """Compute what `build` makes of a context of ggml's and tensors of these values.

        Args:
            build: returns the node, of float32.
            values: float32, float16, int32 or int64, of at most three dimensions.
        """
        with self._temporary() as context:
            node = build(context, *(self._new(context, _KINDS[x.dtype.type], x) for x in values))
            sizes = (ctypes.c_int64 * 4).from_address(node + ggml.SIZES)
            return self._run(context, node, tuple(reversed(sizes[:3])), 1)[0]


class Attention(_Graph):
    """Attention nodes."""

    def compute(
        self,
        q: npt.NDArray[np.float32],
        k: npt.NDArray[np.uint8],
        v: npt.NDArray[np.uint8],
        mask: npt.NDArray[np.float16] | None,
        *,
        kind: int,
        value_width: int,
        scale: float,
        repeats: int = 1,
    ) -> tuple[npt.NDArray[np.float32], list[float]]:
        """Compute FLASH_ATTN_EXT.

        Args:
            q: (heads, queries, width).
            k, v: (heads of keys, keys, bytes of a row), of type `kind`.
            mask: (queries, keys), or None.

        Returns:
            (queries, heads, value width), and the seconds of each of `repeats` times.
        """
        heads, queries, width = q.shape
        shared, keys, _ = k.shape
        with self._temporary() as context:
            sources = [
                self._new(context, ggml.F32, q),
                self._filled(context, kind, (width, keys, shared), k),
                self._filled(context, kind, (value_width, keys, shared), v),
                None if mask is None else self._new(context, ggml.F16, mask),
            ]
            node = self._library.ggml_flash_attn_ext(context, *sources, scale, 0.0, 0.0)
            return self._run(context, node, (queries, heads, value_width), repeats)


class Matrix(NamedTuple):
    """Weights as in a file: ggml's number of their type, sizes with the width first, and bytes."""

    kind: int
    sizes: tuple[int, ...]
    data: npt.NDArray[np.uint8]


class StateHeads(_Graph):
    """Medusa heads on one state: a graph that is made once, and computed in memory that stays.

    Args:
        backend: what computes; closed with them.
        buffer_type: where the weights lie; None for ordinary memory.
        residual, bias: of the residual blocks: (width, width, heads) and float32 (heads, width).
        project: (width, width, heads), or None.
        output: (width, tokens, heads), or (width, tokens) for one that all share.

    Attributes:
        state: float32 (width,), what they read.
        logits: float32 (heads, tokens), what `compute` leaves.
    """

    def __init__(
        self,
        backend: Backend,
        buffer_type: int | None,
        residual: Matrix,
        bias: npt.NDArray[np.float32],
        project: Matrix | None,
        output: Matrix,
    ) -> None:
        super().__init__(backend)
        self._undo.callback(backend.close)
        library = self._library
        self._weights_at = buffer_type or int(library.ggml_backend_cpu_buffer_type())
        context, (heads, width) = self._context(), bias.shape
        x = self._new(context, ggml.F32, np.zeros((1, width), np.float32))
        each = self._new(context, ggml.I32, np.arange(heads, dtype=np.int32)[None])
        ones = self._new(context, ggml.F32, np.ones((heads, width), np.float32))
        biases = self._new(context, ggml.F32, bias)

        def multiply(matrix: Matrix, columns: int) -> int:
            weights = self._matrix(context, matrix)
            if len(matrix.sizes) == 2:
                return self._node(library.ggml_mul_mat(context, weights, columns))
            return self._node(library.ggml_mul_mat_id(context, weights, columns, each))

        y = self._node(library.ggml_add(context, multiply(residual, x), biases))
        y = self._node(library.ggml_swiglu_split(context, y, ones))  # silu
        y = self._node(library.ggml_add(context, y, x))
        if project is not None:
            y = multiply(project, y)
        y = multiply(output, y)
        self._graph = library.ggml_new_graph(context)
        library.ggml_build_forward_expand(self._graph, y)
        self.state = self._floats(x, (width,))
        self.logits = self._floats(y, (heads, output.sizes[1]))

    def compute(self) -> None:
        """Compute `logits` of `state`.

        Raises:
            RuntimeError: memory is lacking.
        """
        status = self._library.ggml_backend_graph_compute(self._backend.pointer, self._graph)
        if status != ggml.SUCCESS:
            raise RuntimeError(f"ggml computed nothing (status {status})")

    def use_threads(self, threads: int) -> None:
        """Compute with so many threads from now on."""
        self._backend.use_threads(threads)

    def _matrix(self, context: int, matrix: Matrix) -> int:
        sizes = [*matrix.sizes, 1][:3]
        return self._stored(context, matrix.kind, sizes, matrix.data, self._weights_at)

    def _node(self, node: int) -> int:
        self._place(node, self._library.ggml_backend_cpu_buffer_type(), 0)
        return node

    def _floats(self, tensor: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return a view of a tensor in ordinary memory."""
        address = ctypes.c_void_p.from_address(tensor + ggml.DATA).value
        memory = (ctypes.c_float * int(np.prod(shape))).from_address(address or 0)
        return np.frombuffer(memoryview(memory), np.float32).reshape(shape)
