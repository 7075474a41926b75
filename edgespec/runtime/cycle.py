"""What one cycle emitted, and what all cycles of a generation took and brought."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from edgespec.control.budget import DraftBudget
from edgespec.control.controller import CycleTiming
from edgespec.runtime.logprobs import TokenLogprobs

__all__ = ["Cycle", "CycleReport", "Origin", "Statistics"]


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


class CycleReport(NamedTuple):
    """A committed cycle, for those who watch.

    Attributes:
        drafter: name of what proposed; "none" if nothing was proposed.
        budget: what it might spend; the arrays are valid until the next cycle.
        timing: sizes and seconds of its parts.
        predicted_s: seconds predicted for the evaluation, if there was a prediction.
        seconds: of the whole cycle.
        cycle: what it emitted.
    """

    drafter: str
    budget: DraftBudget
    timing: CycleTiming
    predicted_s: float | None
    seconds: float
    cycle: Cycle


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
