"""What a drafter is, and the base of those that draw one token after the other from a model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context
from edgespec.control.controller import DraftBudget
from edgespec.control.stopping import DraftStopping
from edgespec.errors import NumericalError
from edgespec.sampling.filters import Workspace, distribution, make_workspace
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.acceptance import DrawSettings, current_mu, draw_proposal
from edgespec.speculation.trees import DraftTree

__all__ = [
    "DETERMINISTIC",
    "ChainDrafter",
    "ContextDrafter",
    "Drafter",
    "Learned",
    "NoDrafter",
    "Proposal",
    "SteppingDrafter",
    "draft_token",
]

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


_NEGLIGIBLE = -20.0
"""Logits so far below another one add nothing to a softmax, and an exponential costs time."""


@kernel
def draft_token(
    logits: Float32Array,
    history: Int32Array,
    length: int,
    settings: DrawSettings,
    q: Float32Array,
    workspace: Workspace,
) -> tuple[int, float]:
    """Draw one token from the draft's filtered softmax, which is left in the row q.

    Args:
        logits: float32 (n,), of the draft at the prefix ``history[:length]``.
        history, length: the tokens so far.
        settings: `DrawSettings`.
        q: float32 (n,), overwritten.
        workspace: `Workspace` of n entries.

    Returns:
        The token, -1 if the logits are broken or nothing is allowed; and how sure the draft is:
        the probability it expects of what it draws, the sum of q squared; if the filters
        leave one token, its probability before them.
    """
    position = length + settings.stream_offset
    count = distribution(
        logits,
        history,
        length,
        settings.arguments,
        q,
        workspace,
        settings.seed,
        position,
        current_mu(settings),
    )
    if count <= 0:
        return -1, 0.0
    tokens = workspace.tokens
    token = draw_proposal(q, tokens, count, settings.rule, settings.seed, position)
    if count == 1:
        return token, _share(logits, token)
    return token, _collision(q, tokens, count)


@kernel
def _share(logits: Float32Array, token: int) -> float:
    """Return this token's share of the softmax at temperature 1."""
    total = 0.0
    for logit in logits:
        difference = logit - logits[token]
        if difference > _NEGLIGIBLE:
            total += math.exp(difference)
    return 1.0 / max(total, 1.0)


@kernel
def _collision(q: Float32Array, tokens: Int32Array, count: int) -> float:
    total = 0.0
    for i in range(count):
        total += q[tokens[i]] * q[tokens[i]]
    return total


class ChainDrafter(ABC):
    """Base of drafters that propose chains, and go on behind what was copied."""

    def grows(self, budget: DraftBudget) -> bool:
        """No: it proposes chains."""
        return False

    def propose_beside(
        self, history: Int32Array, length: int, budget: DraftBudget, given: int
    ) -> Proposal:
        """Propose behind what is given."""
        return self.extend(history, length, budget, given)

    @abstractmethod
    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose behind `given` one-hot proposals that already stand in the history."""


class ContextDrafter(ChainDrafter):
    """Base of drafters that evaluate tokens in a context, which they close with its model."""

    speculates = True
    context: Context
    stopping: DraftStopping

    def broken(self) -> NumericalError:
        """Return the error to raise when the draft's logits are NaN or +inf."""
        return NumericalError(
            f"the draft {self.context.model.path.name} produced NaN or infinite logits: "
            "the file may be damaged; use another --draft"
        )

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Do nothing: it has logits of its own."""

    def learn(self, accepted: int, judged: int) -> None:
        """Learn which confidence was justified."""
        self.stopping.learn(accepted, judged)

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Do nothing: it proposes chains."""

    def learned(self) -> Learned:
        """Return its costs and which confidence was justified."""
        return Learned(model=self.stopping.as_json())

    def cancel(self) -> None:
        """Stop the draft's running evaluation."""
        self.context.cancel()

    def resume(self) -> None:
        """Allow evaluations again."""
        self.context.resume()

    def close(self) -> None:
        """Close the draft's context and its model."""
        self.context.close()
        self.context.model.close()


