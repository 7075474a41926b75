"""The loop: tokens -> propose -> evaluate -> filters -> accept -> commit or roll back.

Between calls the target's cache holds every committed token but the last, which is the first
thing the next cycle evaluates, together with the proposals behind it. A prompt is treated in the
same way, so that its first answer token comes from the same kind of evaluation as all others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context
from edgespec.control.controller import CycleTiming, DraftBudget, FixedPolicy, Policy
from edgespec.drafters import Drafter, ForcedTokens, Proposal
from edgespec.errors import ContextFullError, NumericalError, UsageError
from edgespec.runtime.constraint import Constraint
from edgespec.runtime.cycle import (
    Cycle,
    CycleReport,
    GenerationTrace,
    LogprobReader,
    Origin,
    Statistics,
    TokenLogprobs,
    Tried,
)
from edgespec.runtime.prefix_cache import PrefixCache
from edgespec.sampling.filters import make_workspace
from edgespec.speculation.acceptance import (
    BROKEN_LOGITS,
    NOTHING_ALLOWED,
    DrawSettings,
    verify_chain,
)
from edgespec.speculation.trees import verify_tree

_log = logging.getLogger("edgespec.decoder")

__all__ = ["Decoder", "Edit", "Ending", "PrefillProgress"]

Edit = Callable[[Int32Array, Float32Array], None]
"""Called with a text's tokens and the logits of the next, float32 (n_vocab,), to change them."""

_NO_LIMIT = 2**31

PrefillProgress = Callable[[int, int], None]
"""Called with the tokens of a prompt that were read, and how many there are to read."""

Ending = Callable[[list[int], list[bytes]], int]
"""Called with verified tokens and their bytes; returns how many of them stand up to the end."""


