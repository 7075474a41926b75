"""Changes to single logits: bias and penalties, taken back after each row, and a grammar's mask.

DRY, "Don't Repeat Yourself", is by P. E. Weidmann (2024, text-generation-webui, pull request
5677), with llama.cpp's conventions: the penalty is multiplier * base ** (length - allowed length),
where length is that of the longest suffix of the text that occurred before, followed by this token.
A repetition is not followed beyond the last breaker.

Breakers are strings, turned into sequences of tokens once per vocabulary. A breaker may begin in
the middle of one token and end in the middle of another: with the breaker ``ab``, the token ``xa``
followed by ``b`` breaks as well as the token ``xaby``. So every token counts that has the breaker
in it, or a beginning of the breaker at its own end; the missing rest is tokenized. The method is
that of DRY's implementation in KoboldCpp, which llama.cpp took over; so are the limits of 40 bytes
and of 20 tokens behind the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import Workspace, edit, kernel
from edgespec.sampling.parameters import FilterArguments

__all__ = ["allowed_set", "apply_bias", "apply_dry", "apply_penalties", "breaker_table", "forbid"]

_LOG_LARGEST = 88.7228391  # log of the largest float32: base ** exponent stays below it
_LEAST_BASE = 1.000001  # below it no exponent is too large
_MOST_BYTES = 40
_MOST_TOKENS = 20


@kernel
def apply_bias(logits: Float32Array, arguments: FilterArguments, workspace: Workspace) -> int:
    """Add the user's biases; return the number of edits."""
    n_edited = 0
    for i in range(len(arguments.bias_tokens)):
        token = arguments.bias_tokens[i]
        value = logits[token] + arguments.bias_values[i]
        n_edited = edit(logits, token, value, n_edited, workspace)
    return n_edited


@kernel
def apply_penalties(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    arguments: FilterArguments,
    n_edited: int,
    workspace: Workspace,
) -> int:
    """Apply the penalties of Keskar et al. (2019) and of OpenAI's API as llama.cpp does.

    Returns the number of edits so far.
    """
    repeat = np.float32(arguments.repeat_penalty)
    frequency = np.float32(arguments.frequency_penalty)
    presence = np.float32(arguments.presence_penalty)
    if arguments.penalty_window == 0 or (repeat == 1 and frequency == 0 and presence == 0):
        return n_edited
    first = 0 if arguments.penalty_window < 0 else max(0, length - arguments.penalty_window)
    counts = workspace.counts
    for i in range(first, length):
        counts[history[i]] += 1
    for i in range(first, length):
        token = history[i]
        count = counts[token]
        if count == 0:
            continue
        counts[token] = 0
        value = logits[token]
        value = value * repeat if value <= 0 else value / repeat
        value -= np.float32(count) * frequency + presence
        n_edited = edit(logits, token, value, n_edited, workspace)
    return n_edited


# -- DRY ------------------------------------------------------------------------------------


@kernel
def _first_row(table: Int32Array, head: int) -> int:
    """Find the first row of a breaker table whose head is not smaller, by bisection."""
    low, high = 0, len(table)
    while low < high:
        middle = (low + high) // 2
        if table[middle, 0] < head:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _repetition_limit(history: Int32Array, length: int, recent: int, table: Int32Array) -> int:
    """Count the tokens after the last breaker: no repetition can be longer."""
    for back in range(recent):
        head = history[length - 1 - back]
        longest = -1
        row = _first_row(table, head)
        while row < len(table) and table[row, 0] == head:
            size = table[row, 1]
            if longest < size <= back:
                same = 0
                while same < size and table[row, 2 + same] == history[length - back + same]:
                    same += 1
                if same == size:
                    longest = size
            row += 1
        if longest >= 0:
            return back - longest
    return recent


@kernel
def _breaks_alone(token: int, table: Int32Array) -> bool:
    """Return whether this token alone is a breaker: the first of its rows in the table says so."""
    row = _first_row(table, token)
    return bool(row < len(table) and table[row, 0] == token and table[row, 1] == 0)


@kernel
def _count_repetitions(
    history: Int32Array, length: int, recent: int, limit: int, least: int, workspace: Workspace
) -> None:
    """Set ``workspace.counts`` of each token to 1 + the longest repetition it would continue.

    For every distance back, count how many of the last tokens stand there too: the Z-algorithm
    (Gusfield 1997, section 1.4) over the reversed text, in O(recent). If the workspace is too
    small to remember these numbers, they are counted again each time, which is slower.
    """
    repeats, longest = workspace.repeats, workspace.counts
    remembers = len(repeats) >= recent
    left, right = 0, 0  # the match that reaches furthest back: distances left to right - 1
    for back in range(1, recent):
        same = 0
        if remembers and back < right:
            same = min(int(repeats[back - left]), right - back)
        if back + same >= right or not remembers:
            while (
                back + same < recent
                and history[length - 1 - same] == history[length - 1 - same - back]
            ):
                same += 1
        if remembers:
            repeats[back] = same
        if back + same > right:
            left, right = back, back + same
        same = min(same, limit)
        if same >= least:
            token = history[length - back]
            longest[token] = max(longest[token], same + 1)


