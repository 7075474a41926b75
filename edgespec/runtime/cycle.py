"""What one cycle emitted, how likely it was, what all cycles took, and a trace of them in a file.

In the trace, a generation is a line of type "generation", one of type "cycle" for each cycle, and
one of type "end"; all of them have its `id`, as generations may be interleaved. The file holds the
prompts and answers, as token ids.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.control.controller import CycleTiming, DraftBudget, Policy
from edgespec.drafters import Drafter
from edgespec.errors import EdgespecError, UsageError
from edgespec.sampling.parameters import is_greedy
from edgespec.sampling.softmax import log_normalizer
from edgespec.speculation.acceptance import (
    ACCEPT_COUPLED,
    ACCEPT_REJECTION,
    ACCEPT_TYPICAL,
    DrawSettings,
)
from edgespec.tuning.setting import SettingFigures

__all__ = [
    "Cycle",
    "CycleReport",
    "GenerationTrace",
    "LogprobReader",
    "Origin",
    "Statistics",
    "TokenLogprobs",
    "Trace",
    "costs_and_learning",
    "request_facts",
]

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


_RULES = {ACCEPT_REJECTION: "rejection", ACCEPT_COUPLED: "coupled", ACCEPT_TYPICAL: "typical"}

_ENOUGH_STEPS = 4
"""Steps without proposals that tell what one costs."""


class Origin(str, Enum):
    """Where an emitted token came from."""

    ACCEPTED = "accepted"  # proposed by the drafter
    CORRECTED = "corrected"  # drawn by the target in place of a rejected proposal
    BONUS = "bonus"  # drawn by the target after a block that was accepted whole
    PLAIN = "plain"  # drawn by the target with nothing proposed


class Cycle(NamedTuple):
    """What one cycle emitted: tokens, where each came from, and how likely it was if asked.

    Attributes:
        pieces: the bytes each token stands for; those of a control token are none.
    """

    tokens: list[int]
    origins: list[Origin]
    pieces: list[bytes]
    logprobs: list[TokenLogprobs] | None = None


class Tried(NamedTuple):
    """What a cycle proposed, and which of it stayed.

    Attributes:
        tokens, parents: int32 (n,), as in `DraftTree`; a chain is the tree of its tokens.
        path: int32 (accepted,), the nodes that stayed, from the text on.
    """

    tokens: Int32Array
    parents: Int32Array
    path: Int32Array

    def refused(self) -> list[list[int]]:
        """Return the branches that did not stay, each from where it leaves the path to its end."""
        kept = set(self.path.tolist())
        inner = set(self.parents.tolist())
        branches = []
        for leaf in range(len(self.tokens)):
            if leaf in inner or leaf in kept:
                continue
            branch, node = [], leaf
            while node >= 0 and node not in kept:
                branch.append(int(self.tokens[node]))
                node = int(self.parents[node])
            branches.append(branch[::-1])
        return branches


class CycleReport(NamedTuple):
    """A committed cycle, for those who watch.

    Attributes:
        drafter: name of what proposed; "none" if nothing was proposed.
        budget: what it might spend; the arrays are valid until the next cycle.
        timing: sizes and seconds of its parts.
        predicted_s: seconds predicted for the evaluation, if there was a prediction.
        seconds: of the whole cycle.
        cycle: what it emitted.
        tried: what it proposed.
    """

    drafter: str
    budget: DraftBudget
    timing: CycleTiming
    predicted_s: float | None
    seconds: float
    cycle: Cycle
    tried: Tried


@dataclass
class Statistics:
    """Counters that the decoder adds to; times in seconds.

    Attributes:
        reused_tokens: tokens of the prompt that the cache held already.
        cycles: target evaluations after the prefill.
        proposed, accepted: tokens. What stands behind the end of the answer is not counted: its
            last cycle counts as if it had proposed no more than stands before its last token.
        bonus: tokens drawn after a cycle that accepted all its proposals.
        fallback_cycles: cycles in which a drafter had nothing credible to propose.
        k_histogram: block length -> cycles that had it.
        plain_steps_s: what each step without proposals took that followed another such step.
    """

    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    sample_s: float = 0.0
    decode_s: float = 0.0
    reused_tokens: int = 0
    emitted: int = 0
    cycles: int = 0
    proposed: int = 0
    accepted: int = 0
    bonus: int = 0
    fallback_cycles: int = 0
    k_histogram: Counter[int] = field(default_factory=Counter)
    plain_steps_s: list[float] = field(default_factory=list)

    def count_cycle(self, proposed: int, accepted: int, drafting: bool) -> None:
        """Add one cycle of `proposed` tokens, the first `accepted` of which stayed."""
        self.cycles += 1
        self.proposed += proposed
        self.accepted += accepted
        self.bonus += 0 < proposed == accepted
        self.fallback_cycles += drafting and proposed == 0
        self.k_histogram[proposed] += 1

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second of decoding, prefill left out."""
        return self.emitted / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def tokens_per_cycle(self) -> float | None:
        """Emitted tokens per target evaluation; None before the first."""
        return self.emitted / self.cycles if self.cycles else None

    @property
    def plain_tokens_per_second(self) -> float | None:
        """Tokens per second without proposals, by this answer's own steps without them.

        None where nothing was proposed, or too few such steps were there. A cycle costs no less
        than one of these steps, so that the answer's speed over tokens a cycle is the least.
        """
        steps = sorted(self.plain_steps_s)
        if not self.proposed or len(steps) < _ENOUGH_STEPS:
            return None
        least = self.tokens_per_second * self.cycles / self.emitted
        return max(1.0 / steps[len(steps) // 2], least)

    @property
    def speedup(self) -> float | None:
        """Over plain decoding, up to `tokens_per_cycle`; None where that is not known."""
        plain = self.plain_tokens_per_second
        return None if plain is None else self.tokens_per_second / plain

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the proposed tokens that were accepted; None if none was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    def timings(self) -> dict[str, float]:
        """Return the ``timings`` object of ``edgespec run --json``."""
        return {
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "sample_s": self.sample_s,
            "tokens_per_second": self.tokens_per_second,
        }

    def speculation(self) -> dict[str, Any]:
        """Return the ``speculation`` object of ``edgespec run --json``."""
        return {
            "cycles": self.cycles,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "bonus": self.bonus,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_cycle": self.tokens_per_cycle,
            "k_histogram": {str(k): n for k, n in sorted(self.k_histogram.items())},
            "fallback_cycles": self.fallback_cycles,
        }


_DIGITS = 7  # of seconds
_SHORT_ID = 12


class Trace:
    """A file that lines are appended to; a crash loses the one being written, at most.

    Args:
        path: made if it is not there, readable for the user only.

    Raises:
        UsageError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # generations may end in other threads
        self._open = True
        try:
            path.touch(mode=0o600)
            self._file = path.open("ab", buffering=0)
        except (OSError, ValueError) as error:
            raise UsageError(self._complaint(error)) from None

    def begin(self, facts: Mapping[str, Any]) -> GenerationTrace:
        """Write what a generation starts from."""
        return GenerationTrace(self, facts)

    def write(self, line: dict[str, Any]) -> None:
        """Append it, unless the file was closed.

        Raises:
            EdgespecError: the disk is full, or gone; nothing more is written.
        """
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if not self._open:
                return
            try:
                self._file.write(data)
            except OSError as error:
                self._open = False
                raise EdgespecError(self._complaint(error)) from None

    def close(self) -> None:
        """Close the file; what generations still write is dropped."""
        with self._lock:
            self._open = False
            self._file.close()

    def _complaint(self, error: Exception) -> str:
        reason = getattr(error, "strerror", None) or error
        return f"cannot write the trace {self._path}: {reason}"


class GenerationTrace:
    """The lines of one generation; the first one is written at once."""

    def __init__(self, trace: Trace, facts: Mapping[str, Any]) -> None:
        self._trace = trace
        self._id = uuid.uuid4().hex[:_SHORT_ID]
        self._write("generation", facts)

    def cycle(self, report: CycleReport) -> None:
        """Write one cycle."""
        timing, predicted_s = report.timing, report.predicted_s
        acceptance = report.budget.acceptance[: timing.proposed]
        self._write(
            "cycle",
            {
                "drafter": report.drafter,
                "depth": timing.depth,
                "n": timing.evaluated,
                "predicted_s": None if predicted_s is None else round(predicted_s, _DIGITS),
                "verify_s": round(timing.verify_s, _DIGITS),
                "draft_s": round(timing.draft_s, _DIGITS),
                "seconds": round(report.seconds, _DIGITS),
                "proposed": timing.proposed,
                "accepted": timing.emitted - 1,
                "tokens": report.cycle.tokens,
                "origins": [origin.value for origin in report.cycle.origins],
                "acceptance": [round(float(a), 4) for a in acceptance],
            },
        )

    def end(self, finish_reason: str | None, emitted: int, statistics: Statistics) -> None:
        """Write how it ended; without a reason it failed, or nobody wanted the rest."""
        self._write(
            "end",
            {
                "finish_reason": finish_reason,
                "emitted": emitted,
                "timings": statistics.timings(),
                "speculation": statistics.speculation(),
            },
        )

    def _write(self, kind: str, content: Mapping[str, Any]) -> None:
        self._trace.write({"type": kind, "id": self._id, **content})


def costs_and_learning(
    setting: SettingFigures | None, policy: Policy, drafter: Drafter, ngram: Mapping[str, Any]
) -> dict[str, Any]:
    """Return measured costs, their corrections, and what was learned about drafting until now.

    Args:
        ngram: what was learned about prompt lookup.
    """
    costs = None
    if setting is not None:
        costs = {name: getattr(setting, name) for name in ("depths", "sizes", "seconds")}
        costs["switch_s"] = setting.switch_s
    return {
        "costs": costs,
        "corrections": policy.costs and policy.costs.corrections(),
        "learned": {"ngram": ngram, "draft": drafter.learned().model},
    }


def request_facts(max_tokens: int | None, settings: DrawSettings) -> dict[str, Any]:
    """Return how a generation was asked for."""
    return {
        "max_tokens": max_tokens,
        "temperature": float(settings.arguments.temperature),
        "rule": "greedy" if is_greedy(settings.arguments) else _RULES[settings.rule],
    }
