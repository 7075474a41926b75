"""Medusa heads: every token of a block at once, from the target's last hidden state."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context, FinalStates
from edgespec.control.controller import DraftBudget
from edgespec.control.stopping import DraftStopping
from edgespec.drafters.growing import add_level, likeliest
from edgespec.drafters.protocol import Proposal
from edgespec.drafters.trees import TreeDrafter
from edgespec.errors import NumericalError

if TYPE_CHECKING:
    from edgespec.kernels.operations import StateHeads

__all__ = ["MedusaDrafter"]


class MedusaDrafter(TreeDrafter):
    """Drafts with heads that each predict one token ahead (Cai et al. 2024, "Medusa").

    Of a text t that ends at P + 1 the target has evaluated all but the last token. Head i reads the
    state at P and gives q for position P + 2 + i, whatever is proposed between: there is one q for
    all nodes of a depth. Nothing is kept of a text but the states of its last evaluation. Where
    they lack the one at P, after a prompt or another text's turn, nothing is proposed until the
    next cycle. q has mass on the heads' own tokens only; what they lack comes from the residual.

    Args:
        heads: closed with the drafter.
        path: of their file.
        states: what the target's context evaluates; closed with the drafter.
        target: an open context, not closed here.
        target_ids: int32, which tokens of the target's the heads have.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    name = "medusa"

    def __init__(
        self,
        heads: StateHeads,
        path: Path,
        states: FinalStates,
        target: Context,
        target_ids: Int32Array,
        longest: int,
        stopping: DraftStopping,
    ) -> None:
        size = target.model.vocabulary.size
        super().__init__(target, size, size, longest, stopping, target_ids)
        self.heads = len(heads.logits)
        self._heads, self._path, self._states = heads, path, states
        self._at = -1  # tokens of the text that the heads' logits belong to
        self._logits: Float32Array = np.full(size, -np.inf, np.float32)
        self._own = np.arange(len(target_ids), dtype=np.int32)

    def missing(self, length: int) -> int:
        """Return 0: it reads no text."""
        return 0

    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """Return whether the state is at hand, and a head looks that far ahead."""
        return given < self.heads and self._states.at(length - 2) is not None

    def rate(self, budget: DraftBudget, length: int) -> float:
        """Return the expected tokens per second of a block that it begins."""
        return super().rate(self._within(budget), length)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose behind `given` one-hot proposals, as far as the heads look."""
        if given < self.heads:
            budget = self._within(budget)
        return super().extend(history, length, budget, given)

    def read(self, history: Int32Array, length: int, drafted: int) -> tuple[int, Float32Array]:
        """Evaluate all heads for the first proposal of a block; the logits of the one it needs."""
        if self._at != length - drafted:
            self._evaluate(length - drafted)
        return 0, self._row(drafted)

    def expand(self, base: int, tokens: Int32Array, parents: Int32Array) -> Float32Array:
        """Return the same logits behind each node of a level."""
        depth, node = 1, int(parents[-1])
        while node >= 0:
            depth, node = depth + 1, int(parents[node])
        row = self._row(depth)
        return np.lib.stride_tricks.as_strided(row, (len(tokens), len(row)), (0, row.itemsize))

    def fold(self, length: int) -> None:
        """Do nothing: no tree is evaluated."""

    def rewind(self, length: int) -> None:
        """Drop what the heads said of another text."""
        self._at = -1

    def broken(self) -> NumericalError:
        """Return the error to raise when the heads' logits are NaN or +inf."""
        return NumericalError(
            f"the Medusa heads {self._path.name} produced NaN or infinite logits: the file may be "
            "damaged; use another --draft"
        )

    def cancel(self) -> None:
        """Do nothing: all heads take less than a millisecond."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Free the heads, and stop recording."""
        self._states.close()
        self._heads.close()

    def _within(self, budget: DraftBudget) -> DraftBudget:
        return budget._replace(limit=min(budget.limit, self.heads))

    def _evaluate(self, length: int) -> None:
        state = self._states.at(length - 2)
        assert state is not None
        started = perf_counter()
        self._heads.state[:] = state
        self._heads.compute()
        self.stopping.timed_once(perf_counter() - started)
        self._at = length

    def _row(self, head: int) -> Float32Array:
        """Return a head's logits by the target's ids, -inf where it has none."""
        self._logits[self._ids] = self._heads.logits[head]
        return self._logits

    def _begins(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> bool:
        own = budget if given else self._within(budget)
        return super()._begins(history, length, own, given)

    def _grow(self, length: int, budget: DraftBudget, spent_s: float) -> float:
        """Think of children as deep as the heads look: they cost nothing more."""
        for head in range(1, min(self.heads, budget.limit)):
            logits = self._heads.logits[head]
            if not likeliest(logits, self._own, self._tokens, self._shares):
                raise self.broken()
            self._tokens[:] = self._ids[self._tokens]
            add_level(self._tree, head - 1, self._tokens, self._shares, self.stopping.calibration)
        return spent_s
