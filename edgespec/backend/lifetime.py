"""Native code in a Python process: how its handles are freed, and how it is stopped.

Handles are freed by `close` or `with`, at exit, or when they are lost. Evaluations are stopped by
Ctrl-C and other signals, and from another thread: llama.cpp asks a callback at every node of its
graph whether to continue. A Python callback would take the interpreter lock a thousand times per
token; this one is native code that reads one byte.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import re
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import llama_cpp as lib
import numpy as np
from numba import carray, types

from edgespec._types import AnyArray, Float32Array, Int32Array
from edgespec.errors import BackendError, UsageError
from edgespec.interrupts import held_interrupts
from edgespec.sampling.kernel import native_callback

__all__ = [
    "FINAL_TAP",
    "LAYER_TAPS",
    "Batch",
    "CancelFlag",
    "Capabilities",
    "Closing",
    "Lifetime",
    "beside",
    "capabilities",
    "claim_process",
    "initialize",
    "lib",
    "open_context",
    "recent_errors",
]

Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """A context manager that calls `close`."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources; a second call does nothing."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Lifetime:
    """The lifetime of one engine, from its opening on.

    Args:
        engine: closed when the interpreter ends, if it is still open: threads that generate are
            then inside native code, which must not outlive the interpreter.
        free: frees its memory; called if the engine is lost without being closed. Must not refer
            to the engine.
    """

    def __init__(self, engine: Closing, free: Callable[[], object]) -> None:
        self._process = os.getpid()
        reference = weakref.ref(engine)

        def close() -> None:
            if (alive := reference()) is not None:
                alive.close()

        self._at_exit = close
        atexit.register(close)
        self._finalizer = weakref.finalize(engine, self._lost, free)
        self._finalizer.atexit = False

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that opened the engine."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Refuse to continue in a forked process.

        Raises:
            UsageError: llama.cpp's threads do not survive a fork, and waiting for them would never
                end.
        """
        if self.foreign:
            raise UsageError(
                "the model was loaded before this process was forked: load it in the process "
                "that uses it, started by multiprocessing's 'spawn' or 'forkserver' method"
            )

    def end(self) -> None:
        """Note that the engine was closed."""
        atexit.unregister(self._at_exit)
        self._finalizer.detach()

    def _lost(self, free: Callable[[], object]) -> None:
        atexit.unregister(self._at_exit)
        if not self.foreign:
            free()
            warnings.warn("an engine was not closed", ResourceWarning, stacklevel=2)


T = TypeVar("T")


def beside(call: Callable[[], T], stop: Callable[[], object]) -> T:
    """Make a long native call and return its result, handling signals while it runs.

    Python handles signals in the main thread, between its instructions. So in the main thread, the
    call is made in another thread.

    Args:
        call: must not raise.
        stop: makes `call` return soon. It is called if a signal handler raises; the exception is
            raised here after `call` has returned.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    returned: list[T] = []
    done = threading.Lock()
    done.acquire()

    def work() -> None:
        try:
            returned.append(call())
        finally:
            done.release()

    worker = threading.Thread(target=work, name="edgespec-evaluation", daemon=True)
    try:
        worker.start()
        done.acquire()
    except BaseException:
        stop()
        if worker.ident is not None:
            done.acquire()
        raise
    return returned[0]


@native_callback(types.boolean(types.voidptr))
def _is_set(flag: Any) -> bool:
    return carray(flag, 1, np.uint8)[0] != 0  # type: ignore[no-any-return]


class CancelFlag:
    """One byte that any thread may set and that native code polls."""

    def __init__(self) -> None:
        self._byte = np.zeros(1, np.uint8)

    @property
    def callback(self) -> Any:
        """Address of ``bool (*)(void *)``, for llama.cpp."""
        return _is_set.address

    @property
    def data(self) -> ctypes.c_void_p:
        """The argument that llama.cpp passes to the callback."""
        return ctypes.c_void_p(self._byte.ctypes.data)

    def set(self) -> None:
        """Ask the running evaluation to stop."""
        self._byte[0] = 1

    def clear(self) -> None:
        """Allow evaluations again."""
        self._byte[0] = 0

    def is_set(self) -> bool:
        """Return whether a stop was asked for."""
        return bool(self._byte[0])


_log = logging.getLogger("edgespec.llama")
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}
_CONTINUED, _ERROR = 5, 4

_recent: deque[str] = deque(maxlen=4)
_lock = threading.Lock()
_initialized = False
_evaluating: int | None = None  # the process that has evaluated something


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _forward(level: int, text: bytes | None, _user_data: Any) -> None:
    """Log llama.cpp's lines at least one level lower: its callers raise its errors."""
    line = (text or b"").decode("utf-8", "replace").rstrip()
    if not line or level == _CONTINUED:
        return
    if level == _ERROR:
        _recent.append(line)
    _log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


