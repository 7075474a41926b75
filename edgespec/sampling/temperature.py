"""Temperature: from the candidates' logits to p, at a fixed or an entropy-dependent temperature."""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.selection import surprisal
from edgespec.sampling.softmax import argmax, softmax
from edgespec.sampling.workspace import Workspace

__all__ = ["dynamic_temperature", "inverse", "most_likely", "one_hot", "scatter"]

_ONE = np.float32(1.0)


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
