"""What a drafter is."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.control.controller import DraftBudget
from edgespec.speculation.draws import DrawSettings
from edgespec.speculation.trees import DraftTree

__all__ = ["DETERMINISTIC", "Drafter", "Learned", "NoDrafter", "Proposal"]


DETERMINISTIC: Float32Array = np.zeros((0, 0), np.float32)
"""The q of proposals that were not drawn: one-hot at every proposal."""


class Proposal(NamedTuple):
    """A chain of proposed tokens; the tokens stand in the history, behind the committed ones.

    Or a tree, which brings its tokens and its q along.

    Attributes:
        size: how many, 0 for none.
        q: float32 (>= size, n_vocab of the target), the distribution that produced each token;
            or `DETERMINISTIC`. Valid until the next `propose`.
        tree: what is proposed, if it is more than a chain; only from `propose`.
    """

    size: int
    q: Float32Array = DETERMINISTIC
    tree: DraftTree | None = None


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
        """Start a generation with these filters, rule and seed."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Write tokens to ``history[length:]`` and say how they were drawn.

        Propose as many as are worth their cost by the budget. What decides that may depend on
        what is committed and on q, never on the tokens drawn from it.
        """

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Learn which nodes of the last proposal, a tree, stayed; so many levels were judged."""

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose a chain behind `given` one-hot proposals that already stand in the history.

        The budget's acceptance says how probable they are. They count in the proposal's size,
        and in its q if that is not `DETERMINISTIC`.
        """

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Look at the target's logits; row i follows ``history[:length + i]``, all committed."""

    def learn(self, accepted: int, judged: int) -> None:
        """Learn that `accepted` of the `judged` last proposals stayed."""

    def learned(self) -> Learned:
        """Return what is worth keeping for the next start."""

    def commit(self, history: Int32Array, length: int) -> None:
        """Take ``history[:length]`` as committed; all but its last token stood there before."""

    def rewind(self, length: int) -> None:
        """Drop all but the first `length` committed tokens."""

    def cancel(self) -> None:
        """Stop a running `propose`, from any thread; it raises CancelledError."""

    def resume(self) -> None:
        """Allow proposals again after `cancel`."""

    def close(self) -> None:
        """Free what it holds."""


class NoDrafter:
    """Plain decoding: nothing is proposed, and every cycle evaluates one token."""

    name = "none"
    speculates = False

    def begin(self, settings: DrawSettings) -> None:
        """Do nothing."""

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Return no proposal."""
        return Proposal(0)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Add nothing."""
        return Proposal(given)

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Do nothing."""

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Do nothing."""

    def learn(self, accepted: int, judged: int) -> None:
        """Do nothing."""

    def learned(self) -> Learned:
        """Return nothing."""
        return Learned()

    def commit(self, history: Int32Array, length: int) -> None:
        """Do nothing."""

    def rewind(self, length: int) -> None:
        """Do nothing."""

    def cancel(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