@kernel
def apply_dry(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    arguments: FilterArguments,
    n_edited: int,
    workspace: Workspace,
) -> int:
    """Penalize each token that would continue a repetition; return the number of edits so far."""
    window, allowed = arguments.dry_window, arguments.dry_allowed_length
    if arguments.dry_multiplier == 0.0 or window == 0:
        return n_edited
    recent = length if window < 0 else min(length, window)
    if recent <= allowed:
        return n_edited
    limit = _repetition_limit(history, length, recent, arguments.dry_breakers)
    if limit < allowed:
        return n_edited
    _count_repetitions(history, length, recent, limit, allowed, workspace)
    base = float(np.float32(arguments.dry_base))
    most = int(_LOG_LARGEST / math.log(base)) if base > _LEAST_BASE else recent
    for back in range(1, recent):
        token = history[length - back]
        repetition = workspace.counts[token] - 1
        if repetition < 0:
            continue
        workspace.counts[token] = 0
        if not _breaks_alone(token, arguments.dry_breakers):
            penalty = arguments.dry_multiplier * base ** min(repetition - allowed, most)
            value = logits[token] - np.float32(penalty)
            n_edited = edit(logits, token, value, n_edited, workspace)
    return n_edited


# -- breakers -------------------------------------------------------------------------------


def breaker_table(
    breakers: Sequence[str],
    n_vocab: int,
    piece: Callable[[int], bytes],
    tokenize: Callable[[str], npt.ArrayLike],
) -> Int32Array:
    """List the sequences of tokens in which a breaker occurs.

    Args:
        breakers: strings that are not empty; only their first 40 bytes count.
        n_vocab: number of tokens.
        piece: returns the bytes of a token, also of a control token.
        tokenize: returns the tokens of a text, with nothing added before or after it.

    Returns:
        int32 (n, 2 + longest tail), sorted. A row is a sequence: its first token, the number of
        tokens after it, and those tokens.
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


def _overlaps(word: bytes, breaker: bytes) -> Iterator[int]:
    """Yield how much of the breaker the word has: all of it, or each beginning that ends it."""
    if breaker in word:
        yield len(breaker)
        return
    for size in range(1, min(len(word) + 1, len(breaker))):
        if word.endswith(breaker[:size]):
            yield size


def _tokens(data: bytes, tokenize: Callable[[str], npt.ArrayLike]) -> tuple[int, ...]:
    # A cut inside a character leaves invalid bytes: the tokenizer sees U+FFFD.
    tokens = np.asarray(tokenize(data.decode("utf-8", "replace")), np.int32)
    return tuple(tokens.tolist()[:_MOST_TOKENS])


_PRIME = np.uint64(0x100000001B3)
_BASIS = np.uint64(0xCBF29CE484222325)


# -- a grammar's bits ---------------------------------------------------------------------------


@kernel
def forbid(logits: Float32Array, bits: Int32Array) -> None:
    """Set the logits of tokens whose bit is 0 to -inf, in place.

    Args:
        logits: float32 (n, V).
        bits: int32 (n or more, V / 32 rounded up or more): token t is bit t % 32 of word t // 32.
    """
    size = logits.shape[1]
    for row in range(logits.shape[0]):
        for word in range((size + 31) // 32):
            allowed = bits[row, word]
            if allowed == -1:
                continue
            first = word * 32
            for bit in range(min(32, size - first)):
                if not (allowed >> bit) & 1:
                    logits[row, first + bit] = -np.inf


@kernel
def allowed_set(bits: Int32Array, most: int) -> tuple[int, int, int]:
    """Return what a small set of allowed tokens is, to be told from others.

    Args:
        bits: int32 words, as in `forbid`: one row.
        most: larger sets are of no interest.

    Returns:
        (count, key, first): how many tokens are allowed, 0 if none or over `most`; a hash
        of which (FNV-1a over the words that are not 0, and their places); the first of them.
    """
    count, first, key = 0, -1, _BASIS
    for place in range(len(bits)):
        word = np.uint64(np.uint32(bits[place]))
        if word == 0:
            continue
        key = ((key ^ word) * _PRIME ^ np.uint64(place)) * _PRIME
        for bit in range(32):
            if (word >> np.uint64(bit)) & np.uint64(1):
                count += 1
                if first < 0:
                    first = place * 32 + bit
        if count > most:
            return 0, 0, -1
    return count, np.int64(key), first
