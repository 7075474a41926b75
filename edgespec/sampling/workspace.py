"""The arrays in which one thread filters, so that no kernel has to allocate any."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array

__all__ = ["Workspace", "make_workspace"]

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
        n_history: the longest history. DRY is slow, but right, where it turns out longer.
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
