"""Mirostat 2.0: truncation that steers the surprise of the emitted tokens towards a target.

Basu et al. (2021), "Mirostat: a neural text decoding algorithm that directly controls
perplexity", algorithm 2, as llama.cpp implements it: tokens with a surprise of more than mu bits
are cut off. After each emitted token, mu moves against the difference between the token's surprise
(among the tokens that were left) and the target tau.

Why speculation stays exact. Within one generation, mu is a function of the tokens emitted so far:
each step depends on the emitted token and on the p it was drawn from, not on who proposed it. So
p is a function of the path, as without Mirostat, provided that mu advances along the accepted path
only; `edgespec.speculation.acceptance.verify_chain` ensures that. The draft may truncate with any
mu, because its q is the distribution that its proposals really come from; it uses the current mu.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array
from edgespec.sampling.heap import collect
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.selection import BROKEN, LEAST_LOGIT
from edgespec.sampling.softmax import argmax, softmax
from edgespec.sampling.temperature import inverse, one_hot, scatter
from edgespec.sampling.workspace import Workspace

__all__ = ["advance_mu", "truncated"]

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
