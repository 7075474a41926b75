"""A model's tokens: text to ids, ids to bytes, and which ids end a generation."""

from __future__ import annotations

import ctypes
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec._types import Int32Array
from edgespec.backend.lifetime import lib
from edgespec.errors import BackendError, UnsupportedError, UsageError

__all__ = ["PLAIN", "Vocabulary"]

PLAIN = f"\ufdd0{secrets.token_hex(8)}\ufdd0"
"""Stands before and after a part of a text that is no control token, whatever it spells.

It is different in each process, so that no text from outside can contain it.
"""

_PIECE_BYTES = 64
_MOST_TOKENS = 1 << 30
# The regular expressions of tokenizers recurse for each character of a match, 330 bytes deep, and a
# match is at most a run of spaces and one of others.
_RUN = re.compile(rb"\s+|\S+")
_SHORT = 512
_STACK_PER_BYTE, _SPARE_STACK, _LARGEST_STACK = 2 * 448, 1 << 20, 1 << 30
_LONGEST_RUN = (_LARGEST_STACK - _SPARE_STACK) // _STACK_PER_BYTE
_starting = threading.Lock()
_ORDINARY = (
    lib.LLAMA_TOKEN_ATTR_NORMAL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_BYTE
)


class Vocabulary:
    """Tokenizer of a loaded model; any thread may use it while the model is open.

    Later calls raise BackendError, unless the answer is known already.

    Args:
        pointer: the native handle.
        path: of the model's file.

    Attributes:
        companion: what another module keeps for as long as the model is open.
    """

    def __init__(self, pointer: Any, path: Path) -> None:
        self._pointer = pointer
        self.path = path
        self.companion: object = None
        self._in_use = threading.Lock()  # held while native code must not lose the model
        self.size = int(lib.llama_vocab_n_tokens(pointer))

    @property
    def pointer(self) -> Any:
        """The native handle, for the other modules of this package.

        Raises:
            BackendError: the model was closed.
        """
        if self._pointer is None:
            raise BackendError("the model was closed")
        return self._pointer

    def close(self) -> None:
        """Note that the model is about to be freed."""
        with self._in_use:
            self._pointer = None
        self.companion = None

    @property
    def bos(self) -> int | None:
        """Token put before a text, or None."""
        return _token_or_none(lib.llama_vocab_bos(self.pointer))

    @property
    def eos(self) -> int | None:
        """Token that ends a text, or None."""
        return _token_or_none(lib.llama_vocab_eos(self.pointer))

    @property
    def newline(self) -> int | None:
        """Token of a line break, or None."""
        return _token_or_none(lib.llama_vocab_nl(self.pointer))

    @property
    def infill(self) -> tuple[int, int, int] | None:
        """Tokens before a prefix, a suffix, and the text to write between them.

        None if the model cannot fill gaps.
        """
        prefix = _token_or_none(lib.llama_vocab_fim_pre(self.pointer))
        suffix = _token_or_none(lib.llama_vocab_fim_suf(self.pointer))
        middle = _token_or_none(lib.llama_vocab_fim_mid(self.pointer))
        if prefix is None or suffix is None or middle is None:
            return None
        return prefix, suffix, middle

    def gap(
        self, before: str | Sequence[int], after: str, *, after_first: bool = False
    ) -> list[int]:
        """Return a prompt that asks for the text between two others.

        Args:
            before, after: plain texts, or tokens.
            after_first: whether the model expects them in that order.

        Raises:
            UnsupportedError: the model cannot fill gaps.
        """
        if self.infill is None:
            raise UnsupportedError(
                "suffix is not supported by this model: it has no tokens that mark a gap to fill"
            )
        begin, end, middle = self.infill
        text = self._plain(before) if isinstance(before, str) else list(before)
        first, second = [begin, *text], [end, *self._plain(after)]
        parts = second + first if after_first else first + second
        bos = [self.bos] if self.adds_bos and self.bos is not None else []
        return [*bos, *parts, middle]

    def _plain(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenize(text, add_special=False).tolist()
        return tokens

    @property
    def adds_bos(self) -> bool:
        """Whether this model's texts start with `bos`."""
        return bool(lib.llama_vocab_get_add_bos(self.pointer))

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Every token that ends a generation: EOS, EOT, EOM and the like."""
        is_end = lib.llama_vocab_is_eog
        with self._in_use:
            return frozenset(t for t in range(self.size) if is_end(self.pointer, t))

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """Ordinary tokens by the bytes they stand for, without control and unused tokens.

        If several stand for the same bytes, the first counts; a single-byte fallback token counts
        only if there is no other. That is what the tokenizer itself would choose.
        """
        found: dict[bytes, int] = {}
        fallback: dict[bytes, int] = {}
        for token in range(self.size):
            attributes = lib.llama_vocab_get_attr(self.pointer, token)
            if not attributes & _ORDINARY:
                continue
            table = fallback if attributes & lib.LLAMA_TOKEN_ATTR_BYTE else found
            table.setdefault(self.piece(token), token)
        found = fallback | found
        found.pop(b"", None)
        return found

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> Int32Array:
        """Split a text into token ids: int32 (n,).

        Args:
            text: the text or its UTF-8; lone surrogates, which have no UTF-8, are replaced.
            add_special: put BOS before it (and EOS after it) if the model wants that.
            parse_special: read ``<|im_start|>`` and the like as control tokens, except between two
                `PLAIN`. False for text that is not trusted.

        Raises:
            BackendError: the tokenizer failed.
            UsageError: over a million bytes in a row without a space, or of spaces.
        """
        if not parse_special or isinstance(text, bytes) or PLAIN not in text:
            return self._tokenize(text, add_special, parse_special)
        parts = text.split(PLAIN)
        return np.concatenate(
            [
                self._tokenize(part, add_special and number == 0, number % 2 == 0)
                for number, part in enumerate(parts)
            ]
        )

    def _tokenize(self, text: str | bytes, add_special: bool, parse_special: bool) -> Int32Array:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        # Few texts have more tokens than bytes: a space may be three bytes to the tokenizer.
        tokens = np.empty(len(data) + 8, np.int32)

        def split() -> int:
            with self._in_use:
                return int(
                    lib.llama_tokenize(
                        self.pointer,
                        data,
                        len(data),
                        tokens.ctypes.data_as(ctypes.POINTER(lib.llama_token)),
                        len(tokens),
                        add_special,
                        parse_special,
                    )
                )

        count = _with_stack_for(data, split)
        if -_MOST_TOKENS < count < 0:
            tokens = np.empty(-count, np.int32)
            count = _with_stack_for(data, split)
        if count < 0:
            raise BackendError(f"the tokenizer could not split a text of {len(data)} bytes")
        used: Int32Array = tokens[:count].copy()
        return used

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes that a token stands for; none for control tokens unless `special`.

        Raises:
            BackendError: the token does not exist.
        """
        if not 0 <= token < self.size:
            raise BackendError(f"token {token} is outside the vocabulary of {self.size}")
        size = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            with self._in_use:
                count: int = lib.llama_token_to_piece(self.pointer, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def decode(self, tokens: npt.ArrayLike, *, special: bool = False) -> str:
        """Return the text of a whole sequence of tokens; broken UTF-8 becomes U+FFFD."""
        pieces = (self.piece(int(t), special=special) for t in np.asarray(tokens, np.int32))
        return b"".join(pieces).decode("utf-8", "replace")


def _with_stack_for(text: bytes, split: Callable[[], int]) -> int:
    """Call a function that recurses for each byte of the longest run in a text.

    Raises:
        UsageError: no stack is large enough.
    """
    if len(text) <= _SHORT:
        return split()
    longest = max((match.end() - match.start() for match in _RUN.finditer(text)), default=0)
    if longest <= _SHORT:
        return split()
    if longest > _LONGEST_RUN:
        raise UsageError(
            f"the text has {longest:,} bytes in a row without a space, or of spaces: shorten it"
        )
    found: list[int | BaseException] = []

    def work() -> None:
        try:
            found.append(split())
        except BaseException as error:
            found.append(error)

    pages = -(-(longest * _STACK_PER_BYTE + _SPARE_STACK) // 4096)
    with _starting:  # the size holds for every thread that is started meanwhile
        before = threading.stack_size(pages * 4096)
        try:
            thread = threading.Thread(target=work, name="edgespec-tokenizer", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _token_or_none(token: int) -> int | None:
    return None if token < 0 else int(token)