def initialize() -> None:
    """Start the native library; later calls do nothing.

    Raises:
        BackendError: the installed binding is not of a version that this package supports.
    """
    global _initialized
    with _lock:
        if _initialized:
            return
        if not lib.__version__.startswith("0.3."):
            raise BackendError(
                f"llama-cpp-python {lib.__version__} is installed, edgespec needs 0.3.x: "
                "pip install 'llama-cpp-python~=0.3.36'"
            )
        lib.llama_log_set(_forward, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _initialized = True


def claim_process() -> None:
    """Note that this process is going to evaluate something.

    Raises:
        UsageError: it was forked from a process that did. The threads of GNU OpenMP are then gone,
            and waiting for them would never end.
    """
    global _evaluating
    if _evaluating not in (None, os.getpid()):
        raise UsageError(
            "this process was forked from one that had used a model: start it by multiprocessing's "
            "'spawn' or 'forkserver' method, or fork before the first model is loaded"
        )
    _evaluating = os.getpid()


def recent_errors() -> str:
    """Return llama.cpp's latest complaints for the end of an error message, and forget them."""
    text = " ".join("; ".join(_recent).split())
    _recent.clear()
    return text[:300]


LAYER_TAPS = (
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
)
FINAL_TAP = (
    "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
    "_Z26llama_get_embeddings_nextnP13llama_context",
)
_EXTENDED_BATCH = (
    "llama_process",
    "llama_batch_ext_init",
    "llama_batch_ext_free",
    "llama_batch_ext_clear",
    "llama_batch_ext_add_token",
    "llama_batch_ext_add_embd",
    "llama_batch_ext_set_embd_token",
    "llama_batch_ext_set_pos",
    "llama_batch_ext_set_output_logits",
)


@dataclass(frozen=True)
class Capabilities:
    """Facts about a build.

    Attributes:
        binding: version of llama-cpp-python.
        features: instruction sets and options compiled in, e.g. ``{"AVX2", "REPACK"}``.
        tinyblas: has llama.cpp's LLAMAFILE matrix kernels. They round a batch differently from a
            single token, so that batches are not bit-identical to single tokens.
        amx: has llama.cpp's AMX matrix kernels. With some compilers they crash the process at the
            first evaluation (the tile configuration is only partly written), so this package opens
            models without weight repacking in such a build.
        layer_taps: the input of any layer can be read (EAGLE-3 features).
        final_tap: the hidden state before the output matrix can be read.
        extended_batch: tokens and embeddings can be evaluated together.
        gpu_offload: was compiled with a GPU backend.
    """

    binding: str
    features: frozenset[str]
    tinyblas: bool
    amx: bool
    layer_taps: bool
    final_tap: bool
    extended_batch: bool
    gpu_offload: bool

    @property
    def mtp(self) -> bool:
        """Whether MTP layers can be run."""
        return self.final_tap and hasattr(lib, "LLAMA_CONTEXT_TYPE_MTP")

    @property
    def eagle(self) -> bool:
        """Whether EAGLE-3 heads can be run."""
        return self.layer_taps and self.final_tap and self.extended_batch


def capabilities() -> Capabilities:
    """Ask the library what it can do; this is cheap."""
    initialize()
    info = lib.llama_print_system_info().decode("ascii", "replace")
    features = frozenset(re.findall(r"(\w+) = 1", info))
    return Capabilities(
        binding=lib.__version__,
        features=features,
        tinyblas="LLAMAFILE" in features,
        amx="AMX_INT8" in features,
        layer_taps=_exports(LAYER_TAPS),
        final_tap=_exports(FINAL_TAP),
        extended_batch=all(hasattr(lib, name) for name in _EXTENDED_BATCH),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
    )


def _exports(symbols: tuple[str, ...]) -> bool:
    native = lib.llama_cpp._lib
    return all(hasattr(native, symbol) for symbol in symbols)


class Batch:
    """A llama_batch over fixed arrays, filled in place for every evaluation."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._counts = np.ones(capacity, np.int32)
        sequence = np.zeros(1, np.int32)
        self._sequence = sequence
        self._sequences = np.full(capacity, sequence.ctypes.data, np.uint64)
        self._steps = np.arange(capacity, dtype=np.int32)
        self._native = lib.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, lib.llama_token),
            embd=None,
            pos=_pointer(self._positions, lib.llama_pos),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=ctypes.cast(
                self._sequences.ctypes.data,
                ctypes.POINTER(ctypes.POINTER(lib.llama_seq_id)),
            ),
            logits=_pointer(self._outputs, ctypes.c_int8),
        )

    def fill(
        self, tokens: Int32Array, start: int, outputs: int, states: Float32Array | None = None
    ) -> Any:
        """Set a chain of tokens at positions start.., with logits for the last `outputs`.

        Args:
            states: float32 (n, width), contiguous, the hidden states that go with them. They are
                not copied, and have to live until the evaluation.
        """
        count = len(tokens)
        self._native.embd = None if states is None else _pointer(states, ctypes.c_float)
        self._native.n_tokens = count
        self._tokens[:count] = tokens
        np.add(self._steps[:count], start, out=self._positions[:count])
        self._outputs[:count] = 0
        self._outputs[count - outputs : count] = 1
        return self._native


def _pointer(array: AnyArray, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def open_context(model: Any, parameters: Any, what: str) -> Any:
    """Open a context of a loaded model; return its pointer.

    Args:
        model: its pointer.
        parameters: a llama_context_params.
        what: names the context in an error.

    Raises:
        BackendError: llama.cpp cannot open it.
    """
    recent_errors()
    pointer = None
    try:
        with contextlib.suppress(ValueError), held_interrupts():
            pointer = lib.llama_init_from_model(model, parameters)
    except BaseException:
        if pointer:
            lib.llama_free(pointer)
        raise
    if not pointer:
        raise BackendError(f"llama.cpp cannot open {what}: {recent_errors() or 'no reason given'}")
    return pointer
