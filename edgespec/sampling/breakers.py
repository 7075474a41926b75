"""What ends a repetition for DRY: strings, turned into sequences of tokens once per vocabulary.

A breaker may begin in the middle of a token and end in the middle of another one: with the
breaker ``ab``, the token ``xa`` followed by ``b`` breaks as well as the token ``xaby``. So every
token is looked at that has the breaker in it, or a beginning of it at its own end; what is
missing is tokenized. The method is that of DRY's implementation in KoboldCpp, which llama.cpp
took over; so are the limits of 40 bytes and of 20 tokens behind the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from edgespec._types import Int32Array

__all__ = ["NO_BREAKERS", "breaker_table", "read_breakers"]


_MOST_BYTES = 40
_MOST_TOKENS = 20
_NONE = "none"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " "}


NO_BREAKERS: Int32Array = np.zeros((0, 2), np.int32)
"""Nothing but the window ends a repetition."""


def breaker_table(
    breakers: Sequence[str],
    n_vocab: int,
    piece: Callable[[int], bytes],
    tokenize: Callable[[str], npt.ArrayLike],
) -> Int32Array:
    """The sequences of tokens in which a breaker occurs.

    Args:
        breakers: strings that are not empty; at most their first 40 bytes count.
        n_vocab: number of tokens.
        piece: the bytes of a token, those of control tokens included.
        tokenize: the tokens of a text, with nothing added before or after it.

    Returns:
        int32 (n, 2 + longest tail), sorted. A row is a sequence: its first token, how many others
        it has, and those.
    """
    pieces = [piece(token) for token in range(n_vocab)]
    found: set[tuple[int, ...]] = set()
    for breaker in breakers:
        data = breaker.encode("utf-8", "replace")[:_MOST_BYTES]
        tails: dict[int, tuple[int, ...]] = {len(data): ()}
        for size in range(1, len(data)):
            tails[size] = _tokens(data[size:], tokenize)
        for token, word in enumerate(pieces):
            found.update((token, *tails[size]) for size in _overlaps(word, data))
    table = np.zeros((len(found), 1 + max(map(len, found), default=1)), np.int32)
    for row, (head, *tail) in zip(table, sorted(found), strict=True):
        row[:2] = head, len(tail)
        row[2 : 2 + len(tail)] = tail
    return table


def read_breakers(words: Sequence[str]) -> tuple[str, ...]:
    r"""Breakers as they are typed: ``\n``, ``\t``, ``\r``, ``\s`` (a space); "none" for none."""
    if tuple(words) == (_NONE,):
        return ()
    return tuple(
        re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), word) for word in words
    )


def _overlaps(word: bytes, breaker: bytes) -> Iterator[int]:
    """How much of the breaker this word has: all of it, or each beginning that ends the word."""
    if breaker in word:
        yield len(breaker)
        return
    for size in range(1, min(len(word) + 1, len(breaker))):
        if word.endswith(breaker[:size]):
            yield size


def _tokens(data: bytes, tokenize: Callable[[str], npt.ArrayLike]) -> tuple[int, ...]:
    # A cut inside of a character leaves bytes that are no text: the tokenizer sees U+FFFD.
    tokens = np.asarray(tokenize(data.decode("utf-8", "replace")), np.int32)
    return tuple(tokens.tolist()[:_MOST_TOKENS])
