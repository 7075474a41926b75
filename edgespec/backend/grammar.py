"""Grammars: which tokens may come next, according to llama.cpp's own GBNF engine.

The engine has no limits, so each grammar is followed in a process of its own
(`grammar_worker.py`), which ends when it takes too long or too much memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from edgespec._types import BoolArray, Int32Array
from edgespec.backend import grammar_worker as worker
from edgespec.backend.lifetime import Closing
from edgespec.backend.vocabulary import Vocabulary
from edgespec.errors import GrammarError

__all__ = ["Grammar"]

_MAX_CHARACTERS = 1 << 18
_MAX_DEPTH = 200
_MAX_REPETITIONS = 2000
_BOUNDS = r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}"
_OPAQUE = r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*'
_PROGRAM = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
_START = 0
_LAST_WORDS_S = 0.2


class Grammar(Closing):
    """A grammar and its state after the text accepted so far. Close it, or use it in a `with`.

    Args:
        vocabulary: of the model whose tokens it judges.
        text: rules in GBNF, one of them called ``root``.

    Raises:
        GrammarError: it does not compile; the message has the line. Later calls raise it where
            following the grammar takes too much.
    """

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        _check(text)
        process = _worker(vocabulary, text)
        self._own(process, process.copy(_START))

    def clone(self) -> Grammar:
        """Copy the state; the copy is independent."""
        copy = object.__new__(Grammar)
        copy._own(self._worker, self._worker.copy(self._number))
        return copy

    def allowed(self, tokens: Int32Array) -> BoolArray:
        """Return which of these tokens may come next: bool (n,)."""
        data = self._worker.ask(b"m", self._number, tokens.tobytes())
        return np.frombuffer(data, np.bool_)

    def allows(self, token: int) -> bool:
        """Return whether this token may come next."""
        return bool(self.allowed(np.array([token], np.int32))[0])

    def accept(self, token: int) -> None:
        """Advance over a token.

        Raises:
            GrammarError: it is not allowed here.
        """
        if self._worker.ask(b"a", self._number, token.to_bytes(4, "little")) != b"\1":
            raise GrammarError(f"token {token} does not continue the text that the grammar allows")

    def close(self) -> None:
        """Free the state."""
        self._free()

    def _own(self, process: _Worker, number: int) -> None:
        self._worker, self._number = process, number
        # Also without `close`: its owner may be dropped before a generation begins.
        self._free = weakref.finalize(self, process.free, number)
        self._free.atexit = False


class _Worker:
    """The process that follows one grammar, and is asked by all who follow it.

    Args:
        path: of the model's file.
        text: the grammar.

    Raises:
        GrammarError: it does not compile, or that takes too much.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.text = text
        self._lock = threading.Lock()
        self._last = _START
        self._freed: deque[int] = deque()  # filled by finalizers, which must not wait for the lock
        self._process = _started(path)
        self._end = weakref.finalize(self, _end, self._process)
        if complaint := self.ask(b"c", _START, text.encode("utf-8", "replace")):
            self._end()
            raise GrammarError(_located(text, complaint.decode("utf-8", "replace")))

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def copy(self, number: int) -> int:
        """Copy a state; return the number of the copy."""
        with self._lock:
            self._last += 1
            copy = self._last
        self.ask(b"k", number, copy.to_bytes(4, "little"))
        return copy

    def free(self, number: int) -> None:
        """Forget a state, at the next request."""
        self._freed.append(number)

    def ask(self, kind: bytes, number: int, data: bytes) -> bytes:
        """Return the answer to one request.

        Raises:
            GrammarError: the process has ended, because this or an earlier one took too much.
        """
        with self._lock:
            while self._freed:
                self._exchange(b"f", self._freed.popleft(), b"")
            return self._exchange(kind, number, data)

    def _exchange(self, kind: bytes, number: int, data: bytes) -> bytes:
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None
        try:
            sink.write(worker.REQUEST.pack(kind, number, len(data)) + data)
            sink.flush()
            (length,) = worker.ANSWER.unpack(_read(source, worker.ANSWER.size))
            return _read(source, length)
        except (OSError, ValueError, EOFError):
            self._end()
            raise GrammarError(_too_much(self._process.returncode, kind == b"c")) from None


def _worker(vocabulary: Vocabulary, text: str) -> _Worker:
    """Return the process of a grammar: the one that was used last, or a new one."""
    known = vocabulary.companion
    if isinstance(known, _Worker) and known.text == text and known.alive:
        return known
    made = _Worker(vocabulary.path, text)
    vocabulary.companion = made
    return made


def _started(path: Path) -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise GrammarError(
            "rules in GBNF need a Python interpreter, and this program has none: take a JSON "
            "schema, a regular expression, or rules that begin with %llguidance"
        )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
        "GGML_NO_BACKTRACE": "1",
        "MALLOC_ARENA_MAX": "1",  # a second thread's would take up most of what it may map
    }
    command = [sys.executable, "-c", _PROGRAM, worker.__file__, os.fspath(path)]
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise GrammarError(
            f"the grammar cannot be followed: no process starts ({reason})"
        ) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_WORDS_S)
    process.kill()
    process.wait()


def _read(source: IO[bytes], count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _too_much(status: int, compiling: bool) -> str:
    """Return what to say of a process that has ended."""
    seconds = worker.COMPILE_S if compiling else worker.STEP_S
    most = f"{worker.SPARE_BYTES >> 20} MiB"
    why = f"takes more than {seconds:.0f} s" if status == worker.TOO_LONG else f"takes over {most}"
    what = "does not compile" if compiling else "cannot be followed any further"
    return (
        f"the grammar {what}: that {why}: do not repeat what may be empty, or repetitions "
        "without a text between them"
    )


def _check(text: str) -> None:
    """Refuse what is known to be too much, in words that say where."""
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(f"the grammar is longer than {_MAX_CHARACTERS} characters")
    if "\0" in text or not text.strip():
        raise GrammarError("the grammar is empty, or no text: it has to define the rule root")
    plain = re.sub(_OPAQUE, "", text)
    if _depth(plain) > _MAX_DEPTH:
        raise GrammarError(f"the grammar nests parentheses more than {_MAX_DEPTH} deep")
    for least, most in re.findall(_BOUNDS, plain):
        for count in filter(None, (least, most)):
            if len(count) > 9 or int(count) > _MAX_REPETITIONS:
                raise GrammarError(
                    f"the grammar repeats something {count[:20]} times: {_MAX_REPETITIONS} are "
                    "the most"
                )
        if least and most and int(least) > int(most):
            raise GrammarError(f"the grammar repeats from {least} to {most} times: turn them round")


def _depth(plain: str) -> int:
    """Return the nesting depth of parentheses."""
    depth = deepest = 0
    for sign in plain:
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    return deepest


def _located(text: str, complaint: str) -> str:
    """Return the parser's complaint with its line; it quotes the rest of the text, then all."""
    complaint = complaint.removeprefix("parse: error parsing grammar: ").rstrip()
    reason, marker, rest = complaint.removesuffix(text.rstrip()).partition(" at ")
    at = text.rfind(rest.rstrip()) if marker and rest.strip() else len(text.rstrip())
    where = f" in line {text.count(chr(10), 0, at) + 1}" if reason.strip() and at >= 0 else ""
    if "left recursion" in reason:
        reason, where = "a rule begins with itself (left recursion)", ""
    elif not reason.strip() or "'root' symbol" in reason:
        reason, where = "it has no rule called root", ""
    reason = " ".join(reason.split())
    return f"the grammar does not compile{where}: {reason}"
