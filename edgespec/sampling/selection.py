"""Seeded draws, and filters that keep a part: top-n-sigma, top-k, typical-p, top-p, min-p.

Candidates are the first `count` entries of the workspace's keys and tokens. Each filter moves
those it keeps to the front and returns their number.

The largest few of many values are selected without sorting them all: by a binary max-heap over
parallel arrays (keys, tokens), built in O(n), popped in O(log n). Among equal keys the smaller
token id comes first, so a selection never depends on the order of its input.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import Workspace, kernel
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.softmax import argmax, softmax

__all__ = [
    "BROKEN",
    "LEAST_LOGIT",
    "PURPOSE_ACCEPT",
    "PURPOSE_DRAFT",
    "PURPOSE_NOISE",
    "PURPOSE_TARGET",
    "PURPOSE_XTC",
    "collect",
    "heapify",
    "keep_largest",
    "noise_uniform",
    "pop",
    "race",
    "select_all",
    "select_min_p",
    "select_top_k",
    "select_top_p",
    "select_typical",
    "sigma_floor",
    "stream",
    "surprisal",
    "uniform",
]

PURPOSE_TARGET = 1  # draws from p or from the residual
PURPOSE_DRAFT = 2  # draws from q
PURPOSE_ACCEPT = 3  # the acceptance test
PURPOSE_NOISE = 4  # Gumbel noise shared by draft and target
PURPOSE_XTC = 5  # whether the most likely tokens are excluded

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


@kernel
def _mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    mixed: np.uint64 = x ^ (x >> np.uint64(31))
    return mixed


@kernel
def _unit(x: np.uint64) -> float:
    # The half step keeps 0 and 1 out, so that log(u) is always finite.
    return (float(x >> np.uint64(11)) + 0.5) * _TO_UNIT


@kernel
def stream(seed: int, position: int, purpose: int) -> np.uint64:
    """Return the 64-bit key of one draw: uint64 from (seed, position, purpose).

    The seed is an int64 with the bits of the user's unsigned number, so that all calls have the
    same signature.
    """
    key = _mix(np.uint64(seed) + _WEYL)
    key = _mix(key + (np.uint64(position) + np.uint64(1)) * _WEYL)
    return _mix(key + (np.uint64(purpose) + np.uint64(1)) * _WEYL)


@kernel
def uniform(seed: int, position: int, purpose: int) -> float:
    """Return one float64 in the open interval (0, 1)."""
    return _unit(stream(seed, position, purpose))


@kernel
def noise_uniform(key: np.uint64, token: int) -> float:
    """Return the uniform number behind a token's noise under a `stream` key: float64 in (0, 1)."""
    return _unit(_mix(key + (np.uint64(token) + np.uint64(1)) * _WEYL))


@kernel
def race(weights: Float32Array, tokens: Int32Array, count: int, key: np.uint64) -> int:
    """Return the winner of an exponential race: argmax of log w(v) + Gumbel(key, v).

    Gumbel-max (Gumbel 1954) in its exponential form: E(v) = -log u(v) is exponential, and
    argmin E(v) / w(v) is distributed as w normalized. Two distributions raced under one key
    agree with probability at least (1 - TV) / (1 + TV) (Daliri et al. 2024).

    Args:
        weights: float32 (n_vocab,), non-negative, normalized or not.
        tokens: int32, the tokens that may have weight, in its first `count` entries.
        count: how many tokens to look at.
        key: from `stream`.
    """
    best, winner = math.inf, -1
    for i in range(count):
        token = tokens[i]
        weight = weights[token]
        if weight <= 0.0:
            continue
        u = noise_uniform(key, token)
        # -log(u) >= 1 - u: most tokens lose on this bound and need no logarithm.
        if (1.0 - u) >= best * weight:
            continue
        arrival = -math.log(u) / weight
        if arrival < best:
            best, winner = arrival, token
    return winner


_BLOCK = 64  # values compared together, with vector instructions, before any is looked at alone


@kernel
def _before(key_a: float, token_a: int, key_b: float, token_b: int) -> bool:
    return key_a > key_b or (key_a == key_b and token_a < token_b)


@kernel
def _sift_down(keys: Float32Array, tokens: Int32Array, start: int, size: int) -> None:
    key, token = keys[start], tokens[start]
    hole = start
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and _before(
            keys[child + 1], tokens[child + 1], keys[child], tokens[child]
        ):
            child += 1
        if not _before(keys[child], tokens[child], key, token):
            break
        keys[hole], tokens[hole] = keys[child], tokens[child]
        hole = child
    keys[hole], tokens[hole] = key, token


