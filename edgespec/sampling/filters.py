"""The filters: a row of logits becomes p, in the order of llama.cpp's sampler chain.

Logit bias, penalties, top-k, typical-p, top-p, min-p, temperature, softmax. Everything happens
in arrays that the caller owns; the row of logits is read where llama.cpp left it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from edgespec.sampling.heap import collect, heapify, keep_largest, pop
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import FilterArguments, Float32Array, Int32Array
from edgespec.sampling.softmax import argmax, softmax

__all__ = ["Workspace", "argmax", "distribution", "make_workspace"]

_BROKEN = -1
_LEAST = np.float32(np.finfo(np.float32).min)
_ONE = np.float32(1.0)


class Workspace(NamedTuple):
    """Scratch arrays of one thread, n_vocab entries each (edited and saved: twice that)."""

    keys: Float32Array
    tokens: Int32Array
    order: Float32Array
    logit_of: Float32Array
    counts: Int32Array
    edited: Int32Array
    saved: Float32Array


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
def _edit(
    logits: Float32Array, token: int, value: float, n_edited: int, workspace: Workspace
) -> int:
    workspace.edited[n_edited] = token
    workspace.saved[n_edited] = logits[token]
    logits[token] = value
    return n_edited + 1


@kernel
def _apply_bias(logits: Float32Array, arguments: FilterArguments, workspace: Workspace) -> int:
    n_edited = 0
    for i in range(len(arguments.bias_tokens)):
        token = arguments.bias_tokens[i]
        value = logits[token] + arguments.bias_values[i]
        n_edited = _edit(logits, token, value, n_edited, workspace)
    return n_edited


@kernel
def _apply_penalties(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    arguments: FilterArguments,
    n_edited: int,
    workspace: Workspace,
) -> int:
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
def _undo(logits: Float32Array, n_edited: int, workspace: Workspace) -> None:
    for i in range(n_edited - 1, -1, -1):
        logits[workspace.edited[i]] = workspace.saved[i]


@kernel
def _min_p_floor(largest: np.float32, min_p: float) -> np.float32:
    """The logit that min-p asks for; -inf when it is off."""
    floor: np.float32 = largest + np.float32(math.log(min_p) if min_p > 0.0 else -math.inf)
    return floor


@kernel
def _select_all(logits: Float32Array, arguments: FilterArguments, workspace: Workspace) -> int:
    """Candidates without top-k: their number; keys and tokens hold them. Or `_BROKEN`."""
    best = argmax(logits)
    if best < 0:
        return _BROKEN
    floor = _LEAST
    if arguments.typical_p >= 1.0 and arguments.top_p >= 1.0:
        # Min-p comes first, then, and what it removes need not be written down.
        floor = max(floor, _min_p_floor(logits[best], arguments.min_p))
    return collect(logits, floor, workspace.keys, workspace.tokens)


@kernel
def _select_top_k(logits: Float32Array, top_k: int, workspace: Workspace) -> int:
    """Candidates after top-k: their number; keys and tokens hold them. Or `_BROKEN`."""
    keys, tokens = workspace.keys, workspace.tokens
    if not keep_largest(logits, top_k, keys, tokens):
        return _BROKEN
    count = 0
    for i in range(top_k):
        if keys[i] == np.inf:
            return _BROKEN
        if keys[i] > -np.inf:
            keys[count], tokens[count] = keys[i], tokens[i]
            count += 1
    return count


@kernel
def _surprisal(logit: np.float32, largest: np.float32, log_total: float) -> float:
    """-log of a probability; log_total is that of the sum of exp(logit - largest)."""
    # In float64: the difference of two float32 logits can be too large for one.
    return log_total - (float(logit) - float(largest))


@kernel
def _select_typical(typical_p: float, count: int, workspace: Workspace) -> int:
    """Locally typical sampling (Meister et al. 2022, eq. 8): smallest set by |surprisal - H|."""
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
        entropy += order[i] * _surprisal(keys[i], largest, log_total)
    for i in range(count):
        logit_of[tokens[i]] = keys[i]
        # The heap pops the largest first, so the distance goes in negated.
        order[i] = -abs(_surprisal(keys[i], largest, log_total) - entropy)
    heapify(order, tokens, count)
    size, mass = count, 0.0
    while size > 0 and mass <= typical_p:
        pop(order, tokens, size)
        size -= 1
        mass += math.exp(-_surprisal(logit_of[tokens[size]], largest, log_total))
    for i in range(count - size):
        tokens[i] = tokens[size + i]
        keys[i] = logit_of[tokens[i]]
    return count - size


@kernel
def _select_top_p(top_p: float, count: int, workspace: Workspace) -> int:
    """Nucleus sampling (Holtzman et al. 2020): the fewest most likely tokens with mass top_p."""
    keys, tokens, order = workspace.keys, workspace.tokens, workspace.order
    largest = keys[argmax(keys[:count])]
    log_total = math.log(softmax(keys, count, largest, _ONE, order))
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
        mass += math.exp(-_surprisal(keys[size], largest, log_total))
        if mass >= top_p:
            break
    for i in range(likely - size):
        keys[i], tokens[i] = keys[size + i], tokens[size + i]
    return likely - size


@kernel
def _select_min_p(min_p: float, count: int, workspace: Workspace) -> int:
    """Keep tokens whose probability is at least min_p times the largest (Nguyen et al. 2024)."""
    keys, tokens = workspace.keys, workspace.tokens
    floor = _min_p_floor(keys[argmax(keys[:count])], min_p)
    kept = 0
    for i in range(count):
        if keys[i] >= floor:
            keys[kept], tokens[kept] = keys[i], tokens[i]
            kept += 1
    return kept


@kernel
def _one_hot(token: int, p: Float32Array, workspace: Workspace) -> int:
    p[:] = 0
    p[token] = 1
    workspace.tokens[0] = token
    return 1


@kernel
def _most_likely(count: int, p: Float32Array, workspace: Workspace) -> int:
    best = 0
    for i in range(1, count):
        if workspace.keys[i] > workspace.keys[best] or (
            workspace.keys[i] == workspace.keys[best]
            and workspace.tokens[i] < workspace.tokens[best]
        ):
            best = i
    return _one_hot(workspace.tokens[best], p, workspace)


@kernel
def _inverse(temperature: float) -> np.float32:
    """1 / temperature, kept finite and above zero in float32."""
    inverse: np.float32 = np.float32(min(max(1.0 / temperature, 1e-37), 1e37))
    return inverse


@kernel
def _scatter(count: int, temperature: float, p: Float32Array, workspace: Workspace) -> int:
    """Softmax of the candidates at this temperature into the dense row p."""
    keys, tokens, order = workspace.keys, workspace.tokens, workspace.order
    softmax(keys, count, keys[argmax(keys[:count])], _inverse(temperature), order)
    p[:] = 0
    for i in range(count):
        p[tokens[i]] = order[i]
    return count


@kernel
def _filtered(
    logits: Float32Array, arguments: FilterArguments, p: Float32Array, workspace: Workspace
) -> int:
    if 0 < arguments.top_k < len(logits):
        count = _select_top_k(logits, arguments.top_k, workspace)
    else:
        count = _select_all(logits, arguments, workspace)
    if count <= 0:
        return count
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
def _unfiltered(
    logits: Float32Array, temperature: float, p: Float32Array, workspace: Workspace
) -> int:
    """Greedy choice or softmax of the whole row: nothing has to be selected."""
    best = argmax(logits)
    if best < 0:
        return _BROKEN
    if logits[best] == -np.inf:
        return 0
    if temperature <= 0.0:
        return _one_hot(best, p, workspace)
    softmax(logits, len(logits), logits[best], _inverse(temperature), p)
    for token in range(len(logits)):
        workspace.tokens[token] = token
    return len(logits)


@kernel
def _keeps_all(arguments: FilterArguments, n_vocab: int) -> bool:
    """Whether no filter can change the result; at temperature 0 only typical-p can."""
    if arguments.typical_p < 1.0:
        return False
    return arguments.temperature <= 0.0 or (
        (arguments.top_k <= 0 or arguments.top_k >= n_vocab)
        and arguments.top_p >= 1.0
        and arguments.min_p <= 0.0
    )


@kernel
def distribution(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    arguments: FilterArguments,
    p: Float32Array,
    workspace: Workspace,
) -> int:
    """p at the prefix ``history[:length]``: the target's (or the draft's) filtered softmax.

    Args:
        logits: float32 (n_vocab,), a view into llama.cpp's memory. A few entries are edited for
            bias and penalties, and put back before returning.
        history: int32, the tokens so far, proposals of the running block included.
        length: how many entries of `history` are the prefix.
        arguments: `FilterArguments`.
        p: float32 (n_vocab,), overwritten with the distribution; zero outside the candidates.
        workspace: `Workspace`; its `tokens` lists the candidates afterwards, in no order.

    Returns:
        The number of candidates, the tokens that may have p > 0; 0 when there is nothing to
        choose from (all logits -inf); -1 when a logit is NaN or +inf.
    """
    n_edited = _apply_bias(logits, arguments, workspace)
    n_edited = _apply_penalties(logits, history, length, arguments, n_edited, workspace)
    if _keeps_all(arguments, len(logits)):
        count = _unfiltered(logits, arguments.temperature, p, workspace)
    else:
        count = _filtered(logits, arguments, p, workspace)
    _undo(logits, n_edited, workspace)
    return count