class SteppingDrafter(ContextDrafter):
    """Draws tokens from a draft's q, one after the other while that pays, and keeps q.

    The draft's filters are the target's: what top-k and the like cut from p is not worth
    proposing. The four abstract methods are what differs between kinds of drafts.

    Args:
        context: an open context of the draft; closed with the drafter.
        target_vocabulary: number of the target's tokens, the width of q.
        width: the first so many tokens may be proposed, the width of a row of logits.
        longest: the most tokens one `propose` may be asked for.
        stopping: decides how many are drafted.
    """

    name = "model"

    def __init__(
        self,
        context: Context,
        target_vocabulary: int,
        width: int,
        longest: int,
        stopping: DraftStopping,
    ) -> None:
        self.context = context
        self.stopping = stopping
        self._width = width
        self._q: Float32Array = np.zeros((longest, target_vocabulary), np.float32)
        self._workspace = make_workspace(width, context.capacity + longest)
        self._settings: DrawSettings | None = None

    @abstractmethod
    def missing(self, length: int) -> int:
        """Return how many tokens, or features, of ``history[:length]`` it has yet to read.

        Those that the evaluation for the first proposal reads anyway do not count.
        """

    @abstractmethod
    def usable(self, history: Int32Array, length: int, given: int) -> bool:
        """Return whether it can continue ``history[:length + given]``, `given` being proposals."""

    @abstractmethod
    def read(self, history: Int32Array, length: int, drafted: int) -> tuple[int, Float32Array]:
        """Read what is missing of ``history[:length]``, whose last `drafted` are proposals.

        Returns:
            How many tokens were evaluated, and the logits behind the last: float32 (width,).
        """

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Drop all but the first `length` committed tokens."""

    def begin(self, settings: DrawSettings) -> None:
        """Take over the target's filters, without biases on tokens that the draft lacks."""
        arguments = settings.arguments
        known = arguments.bias_tokens < self._width
        self._settings = settings._replace(
            arguments=arguments._replace(
                bias_tokens=arguments.bias_tokens[known], bias_values=arguments.bias_values[known]
            )
        )

    def rate(self, budget: DraftBudget, length: int) -> float:
        """Return the expected tokens per second of a block begun behind `length` tokens."""
        return self.stopping.rate(budget, self.missing(length))

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Draw tokens one after the other, while that pays.

        Raises:
            CancelledError: `cancel` was called.
            NumericalError: the draft's logits are NaN or +inf.
        """
        return self.extend(history, length, budget, 0)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Propose behind `given` one-hot proposals that already stand in the history."""
        assert self._settings is not None, "begin was not called"
        usable = self.usable(history, length, given)
        limit = budget.limit if usable else given
        self.stopping.begin(budget._replace(limit=limit), self.missing(length), given)
        count = given
        while self.stopping.another():
            token = self._draw(history, length + count, count)
            if token < 0:
                break  # a bias forbids all that it has
            history[length + count] = token
            count += 1
        count = self.stopping.size
        if is_greedy(self._settings.arguments) or count == given:
            return Proposal(count)
        for i in range(given):
            self._q[i] = 0.0
            self._q[i, history[length + i]] = 1.0
        return Proposal(count, self._q)

    def _draw(self, history: Int32Array, length: int, row: int) -> int:
        """Draw one token behind ``history[:length]``; leave its q in this row; -1 for none."""
        assert self._settings is not None
        started = perf_counter()
        evaluated, logits = self.read(history, length, row)
        self.stopping.timed(evaluated, perf_counter() - started)
        token, confidence = draft_token(
            logits, history, length, self._settings, self._q[row, : self._width], self._workspace
        )
        if token >= 0:
            self.stopping.add(confidence)
        elif not np.isfinite(logits.max()):
            raise self.broken()
        return token

    def commit(self, history: Int32Array, length: int) -> None:
        """Roll the cache back to the accepted prefix; the last token is not in it yet."""
        self.rewind(length - 1)
