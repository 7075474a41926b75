"""XTC, "exclude top choices": with some probability, the most likely tokens are removed.

By P. E. Weidmann (2024, text-generation-webui, pull request 6335): with a given probability, all
tokens that are at least as likely as a threshold are removed, except for the least likely of them.

Why speculation stays exact. XTC tosses a coin for every position, so that the distribution to
sample from is the mixture p = (1 - c) p_whole + c p_excluded. Here the coin of a position comes
from the counter-based stream: it is a function of (seed, position) and independent of the numbers
that draw and accept tokens. Given the coin, the target's distribution is p_whole or p_excluded, a
function of the prefix. Whatever q the proposal came from, the acceptance rule emits a token with
that distribution; averaged over the coin, the token has the mixture's distribution. This holds
for any q, even one that depends on the coin. So the draft uses the same coin, which makes q
resemble the distribution it is judged by. A position that is drafted, rejected and drafted again
sees the same coin, as in plain decoding.
"""

from __future__ import annotations

import numpy as np

from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.random import PURPOSE_XTC, uniform
from edgespec.sampling.softmax import argmax, softmax
from edgespec.sampling.workspace import Workspace

__all__ = ["excludes_top", "select_xtc"]

_ONE = np.float32(1.0)


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
