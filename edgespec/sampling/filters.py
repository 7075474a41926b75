"""The filters: a row of logits becomes p, in the order of llama.cpp's sampler chain.

Logit bias, penalties, top-k, typical-p, top-p, min-p, temperature, softmax. Everything happens
in arrays that the caller owns; the row of logits is read where llama.cpp left it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from edgespec.sampling.kernel import kernel

from edgespec.sampling.heap import heapify, keep_largest, pop

__all__ = ["Workspace", "argmax", "distribution", "make_workspace"]

_POSITIVE_INFINITY = np.int32(0x7F800000)  # as `_ordered` gives it
_NEGATIVE_INFINITY = np.int32(-0x7F800001)


class Workspace(NamedTuple):
    """Scratch arrays of one thread, n_vocab entries each (edited and saved: twice that)."""

    keys: npt.NDArray[np.float32]
    tokens: npt.NDArray[np.int32]
    order: npt.NDArray[np.float32]
    logit_of: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]
    edited: npt.NDArray[np.int32]
    saved: npt.NDArray[np.float32]


def make_workspace(n_vocab: int) -> Workspace:
    """Allocate the arrays that `distribution` needs for a vocabulary of n_vocab tokens."""
    return Workspace(
        keys=np.empty(n_vocab, np.float32),
        tokens=np.empty(n_vocab, np.int32),
        order=np.empty(n_vocab, np.float32),
        logit_of=np.empty(n_vocab, np.float32),
        counts=np.zeros(n_vocab, np.int32),
        edited=np.empty(2 * n_vocab, np.int32),
        saved=np.empty(2 * n_vocab, np.float32),
    )


@kernel
def _edit(logits, token, value, n_edited, workspace):
    workspace.edited[n_edited] = token
    workspace.saved[n_edited] = logits[token]
    logits[token] = value
    return n_edited + 1


@kernel
def _apply_bias(logits, arguments, workspace):
    n_edited = 0
    for i in range(len(arguments.bias_tokens)):
        token = arguments.bias_tokens[i]
        value = logits[token] + arguments.bias_values[i]
        n_edited = _edit(logits, token, value, n_edited, workspace)
    return n_edited


@kernel
def _apply_penalties(logits, history, length, arguments, n_edited, workspace):
    """Penalties of Keskar et al. (2019) and of OpenAI's API, as llama.cpp combines them."""
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
        n_edited = _edit(logits, token, value, n_edited, workspace)
    return n_edited


@kernel
def _undo(logits, n_edited, workspace):
    for i in range(n_edited - 1, -1, -1):
        logits[workspace.edited[i]] = workspace.saved[i]


