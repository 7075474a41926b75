"""Drafters with a model that propose trees: grown as far as that pays, or of a given shape."""

from __future__ import annotations

from abc import abstractmethod
from time import perf_counter

import numpy as np

from edgespec._types import Float32Array, Float64Array, Int32Array
from edgespec.backend import MOST_NODES, Context
from edgespec.control.controller import DraftBudget
from edgespec.control.stopping import DraftStopping, expected
from edgespec.drafters.growing import (
    CHILDREN,
    WIDEST,
    add_children,
    as_draft_tree,
    copy_chain,
    learn_path,
    likeliest,
    make_grown_tree,
    most_valuable,
    next_level,
    worth_beginning,
)
from edgespec.drafters.protocol import Proposal, SteppingDrafter
from edgespec.sampling.filters import distribution
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.acceptance import ACCEPT_COUPLED, ACCEPT_REJECTION, current_mu
from edgespec.speculation.trees import ONE_HOT, DraftTree, draw_sibling

__all__ = ["GROWN", "TreeDrafter"]

GROWN: tuple[int, ...] = ()
"""In place of widths: a tree that grows while it pays."""


class TreeDrafter(SteppingDrafter):
    """A drafter that can evaluate several continuations at once.

    Args: as of `SteppingDrafter`, and
        ids: int32, the tokens that it has logits of; None for the first `width`.

    Attributes:
        shape: `GROWN`, or children of a node by level; None for chains.
    """

    def __init__(
        self,
        context: Context,
        target_vocabulary: int,
        width: int,
        longest: int,
        stopping: DraftStopping,
        ids: Int32Array | None = None,
    ) -> None:
        super().__init__(context, target_vocabulary, width, longest, stopping)
        self.shape: tuple[int, ...] | None = None
        self._ids = np.arange(width, dtype=np.int32) if ids is None else ids
        self._tree = make_grown_tree()
        self._verified: Int32Array = np.zeros(longest, np.int32)
        self._size = 0
        self._chosen: Int32Array = np.zeros(WIDEST, np.int32)
        self._tokens: Int32Array = np.zeros(min(CHILDREN, len(self._ids)), np.int32)
        self._shares: Float64Array = np.zeros(len(self._tokens))
        self._entry_parents: Int32Array = np.zeros(0, np.int32)

    @abstractmethod
    def expand(self, base: int, tokens: Int32Array, parents: Int32Array) -> Float32Array:
        """Evaluate nodes of the tree behind what `read` read.

        Args:
            base: tokens of the text.
            tokens: int32 (n,), the new nodes'.
            parents: int32 (m + n,), of all that were expanded so far, their places among
                these; -1 behind the text.

        Returns:
            Logits behind each, float32 (n, >= width).
        """

    @abstractmethod
    def fold(self, length: int) -> None:
        """Drop what `expand` evaluated; the text has `length` tokens."""

    def grows(self, budget: DraftBudget) -> bool:
        """Return whether a tree is grown with what this budget allows.

        Where draft and target draw with the same noise, a chain that was drawn with it is right
        more often than any tree of the likeliest tokens (1.69 and 1.37 tokens a cycle at 0.8).
        """
        if self.shape != GROWN or budget.fixed or self._settings is None:
            return False
        coupled = self._settings.rule == ACCEPT_COUPLED
        return not coupled or is_greedy(self._settings.arguments)

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose a tree, or a chain where trees are off."""
        return self.propose_beside(history, length, budget, 0)

    def propose_beside(
        self, history: Int32Array, length: int, budget: DraftBudget, given: int
    ) -> Proposal:
        """Propose a tree that has `given` copied tokens as one of its branches."""
        if self.grows(budget):
            return self._grown(history, length, budget, given)
        if not self.shape:
            return self.extend(history, length, budget, given)
        if not self.usable(history, length, 0):
            return Proposal(given)
        try:
            return self._shaped(history, length, budget.limit)
        finally:
            self.fold(length)

    # -- trees that grow -------------------------------------------------------------------------

    def _grown(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        self._tree.size[0] = 0
        copy_chain(self._tree, history[length : length + given], budget.acceptance)
        if not self._begins(history, length, budget, given):
            self._size = 0
            return Proposal(given)
        started = perf_counter()
        try:
            evaluated, logits = self.read(history, length, 0)
            self.stopping.timed(evaluated, perf_counter() - started)
            self._think(-1, logits)
            spent_s = self._grow(length, budget, self.stopping.begin_s(0))
        finally:
            self.fold(length)
        self._size = int(most_valuable(self._tree, budget, spent_s, self._verified))
        tree = as_draft_tree(self._tree, self._verified[: self._size])
        return Proposal(self._size, tree=tree) if self._size else Proposal(0)

    def _begins(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> bool:
        """Return whether the draft is asked at all."""
        if budget.limit == 0 or not self.usable(history, length, 0):
            return False
        missing = self.missing(length)
        if given:
            first_s = self.stopping.begin_s(missing)
            chance = expected(self.stopping.calibration, 0)
            return bool(worth_beginning(self._tree, budget, chance, first_s))
        self.stopping.begin(budget, missing, 0)
        return self.stopping.another()

    def _grow(self, length: int, budget: DraftBudget, spent_s: float) -> float:
        """Expand level by level while that pays; the seconds that drafting is taken to cost."""
        tree, stopping, depth = self._tree, self.stopping, 0
        self._entry_parents = np.zeros(0, np.int32)
        while depth < budget.limit:
            chance = expected(stopping.calibration, depth + 1)
            count = next_level(
                tree, depth, budget, chance, spent_s, stopping.step_s, stopping.more_s, self._chosen
            )
            nodes = self._chosen[:count]
            nodes = nodes[tree.tokens[nodes] < self._width]
            if len(nodes) == 0 or not self._fits(len(nodes)):
                break
            started = perf_counter()
            rows = self._expand(length, nodes)
            for node, row in zip(nodes.tolist(), rows, strict=True):
                self._think(node, row)
            stopping.timed_level(len(nodes), perf_counter() - started)
            spent_s += stopping.step_s + (len(nodes) - 1) * stopping.more_s
            depth += 1
        return spent_s

    def _fits(self, nodes: int) -> bool:
        entries = len(self._entry_parents) + nodes
        return entries <= MOST_NODES and self.context.length + nodes <= self.context.capacity

    def _expand(self, length: int, nodes: Int32Array) -> Float32Array:
        tree, before = self._tree, len(self._entry_parents)
        above = tree.parents[nodes]
        parents = np.where(above < 0, -1, tree.entries[above]).astype(np.int32)
        tree.entries[nodes] = np.arange(before, before + len(nodes), dtype=np.int32)
        self._entry_parents = np.concatenate((self._entry_parents, parents))
        return self.expand(length, tree.tokens[nodes], self._entry_parents)

    def _think(self, node: int, logits: Float32Array) -> None:
        """Think of the children of a node, by the logits behind it."""
        if not likeliest(logits, self._ids, self._tokens, self._shares):
            raise self.broken()
        add_children(self._tree, node, self._tokens, self._shares, self.stopping.calibration)

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Learn which confidence was justified."""
        if self._size:
            verified = self._verified[: self._size]
            learn_path(self._tree, verified, path, judged, self.stopping.calibration)

    # -- trees of a given shape ------------------------------------------------------------------

    def _shaped(self, history: Int32Array, length: int, limit: int) -> Proposal:
        """Give every node as many children as its level says, while there is room."""
        assert self._settings is not None and self.shape is not None, "begin was not called"
        self._size = 0
        tokens, parents, rows = list[int](), list[int](), list[int]()
        level, entries = [-1], {-1: -1}
        logits = self.read(history, length, 0)[1][None]
        self._entry_parents = np.zeros(0, np.int32)
        for depth, wide in enumerate(self.shape):
            if depth:
                logits = self._expand_level(length, tokens, parents, level, entries)
            below = list[int]()
            for parent, row in zip(level, logits, strict=True):
                number = min(wide, limit - len(tokens))
                _write_path(history, length, tokens, parents, parent)
                for token, q_row in self._children(row, history, length + depth, number, rows):
                    below.append(len(tokens))
                    tokens.append(token)
                    parents.append(parent)
                    rows.append(q_row)
            level = [node for node in below if tokens[node] < self._width]
            if not level or not self._fits(len(level)):
                break
        tree = DraftTree(_int32(tokens), _int32(parents), _int32(rows), self._q)
        return Proposal(len(tokens), tree=tree)

    def _expand_level(
        self,
        length: int,
        tokens: list[int],
        parents: list[int],
        level: list[int],
        entries: dict[int, int],
    ) -> Float32Array:
        above = [entries[parents[node]] for node in level]
        for node in level:
            entries[node] = len(entries) - 1
        self._entry_parents = np.append(self._entry_parents, _int32(above))
        return self.expand(length, _int32([tokens[node] for node in level]), self._entry_parents)

    def _children(
        self, logits: Float32Array, history: Int32Array, end: int, number: int, rows: list[int]
    ) -> list[tuple[int, int]]:
        """Return tokens behind ``history[:end]``, each with its row of q."""
        settings = self._settings
        assert settings is not None
        if number == 0:
            return []
        if settings.rule != ACCEPT_REJECTION or is_greedy(settings.arguments):
            found = np.zeros(number, np.int32)
            if not likeliest(logits, self._ids, found, np.zeros(number)):
                raise self.broken()
            return [(token, ONE_HOT) for token in found.tolist()]
        row, position = max(rows, default=-1) + 1, end + settings.stream_offset
        q, drawn = self._q[row, : self._width], np.zeros(number, np.int32)
        count = distribution(
            logits[: self._width], history, end, settings.arguments, q, self._workspace,
            settings.seed, position, current_mu(settings),
        )  # fmt: skip
        if count < 0:
            raise self.broken()
        for i in range(number):
            token = draw_sibling(
                q, self._workspace.tokens, count, drawn, i, settings.seed, position
            )
            if token < 0:
                drawn = drawn[:i]
                break
            drawn[i] = token
        return [(token, row) for token in drawn.tolist()]


def _int32(values: list[int]) -> Int32Array:
    return np.array(values, np.int32)


def _write_path(
    history: Int32Array, length: int, tokens: list[int], parents: list[int], node: int
) -> None:
    """Write the tokens of a node's path behind the text, where penalties look for them."""
    path = list[int]()
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    history[length : length + len(path)] = path[::-1]
