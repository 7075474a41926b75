"""How likely each emitted token was, and what else was likely, in the model's own distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array
from edgespec.errors import UsageError
from edgespec.sampling.softmax import log_normalizer

__all__ = ["LogprobReader", "TokenLogprobs"]

_MOST = 100


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities at temperature 1, before filters, bias and grammar.

    Attributes:
        token: what was emitted.
        logprob: its own.
        top: the most likely tokens there with theirs, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class LogprobReader:
    """Reads them from the rows of logits of a cycle; used only when they were asked for.

    Args:
        count: alternatives of each token, 0 to 100.
        rows: the most rows of a cycle.
        n_vocab: width of a row.

    Raises:
        UsageError: the count is out of range.
    """

    def __init__(self, count: int, rows: int, n_vocab: int) -> None:
        if not 0 <= count <= min(_MOST, n_vocab):
            raise UsageError(f"top logprobs is {count}: it has to be between 0 and {_MOST}")
        self._scratch = np.zeros(n_vocab, np.float32)
        self._ids = np.zeros((rows, count), np.int32)
        self._values = np.zeros((rows, count), np.float32)
        self._logs = np.zeros(rows)

    def read(self, logits: Float32Array) -> None:
        """Take what is needed of the rows, before a grammar masks them."""
        for row, values in enumerate(logits):
            self._logs[row] = log_normalizer(
                values, self._scratch, self._ids[row], self._values[row]
            )

    def of(
        self, logits: Float32Array, tokens: list[int], rows: Sequence[int] | None = None
    ) -> list[TokenLogprobs]:
        """Return those of the tokens drawn from these rows, which may be masked by now.

        Args:
            rows: which ones, where they are not the first.
        """
        return [
            TokenLogprobs(
                token,
                float(logits[row, token] - self._logs[row]),
                tuple(
                    (int(other), float(value - self._logs[row]))
                    for other, value in zip(self._ids[row], self._values[row], strict=True)
                ),
            )
            for row, token in zip(
                range(len(tokens)) if rows is None else rows, tokens, strict=False
            )
        ]
