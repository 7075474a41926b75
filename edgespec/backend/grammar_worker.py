"""Follow one GBNF grammar in a process of its own, which ends itself when that takes too much.

llama.cpp's engine keeps every way in which a text may have been read so far, and has no limits. The
process is started by `edgespec.backend.grammar`, and asked through its standard input. A request is
a letter, the number of a state, and the length of the data that follow; an answer is its data's
length and the data. Only what is needed is imported here, so that it starts soon.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import IO, Any

import llama_cpp as lib
import numpy as np
import psutil

REQUEST, ANSWER = struct.Struct("<cII"), struct.Struct("<I")
TOO_LONG, TOO_LARGE = 40, 41
COMPILE_S, STEP_S = 8.0, 3.0
SPARE_BYTES = 96 << 20
_LOOK_S = 0.02
_ERROR = 4
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Watch:
    """Ends the process when one request takes too long, or all of them too much memory."""

    def __init__(self) -> None:
        self._until = float("inf")
        self._process = psutil.Process()
        self._most = self._process.memory_info().rss + SPARE_BYTES
        threading.Thread(target=self._look, daemon=True).start()
        _limit_memory(self._process.memory_info().vms + SPARE_BYTES)  # with the thread's stack

    def begin(self, seconds: float) -> None:
        """Note that a request begins."""
        self._until = time.monotonic() + seconds

    def end(self) -> None:
        """Note that it is done."""
        self._until = float("inf")

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            if time.monotonic() > self._until:
                os._exit(TOO_LONG)
            if self._process.memory_info().rss > self._most:
                os._exit(TOO_LARGE)


def _limit_memory(size: int) -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(ValueError, OSError):
            resource.setrlimit(
                resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1])
            )


class States:
    """The states of one grammar, by the numbers that the asking process gave them."""

    def __init__(self, vocabulary: Any) -> None:
        self._vocabulary = vocabulary
        self._samplers: dict[int, Any] = {}
        self._candidates = np.zeros(lib.llama_vocab_n_tokens(vocabulary), _CANDIDATE)
        # The parser complains on standard error, later checks in the log.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        os.dup2(self._said.fileno(), 2)

    def compile(self, number: int, text: bytes) -> bytes:
        """Make the start state; return the complaint, or nothing."""
        sampler = lib.llama_sampler_init_grammar(self._vocabulary, text, b"root")
        if sampler:
            self._samplers[number] = sampler
            return b""
        self._said.seek(0)
        return self._said.read() or b" ".join(_logged) or b"?"

    def copy(self, number: int, other: bytes) -> bytes:
        """Copy a state to a new number."""
        sampler = lib.llama_sampler_clone(self._samplers[number])
        self._samplers[int.from_bytes(other, "little")] = sampler
        return b""

    def allowed(self, number: int, tokens: bytes) -> bytes:
        """Return a byte for each token: whether it may come next."""
        ids = np.frombuffer(tokens, np.int32)
        candidates = self._candidates[: len(ids)]
        candidates["id"] = ids
        candidates["logit"] = 0.0
        data = lib.llama_token_data_array(
            data=ctypes.cast(candidates.ctypes.data, ctypes.POINTER(lib.llama_token_data)),
            size=len(ids),
            selected=-1,
            sorted=False,
        )
        lib.llama_sampler_apply(self._samplers[number], ctypes.byref(data))
        may: bytes = (candidates["logit"] == 0.0).tobytes()
        return may

    def accept(self, number: int, token: bytes) -> bytes:
        """Advance over a token if it is allowed; return whether it was."""
        may = self.allowed(number, token)
        if may == b"\1":  # llama.cpp would end the process
            lib.llama_sampler_accept(self._samplers[number], int.from_bytes(token, "little"))
        return may

    def free(self, number: int, _: bytes) -> bytes:
        """Forget a state."""
        lib.llama_sampler_free(self._samplers.pop(number))
        return b""


def _serve(states: States, source: IO[bytes], sink: IO[bytes]) -> None:
    kinds = {
        b"c": states.compile,
        b"k": states.copy,
        b"m": states.allowed,
        b"a": states.accept,
        b"f": states.free,
    }
    watch = Watch()
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        kind, number, length = REQUEST.unpack(head)
        data = source.read(length)
        watch.begin(COMPILE_S if kind == b"c" else STEP_S)
        answer = kinds[kind](number, data)
        watch.end()
        sink.write(ANSWER.pack(len(answer)) + answer)
        sink.flush()


_logged: list[bytes] = []


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes | None, _user_data: Any) -> None:
    if level == _ERROR:
        _logged.append((text or b"").strip())


def main(path: str) -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to this process as well
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lib.llama_log_set(_log, ctypes.c_void_p(0))
    lib.llama_backend_init()
    parameters = lib.llama_model_default_params()
    parameters.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(path), parameters)
    if model:
        _serve(States(lib.llama_model_get_vocab(model)), sys.stdin.buffer, sink)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
