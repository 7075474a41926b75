"""What a drafter is."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.control.budget import DraftBudget
from edgespec.speculation.settings import DrawSettings

__all__ = ["DETERMINISTIC", "Drafter", "Learned", "NoDrafter", "Proposal"]


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


class Learned(NamedTuple):
    """What a drafter knows of this machine and this user's texts, as JSON.

    Attributes:
        lookup: how often prompt lookup was right, by match length; None without prompt lookup.
        model: costs and calibration of a draft model; None without one.
    """

    lookup: dict[str, Any] | None = None
    model: dict[str, Any] | None = None


class Drafter(Protocol):
    """Proposes tokens and keeps its own state in step with the committed prefix.

    ``history`` is one int32 array that the decoder owns: committed tokens first, then room that
    a drafter may write its proposals into.
    """

    name: str

    @property
    def speculates(self) -> bool:
        """Whether it ever proposes anything."""

    def begin(self, settings: DrawSettings) -> None:
        """A generation starts: its filters, rule and seed."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Write tokens to ``history[length:]`` and say how they were drawn.

        As many as are worth their cost by the budget. What decides that may depend on what is
        committed and on q, never on the tokens drawn from it.
        """

    def learn(self, accepted: int, judged: int) -> None:
        """Of the last proposals so many were accepted, of so many that the target judged."""

    def learned(self) -> Learned:
        """What is worth keeping for the next start."""

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


class NoDrafter:
    """Proposes nothing, so that every cycle evaluates one token: plain decoding."""

    name = "none"
    speculates = False

    def begin(self, settings: DrawSettings) -> None:
        """Nothing to set up."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Always empty."""
        return Proposal(0)

    def learn(self, accepted: int, judged: int) -> None:
        """Nothing was proposed."""

    def learned(self) -> Learned:
        """Nothing."""
        return Learned()

    def commit(self, history: Int32Array, length: int) -> None:
        """Nothing to keep."""

    def rewind(self, length: int) -> None:
        """Nothing to drop."""

    def cancel(self) -> None:
        """Nothing to stop."""

    def resume(self) -> None:
        """Nothing was stopped."""

    def close(self) -> None:
        """Nothing to free."""
