"""The filters: a row of logits becomes p, in the order of llama.cpp's sampler chain.

Logit bias, penalties, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature,
softmax; with Mirostat only logit bias, temperature, truncation, softmax. Everything happens in
arrays that the caller owns; the row of logits is read in llama.cpp's own memory.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel
from edgespec.sampling.mirostat import truncated
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.penalties import apply_bias, apply_dry, apply_penalties
from edgespec.sampling.selection import (
    BROKEN,
    select_all,
    select_min_p,
    select_top_k,
    select_top_p,
    select_typical,
    sigma_floor,
)
from edgespec.sampling.softmax import argmax, softmax
from edgespec.sampling.temperature import (
    dynamic_temperature,
    inverse,
    most_likely,
    one_hot,
    scatter,
)
from edgespec.sampling.workspace import Workspace, make_workspace, undo
from edgespec.sampling.xtc import excludes_top, select_xtc

__all__ = ["Workspace", "argmax", "distribution", "filtered", "make_workspace"]


@kernel
def filtered(
    logits: Float32Array,
    arguments: FilterArguments,
    without_top: bool,
    p: Float32Array,
    workspace: Workspace,
) -> int:
    """Compute p where candidates are left out; return their number, as `distribution` does."""
    floor = sigma_floor(logits, arguments.top_n_sigma)
    # How many candidates llama.cpp would list here, those of probability 0 included.
    listed = len(logits)
    if 0 < arguments.top_k < listed:
        listed = arguments.top_k
        count = select_top_k(logits, floor, arguments.top_k, workspace)
    else:
        count = select_all(logits, floor, arguments, workspace)
    if count <= 0:
        return count
    if arguments.typical_p < 1.0:
        count = listed = select_typical(arguments.typical_p, count, workspace)
    dynamic = arguments.dynatemp_range > 0.0
    if arguments.temperature <= 0.0 and not dynamic and not without_top:
        return most_likely(count, p, workspace)
    if arguments.top_p < 1.0:
        count = listed = select_top_p(arguments.top_p, count, workspace)
    if arguments.min_p > 0.0:
        count = listed = select_min_p(arguments.min_p, count, workspace)
    if without_top:
        before = count
        count = select_xtc(arguments.xtc_threshold, count, workspace)
        listed -= before - count
    temperature = arguments.temperature
    if dynamic:
        temperature = dynamic_temperature(count, listed, arguments, workspace)
    if temperature <= 0.0:
        return most_likely(count, p, workspace)
    return scatter(count, temperature, p, workspace)


@kernel
def _unfiltered(
    logits: Float32Array, temperature: float, p: Float32Array, workspace: Workspace
) -> int:
    """Choose greedily, or take the softmax of the whole row: nothing has to be selected."""
    best = argmax(logits)
    if best < 0:
        return BROKEN
    if logits[best] == -np.inf:
        return 0
    if temperature <= 0.0:
        return one_hot(best, p, workspace)
    softmax(logits, len(logits), logits[best], inverse(temperature), p)
    for token in range(len(logits)):
        workspace.tokens[token] = token
    return len(logits)


@kernel
def _keeps_all(arguments: FilterArguments, without_top: bool, n_vocab: int) -> bool:
    """Return whether no filter can change the result; at temperature 0 few can."""
    if arguments.typical_p < 1.0 or without_top or arguments.dynatemp_range > 0.0:
        return False
    return arguments.temperature <= 0.0 or (
        (arguments.top_k <= 0 or arguments.top_k >= n_vocab)
        and arguments.top_p >= 1.0
        and arguments.min_p <= 0.0
        and arguments.top_n_sigma <= 0.0
    )


@kernel
def distribution(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    arguments: FilterArguments,
    p: Float32Array,
    workspace: Workspace,
    seed: int = 0,
    position: int = 0,
    mu: float = math.inf,
) -> int:
    """Compute p at the prefix ``history[:length]``: the filtered softmax of target or draft.

    Args:
        logits: float32 (n_vocab,), a view into llama.cpp's memory. Bias and penalties change a
            few entries, which are restored before returning.
        history: int32, the tokens so far, including the proposals of the current block.
        length: how many entries of `history` are the prefix.
        arguments: `FilterArguments`.
        p: float32 (n_vocab,), overwritten with the distribution; zero outside the candidates.
        workspace: `Workspace`; its `tokens` lists the candidates afterwards, in no order.
        seed, position: decide which coin XTC tosses; unused without XTC.
        mu: how many bits of surprise Mirostat allows; unused without Mirostat.

    Returns:
        The number of candidates, the tokens that may have p > 0; 0 if there is nothing to choose
        from (all logits are -inf); -1 if a logit is NaN or +inf.
    """
    n_edited = apply_bias(logits, arguments, workspace)
    n_edited = apply_penalties(logits, history, length, arguments, n_edited, workspace)
    n_edited = apply_dry(logits, history, length, arguments, n_edited, workspace)
    without_top = excludes_top(arguments, seed, position)
    if arguments.mirostat != 0:
        count = truncated(logits, arguments.temperature, mu, p, workspace)
    elif _keeps_all(arguments, without_top, len(logits)):
        count = _unfiltered(logits, arguments.temperature, p, workspace)
    else:
        count = filtered(logits, arguments, without_top, p, workspace)
    undo(logits, n_edited, workspace)
    return count
