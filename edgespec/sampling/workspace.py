"""The arrays that one thread filters in, so that no kernel allocates any.

They also keep the old values of logits that bias and penalties change in llama.cpp's memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.kernel import kernel

__all__ = ["Workspace", "edit", "make_workspace", "undo"]

_EDITS = 3  # of one logit, at most: bias, penalties, DRY


class Workspace(NamedTuple):
    """Scratch arrays of one thread, n_vocab entries each (edited and saved: three times that).

    `counts` is zero between calls. `repeats` is for DRY, as long as the longest history.
    """

    keys: Float32Array
    tokens: Int32Array
    order: Float32Array
    logit_of: Float32Array
    counts: Int32Array
    edited: Int32Array
    saved: Float32Array
    repeats: Int32Array


def make_workspace(n_vocab: int, n_history: int = 0) -> Workspace:
    """Allocate what `distribution` needs.

    Args:
        n_vocab: number of tokens.
        n_history: the longest history. If it turns out longer, DRY is slow but still right.
    """
    return Workspace(
        keys=np.empty(n_vocab, np.float32),
        tokens=np.empty(n_vocab, np.int32),
        order=np.empty(n_vocab, np.float32),
        logit_of=np.empty(n_vocab, np.float32),
        counts=np.zeros(n_vocab, np.int32),
        edited=np.empty(_EDITS * n_vocab, np.int32),
        saved=np.empty(_EDITS * n_vocab, np.float32),
        repeats=np.empty(n_history, np.int32),
    )


@kernel
def edit(
    logits: Float32Array, token: int, value: float, n_edited: int, workspace: Workspace
) -> int:
    """Change one logit and remember the old value; return the number of edits so far."""
    workspace.edited[n_edited] = token
    workspace.saved[n_edited] = logits[token]
    logits[token] = value
    return n_edited + 1


@kernel
def undo(logits: Float32Array, n_edited: int, workspace: Workspace) -> None:
    """Restore what `edit` changed, the last change first."""
    for i in range(n_edited - 1, -1, -1):
        logits[workspace.edited[i]] = workspace.saved[i]
