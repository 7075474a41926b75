"""Our device, as ggml sees it: registered once, then part of every context that is opened.

Functions on the way of a token are compiled (`callbacks`); Python is called back only when a model
or a context is opened.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from edgespec.kernels import callbacks as _callbacks  # noqa: F401 (marks what is compiled)
from edgespec.kernels import ggml, tables
from edgespec.kernels.activations import LARGE_RECORD, SMALL_RECORD, form_of
from edgespec.kernels.attention import CACHE_TYPES
from edgespec.kernels.compiler import Kernels
from edgespec.kernels.formats import FORMATS
from edgespec.kernels.isa import InstructionSet

__all__ = ["Device", "DeviceError"]

_NAME = b"edgespec"
_HUGE_PAGE = 2 << 20
_ACCELERATOR = 3  # enum ggml_backend_dev_type
_P, _S = ctypes.c_void_p, ctypes.c_size_t
_OPERATIONS = {
    "NONE": tables.NONE,
    "MUL_MAT": tables.MUL_MAT,
    "MUL_MAT_ID": tables.MUL_MAT_ID,
    "GET_ROWS": tables.GET_ROWS,
    "RESHAPE": tables.RESHAPE,
    "VIEW": tables.VIEW,
    "PERMUTE": tables.PERMUTE,
    "TRANSPOSE": tables.TRANSPOSE,
    "FLASH_ATTN_EXT": tables.FLASH_ATTN_EXT,
    "RMS_NORM": tables.RMS_NORM,
    "ADD": tables.ADD,
    "MUL": tables.MUL,
    "GLU": tables.GLU,
    "ROPE": tables.ROPE,
    "SET_ROWS": tables.SET_ROWS,
    "SCALE": tables.SCALE,
    "FILL": tables.FILL,
}


class DeviceError(Exception):
    """Why the device cannot be used with this library; one line."""


def _structure(name: str, *fields: str) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": [(field, _P) for field in fields]})


_BufferInterface = _structure(
    "_BufferInterface", "free", "base", "init", "memset", "set", "get", "set_2d", "get_2d",
    "copy", "clear", "reset",
)  # fmt: skip
_BufferType = _structure(
    "_BufferType", "name", "allocate", "alignment", "max_size", "alloc_size", "is_host",
    "device", "context",
)  # fmt: skip
_DeviceStruct = _structure(
    "_DeviceStruct", "name", "description", "memory", "type", "props", "init", "buffer_type",
    "host_buffer_type", "buffer_from_host", "supports_op", "supports_buffer_type", "offload",
    "event_new", "event_free", "event_synchronize", "registration", "context",
)  # fmt: skip
_Registration = _structure(
    "_Registration", "version", "name", "count", "device", "address", "context"
)
_Backend = _structure(
    "_Backend", "guid", "name", "free", *(f"unused{i}" for i in range(10)), "compute",
    "event_record", "event_wait", "optimize", "device", "context",
)  # fmt: skip


class _Properties(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("free", _S),
        ("total", _S),
        ("type", ctypes.c_int),
        ("id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 5),
    )


class Device:
    """Registers with ggml when made; there is one in a process, and it is never taken back.

    Args:
        library: the loaded ggml library, with the functions of all its parts.
        isa: what to multiply with.

    Raises:
        DeviceError: the library is not one that this package was written for.
    """

    def __init__(self, library: Any, isa: InstructionSet) -> None:
        self.isa = isa
        self._library = library
        _check(library)
        self._kernels = Kernels(isa)
        self._table = np.zeros(tables.TABLE_SLOTS, np.int64)
        self._kept: list[Any] = []  # what ggml has pointers to
        self._opened = threading.local()
        self._libc = ctypes.CDLL(None)
        self._buffer_interface = self._make_buffer_interface()
        self._buffer_type = self._make_buffer_type()
        self._device = self._make_device()
        self._fill_table()
        self._register()

    @property
    def address(self) -> int:
        """The device, as ggml knows it."""
        return ctypes.addressof(self._device)

    @property
    def buffer_type(self) -> int:
        """The address of the buffer type that weights have to be given to be multiplied here."""
        return ctypes.addressof(self._buffer_type)

    def opened_states(self) -> list[int]:
        """Return the addresses of the states that this thread opened since it last asked.

        llama.cpp opens several for a context, and computes with one of them.
        """
        states, self._opened.states = getattr(self._opened, "states", []), []
        return states

    def cell_mover(self) -> Callable[[int, int, int], None]:
        """`branches.move_cells`, to be called from Python."""
        return ctypes.CFUNCTYPE(None, _P, _P, _P)(self._native("move_cells"))

    def load_with(self, threads: int) -> None:
        """Pack weights that are loaded from now on with so many threads."""
        self._table[tables.LOADING_THREADS] = threads

    def prepare(self, types: Iterable[int]) -> None:
        """Compile, or load, the kernels for these tensor types before weights are.

        Args:
            types: ggml's numbers, all of `FORMATS`.
        """
        for number in sorted(set(types)):
            row = tables.FORMATS + number * tables.FORMAT_SLOTS
            if self._table[row + tables.WEIGHTS]:
                continue
            format = FORMATS[number]
            for column, address in enumerate(self._kernels.multiply(format)):
                self._table[row + tables.KERNELS + column] = address
            before = 0
            for index, field in enumerate(format.fields):
                at = row + tables.FIELD + tables.FIELD_SLOTS * index
                figures = (field.offset, field.unit, field.units, field.transposed, before)
                self._table[at : at + tables.FIELD_SLOTS] = figures
                before += field.size
            self._table[row + tables.BLOCK] = format.block
            self._table[row + tables.FIELDS] = len(format.fields)
            self._table[row + tables.FORM] = form_of(format)
            self._table[row + tables.TO_FLOAT] = _to_float(self._library, number)
            self._table[row + tables.WEIGHTS] = format.weights  # last: now it is supported

    def prepare_layers(self) -> None:
        """Take attention and the small operations of a layer from now on."""
        for slot, address in enumerate(self._kernels.rows()):
            self._table[tables.RMS_NORM_ROW + slot] = address
        for number, name in CACHE_TYPES.items():
            self._table[tables.ATTEND + number] = self._kernels.attention()[f"attend_{name}"]

    @property
    def attends(self) -> bool:
        """Whether attention, and with it whole layers, are taken."""
        return bool(self._table[tables.ATTEND + ggml.F16])

    def refuse_layers(self) -> None:
        """Leave all but the multiplication of weights to llama.cpp from now on."""
        self._table[tables.RMS_NORM_ROW] = 0
        self._table[tables.ATTEND : tables.ATTEND + max(CACHE_TYPES) + 1] = 0

    def _fill_table(self) -> None:
        table = self._table
        table[tables.BUFFER_TYPE] = self.buffer_type
        table[tables.ROWS], table[tables.COLUMNS] = self.isa.rows, self.isa.columns
        table[tables.LOADING_THREADS] = 1
        table[tables.QUANTIZE] = self._kernels.quantize(SMALL_RECORD)
        table[tables.QUANTIZE_LARGE] = self._kernels.quantize(LARGE_RECORD)
        addresses = self._kernels.attention()
        table[tables.MERGE], table[tables.FINISH] = addresses["merge"], addresses["finish"]
        table[tables.ASK] = addresses["ask"]
        table[tables.ROWS_PART] = self._native("rows_part")
        table[tables.ATTEND_PART] = self._native("attend_units")
        table[tables.PARALLEL] = _address(self._library.GOMP_parallel)
        table[tables.QUANTIZE_PART] = self._native("quantize_part")
        table[tables.MULTIPLY_PART] = self._native("multiply_part")
        table[tables.PACK_PART] = self._native("pack_part")
        table[tables.MALLOC] = _address(self._libc.aligned_alloc)
        table[tables.FREE] = _address(self._libc.free)
        table[tables.GRAPH_COUNT] = _address(self._library.ggml_graph_n_nodes)
        table[tables.GRAPH_NODE] = _address(self._library.ggml_graph_node)
        for name, number in _operations(self._library).items():
            table[_OPERATIONS[name]] = number

    def _native(self, name: str) -> int:
        """Return the address of a function of `callbacks`."""
        return self._kernels.function(name)

    # -- what ggml gets --------------------------------------------------------------------------

    def _callback(self, result: Any, *kinds: Any) -> Callable[[Callable[..., Any]], int]:
        """Make a function of Python one of C; its address."""

        def decorate(function: Callable[..., Any]) -> int:
            made = ctypes.CFUNCTYPE(result, *kinds)(function)
            self._kept.append(made)
            return _address(made)

        return decorate

    def _name(self) -> int:
        """Return the address of a function that returns our name, whatever it is asked of."""
        return self._callback(_P, _P)(lambda _: _address(ctypes.c_char_p(_NAME)))

    def _make_buffer_interface(self) -> Any:
        return _BufferInterface(
            free=self._native("free_buffer"),
            base=self._native("buffer_base"),
            set=self._native("set_tensor"),
            get=self._native("get_tensor"),
            clear=self._native("clear_buffer"),
        )

    def _make_buffer_type(self) -> Any:
        initialize = self._library.ggml_backend_buffer_init
        initialize.restype, initialize.argtypes = _P, (_P, _BufferInterface, _P, _S)
        allocate = self._libc.aligned_alloc
        allocate.restype, allocate.argtypes = _P, (_S, _S)

        def allocate_buffer(buffer_type: int, size: int) -> int:
            rounded = -(-(size + 1) // _HUGE_PAGE) * _HUGE_PAGE
            base = allocate(_HUGE_PAGE, rounded)
            if not base:
                return 0
            self._advise_huge_pages(base, rounded)
            return int(initialize(buffer_type, self._buffer_interface, base, size))

        return _BufferType(
            name=self._name(),
            allocate=self._callback(_P, _P, _S)(allocate_buffer),
            alignment=self._native("alignment"),
            alloc_size=self._native("alloc_size"),
            is_host=self._native("is_host"),
            context=self._table.ctypes.data,
        )

    def _advise_huge_pages(self, base: int, size: int) -> None:
        """Ask for fewer pages: a token reads all weights, and would look up each 4 KiB."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._libc.madvise(_P(base), _S(size), mmap.MADV_HUGEPAGE)

    def _make_device(self) -> Any:
        host_type = self._library.ggml_backend_cpu_buffer_type
        host_type.restype = _P
        cpu = host_type()

        def memory(_: int, free: Any, total: Any) -> None:
            free[0] = total[0] = 1  # llama.cpp divides by it, and takes nothing

        def properties(_: int, filled: Any) -> None:
            filled[0] = _Properties(_NAME, _NAME, 0, 0, _ACCELERATOR, None, (False,) * 5)

        size_pointer = ctypes.POINTER(_S)
        return _DeviceStruct(
            name=self._name(),
            description=self._name(),
            memory=self._callback(None, _P, size_pointer, size_pointer)(memory),
            type=self._callback(ctypes.c_int, _P)(lambda _: _ACCELERATOR),
            props=self._callback(None, _P, ctypes.POINTER(_Properties))(properties),
            init=self._callback(_P, _P, ctypes.c_char_p)(lambda *_: self._open_backend()),
            buffer_type=self._callback(_P, _P)(lambda _: cpu),
            supports_op=self._native("supports"),
            supports_buffer_type=self._native("supports_buffer_type"),
            context=self._table.ctypes.data,
        )

    def _open_backend(self) -> int:
        """Make one for a context that is opened; `callbacks.free_backend` frees it."""
        allocate = self._libc.aligned_alloc
        state_bytes = -(-8 * tables.STATE_SLOTS // 64) * 64
        backend_bytes = -(-ctypes.sizeof(_Backend) // 64) * 64
        state, backend = allocate(64, state_bytes), allocate(64, backend_bytes)
        ctypes.memset(state, 0, state_bytes)
        slots = (ctypes.c_int64 * tables.STATE_SLOTS).from_address(state)
        slots[tables.TABLE], slots[tables.THREADS] = self._table.ctypes.data, 1
        self._opened.states = [*getattr(self._opened, "states", []), state]
        filled = _Backend(
            guid=ctypes.addressof(self._guid),
            name=self._buffer_type.name,
            free=self._native("free_backend"),
            compute=self._native("compute"),
            device=ctypes.addressof(self._device),
            context=state,
        )
        ctypes.memmove(backend, ctypes.addressof(filled), ctypes.sizeof(filled))
        return int(backend)

    def _register(self) -> None:
        self._guid = (ctypes.c_uint8 * 16)(*b"edgespec-kernels")
        functions = {
            b"ggml_backend_set_n_threads": self._native("set_threads"),
            b"ggml_backend_set_abort_callback": self._native("set_abort"),
        }
        device = ctypes.addressof(self._device)
        self._registration = _Registration(
            version=ggml.API_VERSION,
            name=self._name(),
            count=self._callback(_S, _P)(lambda _: 1),
            device=self._callback(_P, _P, _S)(lambda *_: device),
            address=self._callback(_P, _P, ctypes.c_char_p)(lambda _, name: functions.get(name, 0)),
        )
        self._device.registration = ctypes.addressof(self._registration)
        self._buffer_type.device = device
        register = self._library.ggml_backend_register
        register.restype, register.argtypes = None, (_P,)
        register(ctypes.addressof(self._registration))


def _address(function: Any) -> int:
    return int(ctypes.cast(function, _P).value or 0)


def _check(library: Any) -> None:
    """Compare the library with what `ggml` knows of it."""
    missing = [name for name in _NEEDED if not hasattr(library, name)]
    if missing:
        raise DeviceError(f"this build of llama.cpp has no {missing[0]}")
    first = library.ggml_backend_reg_get
    first.restype, first.argtypes = _P, (_S,)
    version = ctypes.c_int.from_address(first(0)).value
    if version != ggml.API_VERSION:
        raise DeviceError(
            f"this build of llama.cpp has version {version} of the device interface, not "
            f"{ggml.API_VERSION}"
        )
    if _tensor_layout(library) != _expected_layout():
        raise DeviceError("this build of llama.cpp arranges tensors in another way")


_NEEDED = (
    "ggml_backend_reg_get", "ggml_backend_register", "ggml_backend_buffer_init",
    "ggml_backend_cpu_buffer_type", "ggml_graph_n_nodes",
    "ggml_graph_node", "ggml_get_type_traits", "ggml_op_name", "ggml_init", "ggml_free",
    "ggml_new_tensor_3d", "ggml_mul_mat", "ggml_tensor_overhead", "ggml_set_name",
    "GOMP_parallel",
)  # fmt: skip


def _tensor_layout(library: Any) -> list[object]:
    """Return what lies at the offsets that `ggml` names, in a tensor made for that."""
    library.ggml_init.restype, library.ggml_init.argtypes = _P, (ggml.InitParameters,)
    library.ggml_free.argtypes = (_P,)
    make = library.ggml_new_tensor_3d
    make.restype, make.argtypes = _P, (_P, ctypes.c_int, *[ctypes.c_int64] * 3)
    library.ggml_mul_mat.restype, library.ggml_mul_mat.argtypes = _P, (_P, _P, _P)
    library.ggml_set_name.restype, library.ggml_set_name.argtypes = _P, (_P, ctypes.c_char_p)
    context = library.ggml_init(ggml.InitParameters(1 << 14, None, True))
    weights = make(context, ggml.I32, 96, 7, 1)
    x = make(context, ggml.F32, 96, 5, 3)
    product = library.ggml_mul_mat(context, make(context, ggml.F32, 96, 7, 1), x)
    library.ggml_set_name(weights, b"weights")

    def read(kind: Any, tensor: int, offset: int) -> Any:
        return kind.from_address(tensor + offset).value

    found: list[object] = [
        read(ctypes.c_int, weights, ggml.TYPE),
        *(read(ctypes.c_int64, x, ggml.SIZES + 8 * i) for i in range(4)),
        *(read(ctypes.c_int64, x, ggml.STRIDES + 8 * i) for i in range(4)),
        read(ctypes.c_int, product, ggml.OPERATION) == _operations(library)["MUL_MAT"],
        read(ctypes.c_int64, product, ggml.SOURCES + 8) == x,
        ctypes.string_at(weights + ggml.NAME),
        read(ctypes.c_int64, x, ggml.DATA),
        read(ctypes.c_int64, x, ggml.BUFFER),
    ]
    library.ggml_free(context)
    return found


def _expected_layout() -> list[object]:
    return [ggml.I32, 96, 5, 3, 1, 4, 384, 1920, 5760, True, True, b"weights", 0, 0]


def _operations(library: Any) -> dict[str, int]:
    """Return the numbers of ggml's operations, which its versions count differently."""
    name = library.ggml_op_name
    name.restype, name.argtypes = ctypes.c_char_p, (ctypes.c_int,)
    found: dict[str, int] = {}
    number = 0
    while len(found) < len(_OPERATIONS) and number < 101:  # all are among the first
        text = (name(number) or b"").decode()
        if text in _OPERATIONS:
            found[text] = number
        number += 1
    if len(found) < len(_OPERATIONS):
        raise DeviceError("this build of llama.cpp has other operations")
    return found


class _TypeTraits(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("size", _S),
        ("quantized", ctypes.c_bool),
        ("to_float", _P),
        ("from_float", _P),
    )


def _to_float(library: Any, number: int) -> int:
    traits = library.ggml_get_type_traits
    traits.restype, traits.argtypes = ctypes.POINTER(_TypeTraits), (ctypes.c_int,)
    return int(traits(number).contents.to_float or 0)
