"""Opens our own device for a model's weights, or says why it cannot be used."""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edgespec.backend.lifetime import claim_process, initialize, lib
from edgespec.gguf.header import GGUFHeader, Tensor
from edgespec.gguf.reader import open_gguf

if TYPE_CHECKING:
    from edgespec.kernels.check import FormatTimes
    from edgespec.kernels.operations import StateHeads

__all__ = [
    "KernelStatus",
    "Placement",
    "formats_of",
    "kernel_status",
    "open_heads",
    "opened_device",
    "place_weights",
    "time_formats",
]

_log = logging.getLogger("edgespec.kernels")

_MULTIPLIED = frozenset(
    (
        *("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_gate"),
        *("attn_q_a", "attn_q_b", "attn_kv_a_mqa"),
        *("ffn_gate", "ffn_up", "ffn_down", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
        *("ssm_in", "ssm_out", "output"),
    )
)
"""Tensors that llama.cpp only ever multiplies (MUL_MAT), by the last part of their names."""

_EXPERTS = frozenset(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"))
"""Those of a mixture of experts (MUL_MAT_ID)."""

_QUERIES = frozenset(("attn_q", "attn_qkv", "attn_q_b"))
"""Whose results are the queries of a layer."""

_EMBEDDING = "token_embd"
"""Ours only if it is the output matrix too; else a row is read for a token, and no more."""


class KernelStatus(NamedTuple):
    """Whether our kernels can be used here.

    Attributes:
        instruction_set: what they multiply with; None if they cannot be used.
        reason: why not.
    """

    instruction_set: str | None
    reason: str | None


class Placement(NamedTuple):
    """Which weights go to our device, for the parameters of a load.

    Attributes:
        overrides: a C array for ``tensor_buft_overrides``.
        names: of the tensors.
        attention: whether the queries of all layers come from them.
        complete: whether no other weight of the file is multiplied with.
        devices: a C array for ``devices``.
    """

    overrides: Any
    names: tuple[str, ...]
    attention: bool
    complete: bool
    devices: Any


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class _Opened:
    """The one device of this process, once it is wanted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.device: Any = None
        self.reason: str | None = None
        self.checked: dict[int, bool] = {}
        self.layers_checked = False


_opened = _Opened()


def kernel_status() -> KernelStatus:
    """Open the device if it was not, and say what came of it.

    Raises:
        UsageError: EDGESPEC_KERNELS_ISA names an instruction set that this machine has not.
    """
    with _opened.lock:
        _open_device()
        if _opened.device is None:
            return KernelStatus(None, _opened.reason)
        return KernelStatus(_opened.device.isa.name, None)


def opened_device() -> Any:
    """Return the device that `kernel_status` opened; None if it cannot be used."""
    return _opened.device


def formats_of(header: GGUFHeader) -> frozenset[str]:
    """Return the names of the types of those tensors that our kernels could multiply."""
    from edgespec.kernels.formats import FORMATS

    return frozenset(
        FORMATS[tensor.kind].name
        for tensor in header.tensors
        if tensor.kind in FORMATS and _multiplied(header, tensor)
    )


def place_weights(header: GGUFHeader, formats: frozenset[str], threads: int) -> Placement | None:
    """Compile what the file's weights need, and say which of them are multiplied by our kernels.

    Args:
        formats: names of the tensor types that may be.
        threads: that pack the weights.

    Returns:
        None where there are none, or the device cannot be used.
    """
    from edgespec.kernels.formats import FORMATS

    with _opened.lock:
        _open_device()
        device = _opened.device
        if device is None:
            return None
        _check_layers()
        candidates = [
            tensor
            for tensor in header.tensors
            if tensor.kind in FORMATS
            and FORMATS[tensor.kind].name in formats
            and _multiplied(header, tensor)
        ]
        usable = {kind for kind in {tensor.kind for tensor in candidates} if _passes(kind)}
        device.load_with(threads)
    chosen = [tensor for tensor in candidates if tensor.kind in usable]
    if not chosen:
        return None
    names = tuple(tensor.name for tensor in chosen)
    pattern = _pattern(names, [tensor.name for tensor in header.tensors]).encode()
    overrides = (_Override * 2)(_Override(pattern, device.buffer_type), _Override(None, None))
    devices = (ctypes.c_void_p * 2)(device.address, None)
    attention = device.attends and _attention(header, names)
    return Placement(overrides, names, attention, _complete(header, names), devices)


def time_formats(
    formats: Iterable[str], *, threads: int, columns: Sequence[int], seconds: float
) -> dict[str, FormatTimes]:
    """Measure our kernels beside llama.cpp's; formats that cannot be used here are left out.

    Args:
        seconds: for each format, about.
    """
    from edgespec.kernels.check import time_format
    from edgespec.kernels.formats import FORMATS

    wanted, times = set(formats), {}
    claim_process()
    with _opened.lock:
        _open_device()
        for kind, format in FORMATS.items():
            if _opened.device is not None and format.name in wanted and _passes(kind):
                library = lib.llama_cpp._lib
                times[format.name] = time_format(
                    _opened.device,
                    library,
                    format,
                    threads=threads,
                    columns=columns,
                    seconds=seconds,
                )
    return times


def open_heads(header: GGUFHeader, threads: int, *, ours: bool) -> StateHeads:
    """Load a file's Medusa heads. Close them.

    Args:
        header: has `medusa`.
        ours: by our kernels where they can be used, and not by llama.cpp's.
    """
    from edgespec.kernels.operations import Backend, Matrix, StateHeads, cpu_device

    assert header.medusa is not None
    claim_process()
    initialize()
    library, device = lib.llama_cpp._lib, None
    found = {tensor.name: tensor for tensor in open_gguf(header.path).tensors}

    def matrix(name: str) -> Matrix:
        tensor = found[name]
        sizes = tuple(int(size) for size in tensor.shape)
        return Matrix(int(tensor.tensor_type), sizes, np.array(tensor.data).view(np.uint8))

    if ours:
        kinds = {tensor.kind for tensor in header.tensors if len(tensor.shape) > 1}
        with _opened.lock:
            _open_device()
            if _opened.device is not None:
                _check_layers()
                usable = _opened.device.attends and all(_passes(kind) for kind in kinds)
                device = _opened.device if usable else None
    heads, width = header.medusa.count, header.medusa.target_width
    return StateHeads(
        Backend(library, device.address if device else cpu_device(library), threads),
        device.buffer_type if device else None,
        matrix("medusa.residual.weight"),
        np.array(found["medusa.residual.bias"].data, np.float32).reshape(heads, width),
        matrix("medusa.project.weight") if header.medusa.projected else None,
        matrix("output.weight"),
    )


def _open_device() -> None:
    if _opened.device is not None or _opened.reason is not None:
        return
    initialize()
    from edgespec.kernels.device import Device, DeviceError
    from edgespec.kernels.isa import choose

    isa = choose()
    try:
        _opened.device = Device(lib.llama_cpp._lib, isa)
    except (DeviceError, OSError, RuntimeError, AttributeError) as error:
        _turn_off(str(error))


def _turn_off(reason: str) -> None:
    _opened.device, _opened.reason = None, reason
    _log.warning("llama.cpp's kernels are used: %s", reason)


def _passes(kind: int) -> bool:
    """Return whether a format's kernels are right on this machine; others stay unused."""
    from edgespec.kernels.check import check
    from edgespec.kernels.device import DeviceError
    from edgespec.kernels.formats import FORMATS

    if kind not in _opened.checked:
        try:
            _opened.device.prepare([kind])
            check(_opened.device, lib.llama_cpp._lib, FORMATS[kind])
            _opened.checked[kind] = True
        except (DeviceError, OSError, RuntimeError) as error:
            _log.warning("llama.cpp's kernels are used for %s: %s", FORMATS[kind].name, error)
            _opened.checked[kind] = False
    return _opened.checked[kind]


def _check_layers() -> None:
    """Turn whole layers off unless what is in them is right on this machine."""
    from edgespec.kernels.check import check_attention, check_rows
    from edgespec.kernels.device import DeviceError

    if _opened.layers_checked:
        return
    _opened.layers_checked = True
    try:
        _opened.device.prepare_layers()
        check_attention(_opened.device, lib.llama_cpp._lib)
        check_rows(_opened.device, lib.llama_cpp._lib)
    except (DeviceError, OSError, RuntimeError) as error:
        _log.warning("llama.cpp's attention and small operations are used: %s", error)
        _opened.device.refuse_layers()


def _attention(header: GGUFHeader, names: Iterable[str]) -> bool:
    """Return whether attention follows these weights, and needs nothing that ours cannot do."""
    all_names = [tensor.name for tensor in header.tensors]
    queries = {name for name in all_names if _last_part(name) in _QUERIES}
    sinks = any(_last_part(name) == "attn_sinks" for name in all_names)
    return bool(queries) and queries <= set(names) and not sinks


def _complete(header: GGUFHeader, names: Iterable[str]) -> bool:
    """Return whether all matrices of the file are these, embeddings left out."""
    known = set(names)
    others = [t for t in header.tensors if len(t.shape) > 1 and t.name not in known]
    return all(_last_part(t.name) == _EMBEDDING and not _multiplied(header, t) for t in others)


def _multiplied(header: GGUFHeader, tensor: Tensor) -> bool:
    last = _last_part(tensor.name)
    if last == _EMBEDDING:
        tied = all(other.name != "output.weight" for other in header.tensors)
        return tied and header.eagle is None and len(tensor.shape) == 2
    if last in _EXPERTS:
        return len(tensor.shape) == 3
    return last in _MULTIPLIED and len(tensor.shape) == 2


def _last_part(name: str) -> str:
    """Return ``ffn_up`` of ``blk.3.ffn_up.weight``, and nothing of what is no weight."""
    stem, _, suffix = name.rpartition(".")
    return stem.rpartition(".")[2] if suffix == "weight" else ""


def _pattern(names: Sequence[str], all_names: Sequence[str]) -> str:
    """Return a regular expression that finds these names and no others of the file.

    llama.cpp compiles it once for each tensor, so that layers are not listed where all are meant.
    """
    chosen = set(names)
    alternatives = set()
    for name in names:
        alike = re.compile(_any_layer(name) + "$")
        whole = all(other in chosen for other in all_names if alike.match(other))
        alternatives.add(_any_layer(name) if whole else re.escape(name))
    return f"^({'|'.join(sorted(alternatives))})$"


def _any_layer(name: str) -> str:
    return re.sub(r"^blk\\\.\d+", r"blk\\.[0-9]+", re.escape(name))
