"""The filters: a row of logits becomes p, in the order of llama.cpp's sampler chain.

Logit bias, penalties, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature,
softmax; with Mirostat only logit bias, temperature, truncation, softmax. Everything happens in
arrays that the caller owns; the row of logits is read in llama.cpp's own memory.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import Workspace, kernel, make_workspace, undo
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.penalties import apply_bias, apply_dry, apply_penalties
from edgespec.sampling.selection import (
    BROKEN,
    LEAST_LOGIT,
    PURPOSE_XTC,
    collect,
    select_all,
    select_min_p,
    select_top_k,
    select_top_p,
    select_typical,
    sigma_floor,
    surprisal,
    uniform,
)
from edgespec.sampling.softmax import argmax, softmax

__all__ = [
    "Workspace",
    "advance_mu",
    "argmax",
    "distribution",
    "dynamic_temperature",
    "excludes_top",
    "filtered",
    "inverse",
    "make_workspace",
    "most_likely",
    "one_hot",
    "scatter",
    "select_xtc",
    "truncated",
]

_ONE = np.float32(1.0)

# -- temperature --------------------------------------------------------------------------------


@kernel
def inverse(temperature: float) -> np.float32:
    """Return 1 / temperature, kept finite and above zero in float32."""
    result: np.float32 = np.float32(min(max(1.0 / temperature, 1e-37), 1e37))
    return result


@kernel
def dynamic_temperature(
    count: int, listed: int, arguments: FilterArguments, workspace: Workspace
) -> float:
    """Return a temperature that depends on the model's uncertainty: "dynamic temperature".

    low + (high - low) * (H / log(listed)) ** exponent, where low and high are temperature minus
    and plus the range, and H is the entropy of the candidates at temperature 1: kalomaze (2023),
    as llama.cpp has it.

    Args:
        count: number of candidates.
        listed: at least `count`; its logarithm is the largest possible entropy.
        arguments: the range is above 0.
        workspace: holds the candidates.
    """
    low = max(0.0, arguments.temperature - arguments.dynatemp_range)
    high = arguments.temperature + arguments.dynatemp_range
    if listed <= 1:
        return low  # the only candidate has p = 1 at any temperature
    keys, order = workspace.keys, workspace.order
    largest = keys[argmax(keys[:count])]
    log_total = math.log(softmax(keys, count, largest, _ONE, order))
    entropy = 0.0
    for i in range(count):
        entropy += order[i] * surprisal(keys[i], largest, log_total)
    share: float = max(entropy, 0.0) / math.log(listed)
    bent: float = share**arguments.dynatemp_exponent
    return low + (high - low) * bent


@kernel
def one_hot(token: int, p: Float32Array, workspace: Workspace) -> int:
    """Put all mass on one token; return 1, the number of candidates."""
    p[:] = 0
    p[token] = 1
    workspace.tokens[0] = token
    return 1


@kernel
def most_likely(count: int, p: Float32Array, workspace: Workspace) -> int:
    """Put all mass on the candidate with the largest logit; among equals, on the smallest id."""
    best = 0
    for i in range(1, count):
        if workspace.keys[i] > workspace.keys[best] or (
            workspace.keys[i] == workspace.keys[best]
            and workspace.tokens[i] < workspace.tokens[best]
        ):
            best = i
    return one_hot(workspace.tokens[best], p, workspace)


@kernel
def scatter(count: int, temperature: float, p: Float32Array, workspace: Workspace) -> int:
    """Write the candidates' softmax at this temperature into the dense row p; return `count`."""
    keys, tokens, order = workspace.keys, workspace.tokens, workspace.order
    softmax(keys, count, keys[argmax(keys[:count])], inverse(temperature), order)
    p[:] = 0
    for i in range(count):
        p[tokens[i]] = order[i]
    return count


