"""DRY: a penalty on the token that would continue a repetition of what was written before.

"Don't Repeat Yourself", by P. E. Weidmann (2024, text-generation-webui, pull request 5677), with
llama.cpp's conventions: the penalty is multiplier * base ** (length - allowed length), where
length is that of the longest suffix of the text that occurred before, followed by this token. A
repetition is not followed beyond the last breaker (`edgespec.sampling.breakers`).
"""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.sampling.edits import edit
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import FilterArguments
from edgespec.sampling.workspace import Workspace

__all__ = ["apply_dry"]

_LOG_LARGEST = 88.7228391  # log of the largest float32: base ** exponent stays below it
_LEAST_BASE = 1.000001  # below it no exponent is too large


@kernel
def _first_row(table: Int32Array, head: int) -> int:
    """The first row of a breaker table whose head is not smaller, by bisection."""
    low, high = 0, len(table)
    while low < high:
        middle = (low + high) // 2
        if table[middle, 0] < head:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _repetition_limit(history: Int32Array, length: int, recent: int, table: Int32Array) -> int:
    """How many tokens lie behind the last breaker: a repetition can be no longer."""
    for back in range(recent):
        head = history[length - 1 - back]
        longest = -1
        row = _first_row(table, head)
        while row < len(table) and table[row, 0] == head:
            size = table[row, 1]
            if longest < size <= back:
                same = 0
                while same < size and table[row, 2 + same] == history[length - back + same]:
                    same += 1
                if same == size:
                    longest = size
            row += 1
        if longest >= 0:
            return back - longest
    return recent


@kernel
def _breaks_alone(token: int, table: Int32Array) -> bool:
    """Whether this token by itself is a breaker; of its rows the table has that one first."""
    row = _first_row(table, token)
    return bool(row < len(table) and table[row, 0] == token and table[row, 1] == 0)


@kernel
def _count_repetitions(
    history: Int32Array, length: int, recent: int, limit: int, least: int, workspace: Workspace
) -> None:
    """Into ``workspace.counts`` of each token: 1 + the longest repetition it would continue.

    For every distance back, how many of the last tokens stand there too, by the Z-algorithm
    (Gusfield 1997, section 1.4) over the reversed text: O(recent). Where the workspace has no
    room to remember these numbers they are counted each time anew: the same, but slower.
    """
    repeats, longest = workspace.repeats, workspace.counts
    remembers = len(repeats) >= recent
    left, right = 0, 0  # the match that reaches furthest back: distances left to right - 1
    for back in range(1, recent):
        same = 0
        if remembers and back < right:
            same = min(int(repeats[back - left]), right - back)
        if back + same >= right or not remembers:
            while (
                back + same < recent
                and history[length - 1 - same] == history[length - 1 - same - back]
            ):
                same += 1
        if remembers:
            repeats[back] = same
        if back + same > right:
            left, right = back, back + same
        same = min(same, limit)
        if same >= least:
            token = history[length - back]
            longest[token] = max(longest[token], same + 1)


@kernel
def apply_dry(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    arguments: FilterArguments,
    n_edited: int,
    workspace: Workspace,
) -> int:
    """Subtract the penalty of each token that would continue a repetition; edits until now."""
    window, allowed = arguments.dry_window, arguments.dry_allowed_length
    if arguments.dry_multiplier == 0.0 or window == 0:
        return n_edited
    recent = length if window < 0 else min(length, window)
    if recent <= allowed:
        return n_edited
    limit = _repetition_limit(history, length, recent, arguments.dry_breakers)
    if limit < allowed:
        return n_edited
    _count_repetitions(history, length, recent, limit, allowed, workspace)
    base = float(np.float32(arguments.dry_base))
    most = int(_LOG_LARGEST / math.log(base)) if base > _LEAST_BASE else recent
    for back in range(1, recent):
        token = history[length - back]
        repetition = workspace.counts[token] - 1
        if repetition < 0:
            continue
        workspace.counts[token] = 0
        if not _breaks_alone(token, arguments.dry_breakers):
            penalty = arguments.dry_multiplier * base ** min(repetition - allowed, most)
            value = logits[token] - np.float32(penalty)
            n_edited = edit(logits, token, value, n_edited, workspace)
    return n_edited
