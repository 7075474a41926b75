"""What a drafter is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.control.budget import DraftBudget
from edgespec.speculation.settings import DrawSettings

__all__ = ["DETERMINISTIC", "Drafter", "Proposal"]


DETERMINISTIC: Float32Array = np.zeros((0, 0), np.float32)
"""The q of proposals that were not drawn: one-hot at every proposal."""


class Proposal(NamedTuple):
    """A chain of proposed tokens; the tokens stand in the history, behind the committed ones.

    Attributes:
        size: how many, 0 for none.
        q: float32 (>= size, n_vocab of the target), the distribution that produced each token;
            or `DETERMINISTIC`. Valid until the next `propose`.
    """

    size: int
    q: Float32Array = DETERMINISTIC


class Drafter(Protocol):
    """Proposes tokens and keeps its own state in step with the committed prefix.

    ``history`` is one int32 array that the decoder owns: committed tokens first, then room that
    a drafter may write its proposals into.
    """

    name: str

    def begin(self, settings: DrawSettings) -> None:
        """A generation starts: its filters, rule and seed."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Write tokens to ``history[length:]`` and say how they were drawn.

        As many as are worth their cost by the budget. What decides that may depend on what is
        committed and on q, never on the tokens drawn from it.
        """

    def learn(self, accepted: int, judged: int) -> None:
        """Of the last proposals so many were accepted, of so many that the target judged."""

    def commit(self, history: Int32Array, length: int) -> None:
        """``history[:length]`` is committed; all but its last token stood there in `propose`."""

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens of what was committed still hold."""

    def cancel(self) -> None:
        """Stop a running `propose`, from any thread; it raises CancelledError."""

    def resume(self) -> None:
        """Allow proposals again after `cancel`."""

    def close(self) -> None:
        """Free what it holds."""