# -- XTC ----------------------------------------------------------------------------------------
#
# "Exclude top choices", by P. E. Weidmann (2024, text-generation-webui, pull request 6335): with a
# given probability, all tokens that are at least as likely as a threshold are removed, except for
# the least likely of them.
#
# Why speculation stays exact. XTC tosses a coin for every position, so that the distribution to
# sample from is the mixture p = (1 - c) p_whole + c p_excluded. Here the coin of a position comes
# from the counter-based stream: it is a function of (seed, position) and independent of the numbers
# that draw and accept tokens. Given the coin, the target's distribution is p_whole or p_excluded, a
# function of the prefix. Whatever q the proposal came from, the acceptance rule emits a token with
# that distribution; averaged over the coin, the token has the mixture's distribution. This holds
# for any q, even one that depends on the coin. So the draft uses the same coin, which makes q
# resemble the distribution it is judged by. A position that is drafted, rejected and drafted again
# sees the same coin, as in plain decoding.


@kernel
def excludes_top(arguments: FilterArguments, seed: int, position: int) -> bool:
    """Toss this position's coin: True with probability ``arguments.xtc_probability``."""
    if arguments.xtc_probability <= 0.0:
        return False
    return bool(uniform(seed, position, PURPOSE_XTC) < arguments.xtc_probability)


@kernel
def select_xtc(threshold: float, count: int, workspace: Workspace) -> int:
    """Remove the candidates with at least this probability, except the least likely of them.

    Among equally likely ones, the one with the largest id stays. Returns how many are left.
    """
    keys, tokens, order = workspace.keys, workspace.tokens, workspace.order
    softmax(keys, count, keys[argmax(keys[:count])], _ONE, order)
    floor = np.float32(threshold)
    spared = -1
    for i in range(count):
        if order[i] < floor:
            continue
        if (
            spared < 0
            or keys[i] < keys[spared]
            or (keys[i] == keys[spared] and tokens[i] > tokens[spared])
        ):
            spared = i
    kept = 0
    for i in range(count):
        if order[i] < floor or i == spared:
            keys[kept], tokens[kept] = keys[i], tokens[i]
            kept += 1
    return kept


# -- Mirostat 2.0 -------------------------------------------------------------------------------
#
# Truncation that steers the surprise of the emitted tokens towards a target: Basu et al. (2021),
# "Mirostat: a neural text decoding algorithm that directly controls perplexity", algorithm 2, as
# llama.cpp implements it. Tokens with a surprise of more than mu bits are cut off. After each
# emitted token, mu moves against the difference between the token's surprise (among the tokens that
# were left) and the target tau.
#
# Why speculation stays exact. Within one generation, mu is a function of the tokens emitted so far:
# each step depends on the emitted token and on the p it was drawn from, not on who proposed it. So
# p is a function of the path, as without Mirostat, provided that mu advances along the accepted
# path only; `edgespec.speculation.acceptance.verify_chain` ensures that. The draft may truncate
# with any mu, because its q is the distribution that its proposals really come from; it uses the
# current mu.

_LN2 = math.log(2.0)


@kernel
def truncated(
    logits: Float32Array, temperature: float, mu: float, p: Float32Array, workspace: Workspace
) -> int:
    """Compute p over the tokens whose surprise is at most mu bits; at least the most likely one.

    Returns the number of candidates; 0 if all logits are -inf, `BROKEN` if one is NaN or +inf.
    """
    best = argmax(logits)
    if best < 0:
        return BROKEN
    if logits[best] == -np.inf:
        return 0
    if temperature <= 0.0:
        return one_hot(best, p, workspace)
    scale = inverse(temperature)
    log_total = math.log(softmax(logits, len(logits), logits[best], scale, p))
    # -log2 p <= mu, solved for the logit.
    largest = float(logits[best])
    floor = largest + (log_total - mu * _LN2) / float(scale)
    if floor > largest:
        return one_hot(best, p, workspace)
    floor = max(floor, float(LEAST_LOGIT))
    count = collect(logits, np.float32(floor), workspace.keys, workspace.tokens)
    return scatter(count, temperature, p, workspace)


@kernel
def advance_mu(mu: float, probability: float, arguments: FilterArguments) -> float:
    """Return mu after a token was emitted that had this probability in p."""
    surprise = -math.log2(probability)
    return float(mu - arguments.mirostat_eta * (surprise - arguments.mirostat_tau))


# -- the chain ----------------------------------------------------------------------------------


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