class Decoder:
    """Decodes one sequence at a time with a target and a drafter.

    Args:
        target: an open context; not closed here.
        drafter: proposes; not closed here.
        k: the most proposals of a cycle, 0 or more.
        policy: bounds what each cycle proposes; without it k wherever the drafter has as many.
        prefix_cache: keeps what the target's cache held when another text takes its place.

    Attributes:
        on_cycle: called with every committed cycle.
    """

    def __init__(
        self,
        target: Context,
        drafter: Drafter,
        k: int,
        policy: Policy | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self.policy = policy or FixedPolicy(k)
        self.prefix_cache = prefix_cache or PrefixCache(0)
        self.target = target
        self.drafter = drafter
        self.k = k
        self.capacity = target.capacity
        self.history: Int32Array = np.zeros(self.capacity + k + 1, np.int32)
        self.length = 0
        self.statistics = Statistics()
        self.on_cycle: Callable[[CycleReport], object] | None = None
        n_vocab = target.model.vocabulary.size
        self._p = np.zeros(n_vocab, np.float32)
        self._workspace = make_workspace(n_vocab, len(self.history))
        self._emitted: Int32Array = np.zeros(k + 1, np.int32)
        self._steps: Int32Array = np.arange(-1, k + 1, dtype=np.int32)
        self._path: Int32Array = self._steps.copy()
        self._settings: DrawSettings | None = None
        self._constraint: Constraint | None = None
        self._forced: ForcedTokens | None = None
        self._trace: GenerationTrace | None = None
        self._logprobs: LogprobReader | None = None
        self._ending: Ending = _all
        self._single = False  # the evaluation before was of one token
        self._most = _NO_LIMIT
        self._edit: Edit | None = None

    @property
    def held(self) -> Int32Array:
        """The tokens that the target's cache holds, a view."""
        return self.history[: self.target.length]

    @property
    def room(self) -> int:
        """Tokens that can still be committed before the context is full."""
        return self.capacity - self.length

    def begin(
        self,
        tokens: Int32Array,
        settings: DrawSettings,
        statistics: Statistics,
        constraint: Constraint | None = None,
        trace: GenerationTrace | None = None,
        logprobs: LogprobReader | None = None,
        progress: PrefillProgress | None = None,
        ending: Ending | None = None,
        most: int | None = None,
        edit: Edit | None = None,
    ) -> None:
        """Start, or go on with, a generation after `tokens`.

        What the caches share with them is reused; `statistics` is added to from here on, and
        what is emitted obeys the constraint. Every cycle is told to `trace`, and tells how likely
        its tokens were if there is a reader for that. What stands behind the end that `ending`
        finds is never emitted, nor counted. No cycle proposes more than `most`. Logits are what
        `edit` makes of them, before a constraint masks them.

        Raises:
            UsageError: no tokens, or a biased token that does not exist.
            ContextFullError: the tokens leave no room for an answer.
            CancelledError: cancelled; the caches hold a prefix of the tokens.
        """
        self._check(tokens, settings)
        started = perf_counter()
        self.drafter.rewind(self.prefix_cache.switch(self.target, self.held, tokens))
        self.history[: len(tokens)] = tokens
        self.length = len(tokens)
        self._settings = settings
        self._constraint = constraint
        self._forced = None
        if constraint is not None and self.drafter.speculates:
            self._forced = ForcedTokens(constraint, self.drafter)
        self._trace = trace
        self._logprobs = logprobs
        self._ending, self._single = ending or _all, False
        self._most = _NO_LIMIT if most is None else most
        self._edit = edit
        self.drafter.begin(settings)
        self.statistics = statistics
        if statistics.emitted == 0:  # not where it goes on after another one's turn, or a shift
            statistics.reused_tokens = self.target.length
        _log.debug(
            "begins a prompt of %d tokens, %d of them cached", len(tokens), self.target.length
        )
        self._prefill(tokens[:-1], progress)
        statistics.prefill_s += perf_counter() - started

    def cycle(self, limit: int) -> Cycle:
        """Propose, verify, accept, commit: emits 1 to ``min(k + 1, limit)`` tokens.

        Raises:
            CancelledError: cancelled; nothing was emitted and the caches are in step.
            NumericalError: the target's logits are NaN or +inf.
            UsageError: bias and grammar allow no token.
        """
        assert self._settings is not None, "begin was not called"
        clock = [perf_counter()]
        try:
            most = max(0, min(self.k, self._most, limit - 1, self.room - 1))
            budget = self.policy.budget(self.target.length, most)
            drafter = self._forced or self.drafter
            proposal = self._propose(drafter, budget)
            clock.append(perf_counter())
            depth = self.target.length
            evaluate = self._evaluate_chain if proposal.tree is None else self._evaluate_tree
            logits, count = evaluate(proposal)
            evaluated = self.target.length - depth
            clock.append(perf_counter())
            if self._logprobs:
                self._logprobs.read(logits)
            if self._edit:
                for row, values in enumerate(logits):
                    self._edit(self.history[: self.length + row], values)
            if self._constraint:
                self._constraint.mask(logits, limit)
            accepted = self._accept(logits, count, proposal)
            clock.append(perf_counter())
        except BaseException:
            self._commit(self.length)
            raise
        rows = self._path[: accepted + 1] + 1  # of logits, each before an emitted token
        watched = self._trace is not None or self.on_cycle is not None
        tried = self._tried(proposal, count, accepted) if watched else None
        cycle = self._verified(logits, rows, count, accepted)
        emitted = len(cycle.tokens)
        self._learn(proposal, count, accepted, emitted)
        before = self.length
        if proposal.tree is not None:
            self.target.keep_path(self.length - 1, rows)
        self._emit(cycle)
        self._observe(before, logits, rows[:emitted])
        clock.append(perf_counter())
        self._count(evaluated, count, cycle, clock)
        timing = CycleTiming(
            depth, evaluated, count, emitted, clock[1] - clock[0], clock[2] - clock[1]
        )
        predicted_s = self.policy.observe(timing)
        if tried is not None:
            name = drafter.name if count else "none"
            seconds = clock[4] - clock[0]
            self._report(CycleReport(name, budget, timing, predicted_s, seconds, cycle, tried))
        return cycle

    def _tried(self, proposal: Proposal, count: int, accepted: int) -> Tried:
        """Return a copy of what was proposed, before the history has what is emitted."""
        path = self._path[1 : accepted + 1].copy()
        if proposal.tree is not None:
            return Tried(proposal.tree.tokens.copy(), proposal.tree.parents.copy(), path)
        tokens = self.history[self.length : self.length + count].copy()
        return Tried(tokens, np.arange(-1, count - 1, dtype=np.int32), path)

    def _report(self, report: CycleReport) -> None:
        if self._trace is not None:
            self._trace.cycle(report)
        if self.on_cycle is not None:
            self.on_cycle(report)

    def score(self, tokens: Int32Array, reader: LogprobReader) -> list[TokenLogprobs]:
        """Return how likely each token but the first is after those before it.

        Afterwards the caches are empty.

        Raises:
            UsageError: no tokens, or one that does not exist.
            ContextFullError: they do not fit into the context.
            CancelledError: cancelled.
        """
        self._check_tokens(tokens)
        self.prefix_cache.switch(self.target, self.held, tokens[:1])
        self.forget()
        told: list[TokenLogprobs] = []
        before, after = tokens[:-1], tokens[1:].tolist()
        step = self.target.options.outputs
        try:
            for start in range(0, len(before), step):
                block = before[start : start + step]
                logits = self.target.evaluate(block, len(block))
                reader.read(logits)
                told += reader.of(logits, after[start : start + step])
        finally:
            self.forget()
        return told

    def keep(self, length: int) -> None:
        """Take back committed tokens behind the first `length`: a block ended inside."""
        if length < self.length:
            self._commit(length)

    def end(self) -> None:
        """Let go of what the generation gave: its stream may hold what holds this decoder."""
        self._constraint, self._trace, self._logprobs, self._edit = None, None, None, None
        self._forced = None
        self._ending = _all

    def limit_proposals(self, k: int) -> None:
        """Propose at most k tokens from now on.

        Raises:
            UsageError: there is only space for fewer.
        """
        if not 0 <= k < len(self._emitted):
            raise UsageError(f"k is {k}: it has to be between 0 and {len(self._emitted) - 1}")
        self.k = k

    def forget(self) -> None:
        """Empty both caches."""
        self.length = 0
        self.target.clear()
        self.drafter.rewind(0)

    def _propose(self, drafter: Drafter | ForcedTokens, budget: DraftBudget) -> Proposal:
        """Ask for a tree only where nothing needs the proposals one behind the other."""
        assert self._settings is not None
        needs_chain = self._edit is not None or self._settings.arguments.mirostat != 0
        if needs_chain and self._forced is None:
            return self.drafter.extend(self.history, self.length, budget, 0)
        return drafter.propose(self.history, self.length, budget)

    def _evaluate_chain(self, proposal: Proposal) -> tuple[Float32Array, int]:
        """Evaluate what is pending and the proposals; logits, and how many are verified."""
        checked = self._check_proposals(proposal.size)
        pending = self.history[self.target.length : self.length + checked]
        return self.target.evaluate(pending, checked + 1), min(proposal.size, checked + 1)

    def _evaluate_tree(self, proposal: Proposal) -> tuple[Float32Array, int]:
        """Return the same for a tree, whose top is the last committed token."""
        tree = proposal.tree
        assert tree is not None
        self.target.prefill(self.history[self.target.length : self.length - 1])
        tokens = np.append(self.history[self.length - 1], tree.tokens)
        parents = np.append(np.int32(-1), tree.parents + np.int32(1))
        return self.target.evaluate_tree(tokens, parents, proposal.size + 1), proposal.size

    def _learn(self, proposal: Proposal, count: int, accepted: int, emitted: int) -> None:
        """Tell the drafter what was judged: all that stands before the end of the text."""
        if proposal.tree is None:
            judged = count if emitted > accepted else emitted
            self.drafter.learn(min(accepted, emitted), judged)
        else:
            path = self._path[1 : accepted + 1]
            self.drafter.learn_path(path[:emitted], min(accepted + 1, emitted))

    def _observe(self, before: int, logits: Float32Array, rows: Int32Array) -> None:
        """Show the drafter the rows of logits before the emitted tokens."""
        start = 0
        for end in range(1, len(rows) + 1):  # those side by side at once
            if end == len(rows) or rows[end] != rows[end - 1] + 1:
                part = logits[rows[start] : rows[end - 1] + 1]
                self.drafter.observe(self.history, before + start, part)
                start = end

    def _check_proposals(self, count: int) -> int:
        """Return how many proposals are worth evaluating: a forbidden one is never accepted."""
        if self._constraint is None:
            return count
        return self._constraint.walk(self.history[self.length : self.length + count])

    def _accept(self, logits: Float32Array, count: int, proposal: Proposal) -> int:
        """Walk the proposals; the number accepted. `_path` has them, behind a -1."""
        assert self._settings is not None
        if proposal.tree is None:
            self._path[: count + 1] = self._steps[: count + 1]
            accepted = verify_chain(
                logits,
                self.history,
                self.length,
                count,
                proposal.q,
                self._settings,
                self._p,
                self._workspace,
                self._emitted,
            )
        else:
            accepted = verify_tree(
                logits,
                self.history,
                self.length,
                proposal.tree,
                self._settings,
                self._p,
                self._workspace,
                self._emitted,
                self._path[1:],
            )
        name = self.target.model.path.name
        forbidding = self._constraint is not None or len(self._settings.arguments.bias_tokens) > 0
        if accepted == NOTHING_ALLOWED and forbidding:
            raise UsageError(f"no token of {name} is allowed: relax the logit bias or the grammar")
        if accepted in (BROKEN_LOGITS, NOTHING_ALLOWED):
            raise NumericalError(f"{name} produced NaN or infinite logits: the file may be damaged")
        return accepted

    def _prefill(self, tokens: Int32Array, progress: PrefillProgress | None) -> None:
        """Read what the target's cache lacks of these tokens."""
        step = self.target.options.batch
        for start in range(self.target.length, len(tokens), step):
            self.target.prefill(tokens[start : start + step])
            if progress is not None:
                progress(self.target.length, len(tokens))

    def _verified(self, logits: Float32Array, rows: Int32Array, count: int, accepted: int) -> Cycle:
        """Return what this cycle emits.

        One that ends inside its block is as one that had proposed no more than stands before the
        end: the target draws the last token in both.
        """
        tokens = self._emitted[: accepted + 1].tolist()
        pieces = [self.target.model.vocabulary.piece(token) for token in tokens]
        size = self._ending(tokens, pieces)
        if size <= accepted:
            count = accepted = size - 1
        tokens, pieces = tokens[:size], pieces[:size]
        logprobs = self._logprobs.of(logits, tokens, rows.tolist()) if self._logprobs else None
        last = Origin.PLAIN if count == 0 else Origin.BONUS
        last = Origin.CORRECTED if accepted < count else last
        return Cycle(tokens, [Origin.ACCEPTED] * accepted + [last], pieces, logprobs)

    def _emit(self, cycle: Cycle) -> None:
        """Put the emitted tokens into the history and commit them."""
        if self._constraint:
            self._constraint.commit(cycle.tokens)
        end = self.length + len(cycle.tokens)
        self.history[self.length : end] = cycle.tokens
        self._commit(end)

    def _commit(self, length: int) -> None:
        """Make ``history[:length]`` the committed prefix, in the caches too."""
        self.length = length
        self.target.truncate(length - 1)
        self.drafter.commit(self.history, length)
        assert self.target.length <= length - 1 and self._in_step()

    def _in_step(self) -> bool:
        """Return whether llama.cpp agrees on the length of the target's cache."""
        return self.target.native_length() == self.target.length

    def _check(self, tokens: Int32Array, settings: DrawSettings) -> None:
        self._check_tokens(tokens)
        bias = settings.arguments.bias_tokens
        size = len(self._p)
        if len(bias) and int(bias.max()) >= size:
            raise UsageError(f"logit bias names token {int(bias.max())}: the vocabulary has {size}")

    def _check_tokens(self, tokens: Int32Array) -> None:
        if len(tokens) == 0:
            raise UsageError("the prompt is empty: give it at least one token")
        if len(tokens) >= self.capacity:
            raise ContextFullError(
                f"the prompt has {len(tokens)} tokens, the context holds {self.capacity} and an "
                "answer needs room: raise --ctx or shorten the prompt"
            )
        size = len(self._p)
        if int(tokens.min()) < 0 or int(tokens.max()) >= size:
            raise UsageError(f"a token of the prompt is not in the vocabulary of {size}")

    def _count(self, evaluated: int, count: int, cycle: Cycle, clock: list[float]) -> None:
        statistics, emitted = self.statistics, len(cycle.tokens)
        statistics.draft_s += clock[1] - clock[0]
        statistics.verify_s += clock[2] - clock[1]
        statistics.sample_s += clock[3] - clock[2]
        statistics.decode_s += clock[4] - clock[0]
        statistics.emitted += emitted
        proposed = count if cycle.origins[-1] is Origin.CORRECTED else emitted - 1
        statistics.count_cycle(proposed, emitted - 1, self.drafter.speculates and count == 0)
        single = evaluated == 1 and count == 0
        if single and self._single:  # a change of size costs what plain decoding never pays
            statistics.plain_steps_s.append(clock[4] - clock[1])
        self._single = single


def _all(tokens: list[int], pieces: list[bytes]) -> int:
    return len(tokens)