@kernel
def _ordered(bits):
    """IEEE-754 bits as an integer with the order of the floats: NaNs lie outside [-inf, +inf]."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@kernel
def argmax(logits):
    """Index of the largest value of a float32 row, the first of equals.

    -1 if any value is NaN or +inf. Compared as integers, which vectorizes and needs no second
    pass to find a NaN.
    """
    bits = logits.view(np.int32)
    largest, smallest = _ordered(bits[0]), _ordered(bits[0])
    for i in range(len(bits)):
        value = _ordered(bits[i])
        largest = max(largest, value)
        smallest = min(smallest, value)
    if largest >= _POSITIVE_INFINITY or smallest < _NEGATIVE_INFINITY:
        return -1
    for i in range(len(bits)):
        if _ordered(bits[i]) == largest:
            return i
    return -1


@kernel
def _softmax_over(keys, count, out):
    """exp(key - max) / sum over the first `count` keys, float32 into out; log of the sum."""
    largest = keys[0]
    for i in range(1, count):
        largest = max(largest, keys[i])
    total = 0.0
    for i in range(count):
        weight = np.float32(math.exp(keys[i] - largest))
        out[i] = weight
        total += weight
    scale = np.float32(1.0 / total)
    for i in range(count):
        out[i] *= scale
    return largest + math.log(total)


@kernel
def _select_top_k(logits, top_k, workspace):
    """Candidates after top-k: their number; keys and tokens hold them."""
    n_vocab = len(logits)
    if 0 < top_k < n_vocab:
        keep_largest(logits, top_k, workspace.keys, workspace.tokens)
        if min(workspace.keys[:top_k]) > -np.inf:
            return top_k
    count = 0
    for token in range(n_vocab):
        if logits[token] > -np.inf:
            workspace.keys[count], workspace.tokens[count] = logits[token], token
            count += 1
    return count


@kernel
def _select_typical(typical_p, count, workspace):
    """Locally typical sampling (Meister et al. 2022, eq. 8): smallest set by |surprisal - H|."""
    keys, tokens, order, logit_of = (
        workspace.keys,
        workspace.tokens,
        workspace.order,
        workspace.logit_of,
    )
    log_total = _softmax_over(keys, count, order)
    entropy = 0.0
    for i in range(count):
        entropy += order[i] * (log_total - keys[i])
    for i in range(count):
        logit_of[tokens[i]] = keys[i]
        # The heap pops the largest first, so the distance goes in negated.
        order[i] = -abs(log_total - keys[i] - entropy)
    heapify(order, tokens, count)
    size, mass = count, 0.0
    while size > 0 and mass <= typical_p:
        pop(order, tokens, size)
        size -= 1
        mass += math.exp(logit_of[tokens[size]] - log_total)
    for i in range(count - size):
        tokens[i] = tokens[size + i]
        keys[i] = logit_of[tokens[i]]
    return count - size


@kernel
def _select_top_p(top_p, count, workspace):
    """Nucleus sampling (Holtzman et al. 2020): the fewest most likely tokens with mass top_p."""
    keys, tokens, order = workspace.keys, workspace.tokens, workspace.order
    log_total = _softmax_over(keys, count, order)
    # Tokens below (1 - top_p) / count weigh less than 1 - top_p together: the nucleus is never
    # among them, and leaving them out keeps the heap small. Half of it allows for rounding.
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
        mass += math.exp(keys[size] - log_total)
        if mass >= top_p:
            break
    for i in range(likely - size):
        keys[i], tokens[i] = keys[size + i], tokens[size + i]
    return likely - size


@kernel
def _select_min_p(min_p, count, workspace):
    """Keep tokens whose probability is at least min_p times the largest (Nguyen et al. 2024)."""
    keys, tokens = workspace.keys, workspace.tokens
    largest = keys[0]
    for i in range(1, count):
        largest = max(largest, keys[i])
    floor = largest + np.float32(math.log(min_p))
    kept = 0
    for i in range(count):
        if keys[i] >= floor:
            keys[kept], tokens[kept] = keys[i], tokens[i]
            kept += 1
    return kept


@kernel
def _one_hot(token, p, workspace):
    p[:] = 0
    p[token] = 1
    workspace.tokens[0] = token
    return 1


@kernel
def _most_likely(count, p, workspace):
    best = 0
    for i in range(1, count):
        if workspace.keys[i] > workspace.keys[best] or (
            workspace.keys[i] == workspace.keys[best]
            and workspace.tokens[i] < workspace.tokens[best]
        ):
            best = i
    return _one_hot(workspace.tokens[best], p, workspace)


@kernel
def _scatter(count, temperature, p, workspace):
    """Softmax of the candidates at this temperature into the dense row p."""
    keys, tokens, order = workspace.keys, workspace.tokens, workspace.order
    inverse = np.float32(1.0 / temperature)
    for i in range(count):
        keys[i] *= inverse
    _softmax_over(keys, count, order)
    p[:] = 0
    for i in range(count):
        p[tokens[i]] = order[i]
    return count


@kernel
def _filtered(logits, arguments, p, workspace):
    count = _select_top_k(logits, arguments.top_k, workspace)
    if arguments.typical_p < 1.0:
        count = _select_typical(arguments.typical_p, count, workspace)
    if arguments.temperature <= 0.0:
        return _most_likely(count, p, workspace)
    if arguments.top_p < 1.0:
        count = _select_top_p(arguments.top_p, count, workspace)
    if arguments.min_p > 0.0:
        count = _select_min_p(arguments.min_p, count, workspace)
    return _scatter(count, arguments.temperature, p, workspace)


@kernel
def distribution(logits, history, length, arguments, p, workspace):
    """p at the prefix ``history[:length]``: the target's (or the draft's) filtered softmax.

    Args:
        logits: float32 (n_vocab,), a view into llama.cpp's memory. A few entries are edited for
            bias and penalties, and put back before returning.
        history: int32, the tokens so far, proposals of the running block included.
        length: how many entries of `history` are the prefix.
        arguments: `FilterArguments`.
        p: float32 (n_vocab,), overwritten with the distribution; zero outside the support.
        workspace: `Workspace`; its `tokens` lists the support afterwards, in no order.

    Returns:
        The size of the support; 0 when there is nothing to choose from (all logits -inf); -1 when
        a logit is NaN or +inf.
    """
    n_edited = _apply_bias(logits, arguments, workspace)
    n_edited = _apply_penalties(logits, history, length, arguments, n_edited, workspace)
    token = argmax(logits)
    if token < 0:
        count = -1
    elif logits[token] == -np.inf:
        count = 0
    elif arguments.temperature <= 0.0 and arguments.typical_p >= 1.0:
        # No other filter can remove the most likely token.
        count = _one_hot(token, p, workspace)
    else:
        count = _filtered(logits, arguments, p, workspace)
    _undo(logits, n_edited, workspace)
    return count
