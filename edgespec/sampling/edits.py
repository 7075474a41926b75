"""Changes to single logits, in llama.cpp's own memory, that are taken back: bias and penalties."""

from __future__ import annotations

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.workspace import Workspace

__all__ = ["apply_bias", "apply_penalties", "edit", "undo"]


@kernel
def edit(
    logits: Float32Array, token: int, value: float, n_edited: int, workspace: Workspace
) -> int:
    """Change one logit and remember the old one; the number of edits until now."""
    workspace.edited[n_edited] = token
    workspace.saved[n_edited] = logits[token]
    logits[token] = value
    return n_edited + 1


@kernel
def undo(logits: Float32Array, n_edited: int, workspace: Workspace) -> None:
    """Put back what `edit` changed, the last first."""
    for i in range(n_edited - 1, -1, -1):
        logits[workspace.edited[i]] = workspace.saved[i]


@kernel
def apply_bias(logits: Float32Array, arguments: FilterArguments, workspace: Workspace) -> int:
    """Add the user's biases; the number of edits."""
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
        n_edited = edit(logits, token, value, n_edited, workspace)
    return n_edited
