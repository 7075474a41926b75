"""Grammars: which tokens may come next, according to llama.cpp's own GBNF engine."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from edgespec._types import BoolArray, Int32Array
from edgespec.backend.gbnf import check_expansion
from edgespec.backend.lifetime import Closing
from edgespec.backend.native import initialize, lib, recent_errors
from edgespec.backend.vocabulary import Vocabulary
from edgespec.errors import GrammarError

__all__ = ["Grammar"]


_MAX_CHARACTERS = 1 << 18
_MAX_DEPTH = 200
_MAX_REPETITIONS = 2000
_MAX_OPTIONAL = 1000
_BOUNDS = r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}"
_OPAQUE = r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*'
_stderr_lock = threading.Lock()
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Grammar(Closing):
    """A grammar and its state after the text accepted so far. Close it, or use it in a `with`.

    Args:
        vocabulary: of the model whose tokens it judges; has to stay open.
        text: rules in GBNF, the first called ``root``.

    Raises:
        GrammarError: it does not compile; the message has the line.
    """

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        initialize()
        self._vocabulary = vocabulary
        self._own(_compile(vocabulary, text))
        self._candidates = np.zeros(vocabulary.size, _CANDIDATE)

    def clone(self) -> Grammar:
        """Copy the state; the copy is independent, but shares the scratch space."""
        copy = object.__new__(Grammar)
        copy._vocabulary = self._vocabulary
        copy._own(lib.llama_sampler_clone(self._sampler))
        copy._candidates = self._candidates
        return copy

    def allowed(self, tokens: Int32Array) -> BoolArray:
        """Return which of these tokens may come next: bool (n,)."""
        candidates = self._candidates[: len(tokens)]
        candidates["id"] = tokens
        candidates["logit"] = 0.0
        data = lib.llama_token_data_array(
            data=ctypes.cast(candidates.ctypes.data, ctypes.POINTER(lib.llama_token_data)),
            size=len(tokens),
            selected=-1,
            sorted=False,
        )
        lib.llama_sampler_apply(self._sampler, ctypes.byref(data))
        may: BoolArray = candidates["logit"] == 0.0
        return may

    def allows(self, token: int) -> bool:
        """Return whether this token may come next."""
        return bool(self.allowed(np.array([token], np.int32))[0])

    def accept(self, token: int) -> None:
        """Advance over a token.

        Raises:
            GrammarError: it is not allowed here (llama.cpp would end the process).
        """
        if not self.allows(token):
            raise GrammarError(f"token {token} does not continue the text that the grammar allows")
        lib.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        """Free the state."""
        self._sampler = None
        self._free()

    def _own(self, sampler: Any) -> None:
        self._sampler = sampler
        # Also without `close`: its owner may be dropped before a generation begins.
        self._free = weakref.finalize(self, lib.llama_sampler_free, sampler)
        self._free.atexit = False


def _compile(vocabulary: Vocabulary, text: str) -> Any:
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(f"the grammar is longer than {_MAX_CHARACTERS} characters")
    if "\0" in text or not text.strip():
        raise GrammarError("the grammar is empty, or no text: it has to define the rule root")
    if _depth(text) > _MAX_DEPTH:  # the native parser recurses until the stack is full
        raise GrammarError(f"the grammar nests parentheses more than {_MAX_DEPTH} deep")
    plain = re.sub(_OPAQUE, "", text)
    for least, most in re.findall(_BOUNDS, plain):
        _check_repetitions([least, most])
        if least and most and int(least) > int(most):
            raise GrammarError(f"the grammar repeats from {least} to {most} times: turn them round")
    optional = len(re.findall(r"[?*]", plain))
    if optional > _MAX_OPTIONAL:
        raise GrammarError(
            f"the grammar has {optional} optional parts: {_MAX_OPTIONAL} are the most"
        )
    check_expansion(text)
    recent_errors()
    with _captured_stderr() as complaint:
        sampler = lib.llama_sampler_init_grammar(
            vocabulary.pointer, text.encode("utf-8", "replace"), b"root"
        )
    if not sampler:
        # The parser complains on standard error, later checks in the log.
        raise GrammarError(_located(text, complaint[0] or recent_errors()))
    return sampler


def _check_repetitions(counts: list[str]) -> None:
    """Refuse what the native parser would expand until memory runs out."""
    for count in counts:
        if count and (len(count) > 9 or int(count) > _MAX_REPETITIONS):
            raise GrammarError(
                f"the grammar repeats something {count[:20]} times: {_MAX_REPETITIONS} are the most"
            )


def _depth(text: str) -> int:
    """Return the nesting depth of parentheses, outside literals, classes and comments."""
    depth = deepest = 0
    for sign in re.sub(_OPAQUE, "", text):
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    return deepest


@contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """Capture what native code writes to file descriptor 2, as the list's first entry.

    llama.cpp's grammar parser does not use its log. What other threads write meanwhile is lost, so
    the block should be one short native call.
    """
    said = [""]
    with _stderr_lock, tempfile.TemporaryFile() as file:
        try:
            saved = os.dup(2)
        except OSError:  # standard error is closed
            yield said
            return
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            said[0] = file.read(4 * _MAX_CHARACTERS).decode("utf-8", "replace")


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