@kernel
def heapify(keys: Float32Array, tokens: Int32Array, size: int) -> None:
    """Make the first `size` entries a max-heap: O(size)."""
    for start in range(size // 2 - 1, -1, -1):
        _sift_down(keys, tokens, start, size)


@kernel
def pop(keys: Float32Array, tokens: Int32Array, size: int) -> None:
    """Move the largest of the first `size` entries to index ``size - 1``: O(log size)."""
    last = size - 1
    keys[0], keys[last] = keys[last], keys[0]
    tokens[0], tokens[last] = tokens[last], tokens[0]
    _sift_down(keys, tokens, 0, last)


@kernel
def _count_not_below(values: Float32Array, start: int, stop: int, floor: np.float32) -> int:
    """Count the entries of ``values[start:stop]`` that are `floor` or more, or NaN."""
    hits = np.int32(0)
    for i in range(start, stop):
        hits = np.int32(hits + np.int32(not (values[i] < floor)))
    return int(hits)


@kernel
def keep_largest(values: Float32Array, limit: int, keys: Float32Array, tokens: Int32Array) -> bool:
    """Put the `limit` largest entries of `values` into keys and tokens, in no order.

    One pass with a min-heap of `limit` entries: nearly every block of values lies below the
    heap's top as a whole and is skipped.

    Args:
        values: float32 (n,).
        limit: 1 <= limit <= n.
        keys, tokens: float32 and int32, at least `limit` long; overwritten.

    Returns:
        False if one of the values is NaN; keys and tokens are then undefined.
    """
    # Negated on the way in, so that the top of the max-heap is the entry to drop next: the
    # smallest value and, among equal values, the largest token id.
    for token in range(limit):
        if np.isnan(values[token]):
            return False
        keys[token], tokens[token] = -values[token], -token
    heapify(keys, tokens, limit)
    for start in range(limit, len(values), _BLOCK):
        stop = min(start + _BLOCK, len(values))
        if _count_not_below(values, start, stop, -keys[0]) == 0:
            continue
        for token in range(start, stop):
            if values[token] > -keys[0]:
                keys[0], tokens[0] = -values[token], -token
                _sift_down(keys, tokens, 0, limit)
            elif np.isnan(values[token]):
                return False
    for i in range(limit):
        keys[i], tokens[i] = -keys[i], -tokens[i]
    return True


@kernel
def collect(values: Float32Array, floor: np.float32, keys: Float32Array, tokens: Int32Array) -> int:
    """Put the entries of `values` that are `floor` or more into keys and tokens; count them.

    A block of which all or no entries are wanted, the usual case, is handled as a whole. No value
    may be NaN.
    """
    count = 0
    for start in range(0, len(values), _BLOCK):
        stop = min(start + _BLOCK, len(values))
        hits = _count_not_below(values, start, stop, floor)
        if hits == stop - start:
            for i in range(hits):
                keys[count + i] = values[start + i]
                tokens[count + i] = start + i
            count += hits
        elif hits > 0:
            for token in range(start, stop):
                if values[token] >= floor:
                    keys[count], tokens[count] = values[token], token
                    count += 1
    return count


BROKEN = -1  # a logit is NaN or +inf

LEAST_LOGIT: np.float32 = np.float32(np.finfo(np.float32).min)
"""The smallest finite logit."""

_ONE = np.float32(1.0)


@kernel
def _below(logit: np.float32, largest: np.float32) -> float:
    """Return how far a logit is below the largest, in float64; 0 for -inf, which is not counted."""
    # In Numba's kernels float() of a float32 stays one.
    below: float = np.float64(logit) - np.float64(largest) if logit > -np.inf else 0.0
    return below


@kernel
def sigma_floor(logits: Float32Array, n_sigma: float) -> np.float32:
    """Return the smallest logit that top-n-sigma keeps: the largest less n_sigma deviations.

    Tang et al. (2024), "Top-nσ: Not All Logits Are You Need". Mean and standard deviation are
    those of all logits but -inf, so that the threshold does not move with the temperature.

    Returns:
        A finite logit; `LEAST_LOGIT` if n_sigma is 0 or less, or if a logit is NaN or +inf, which
        is for others to report.
    """
    best = argmax(logits) if n_sigma > 0.0 else -1
    if best < 0 or logits[best] == -np.inf:
        return LEAST_LOGIT
    largest = logits[best]
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = len(logits) - len(logits) % 2
    number = 0
    for i in range(0, whole, 2):
        x, y = _below(logits[i], largest), _below(logits[i + 1], largest)
        number += int(logits[i] > -np.inf) + int(logits[i + 1] > -np.inf)
        a += x
        b += y
        c += x * x
        d += y * y
    for i in range(whole, len(logits)):
        x = _below(logits[i], largest)
        number += int(logits[i] > -np.inf)
        a += x
        c += x * x
    mean = (a + b) / number
    deviation = math.sqrt(max((c + d) / number - mean * mean, 0.0))
    floor: np.float32 = np.float32(max(float(largest) - n_sigma * deviation, float(LEAST_LOGIT)))
    return floor


@kernel
def _min_p_floor(largest: np.float32, min_p: float) -> np.float32:
    """Return the smallest logit that min-p keeps; -inf if it is off."""
    floor: np.float32 = largest + np.float32(math.log(min_p) if min_p > 0.0 else -math.inf)
    return floor


@kernel
def select_all(
    logits: Float32Array, floor: np.float32, arguments: FilterArguments, workspace: Workspace
) -> int:
    """List the candidates without top-k: those not below a finite floor. Or return `BROKEN`."""
    best = argmax(logits)
    if best < 0:
        return BROKEN
    if arguments.typical_p >= 1.0 and arguments.top_p >= 1.0:
        # Min-p is then the first filter, and what it removes need not be listed.
        floor = max(floor, _min_p_floor(logits[best], arguments.min_p))
    return collect(logits, floor, workspace.keys, workspace.tokens)


@kernel
def select_top_k(logits: Float32Array, floor: np.float32, top_k: int, workspace: Workspace) -> int:
    """List the k largest logits that are not below a finite floor. Or return `BROKEN`."""
    keys, tokens = workspace.keys, workspace.tokens
    if not keep_largest(logits, top_k, keys, tokens):
        return BROKEN
    count = 0
    for i in range(top_k):
        if keys[i] == np.inf:
            return BROKEN
        if keys[i] >= floor:
            keys[count], tokens[count] = keys[i], tokens[i]
            count += 1
    return count


@kernel
def surprisal(logit: np.float32, largest: np.float32, log_total: float) -> float:
    """Return -log of a probability; log_total is the log of the sum of exp(logit - largest)."""
    # In float64: the difference of two float32 logits can exceed float32.
    return float(log_total - (np.float64(logit) - np.float64(largest)))


@kernel
def select_typical(typical_p: float, count: int, workspace: Workspace) -> int:
    """Keep the smallest set by |surprisal - H|: typical sampling (Meister et al. 2022, eq. 8)."""
    keys, tokens, order, logit_of = (
        workspace.keys,
        workspace.tokens,
        workspace.order,
        workspace.logit_of,
    )
    largest = keys[argmax(keys[:count])]
    log_total = math.log(softmax(keys, count, largest, _ONE, order))
    entropy = 0.0
    for i in range(count):
        entropy += order[i] * surprisal(keys[i], largest, log_total)
    for i in range(count):
        logit_of[tokens[i]] = keys[i]
        # The heap pops the largest first, so the distance goes in negated.
        order[i] = -abs(surprisal(keys[i], largest, log_total) - entropy)
    heapify(order, tokens, count)
    size, mass = count, 0.0
    while size > 0 and mass <= typical_p:
        pop(order, tokens, size)
        size -= 1
        mass += math.exp(-surprisal(logit_of[tokens[size]], largest, log_total))
    for i in range(count - size):
        tokens[i] = tokens[size + i]
        keys[i] = logit_of[tokens[i]]
    return count - size


@kernel
def select_top_p(top_p: float, count: int, workspace: Workspace) -> int:
    """Keep the smallest nucleus with mass top_p: nucleus sampling (Holtzman et al. 2020)."""
    keys, tokens, order = workspace.keys, workspace.tokens, workspace.order
    largest = keys[argmax(keys[:count])]
    log_total = math.log(softmax(keys, count, largest, _ONE, order))
    # All tokens below (1 - top_p) / count together weigh less than 1 - top_p, so none of them is
    # in the nucleus; without them the heap is small. Half of that bound allows for rounding.
    floor = np.float32(0.5 * (1.0 - top_p) / count)
    likely = 0
    for i in range(count):
        if order[i] >= floor:
            keys[likely], tokens[likely] = keys[i], tokens[i]
            likely += 1
    heapify(keys, tokens, likely)
    size, mass = likely, 0.0
    while size > 0:
        pop(keys, tokens, size)
        size -= 1
        mass += math.exp(-surprisal(keys[size], largest, log_total))
        if mass >= top_p:
            break
    for i in range(likely - size):
        keys[i], tokens[i] = keys[size + i], tokens[size + i]
    return likely - size


@kernel
def select_min_p(min_p: float, count: int, workspace: Workspace) -> int:
    """Keep tokens whose probability is at least min_p times the largest (Nguyen et al. 2024)."""
    keys, tokens = workspace.keys, workspace.tokens
    floor = _min_p_floor(keys[argmax(keys[:count])], min_p)
    kept = 0
    for i in range(count):
        if keys[i] >= floor:
            keys[kept], tokens[kept] = keys[i], tokens[i]
            kept += 1
    return kept
