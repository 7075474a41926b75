"""Where the time went and what speculation brought, for one generation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Statistics"]


@dataclass
class Statistics:
    """Counters that the decoder adds to; times in seconds.

    Attributes:
        reused_tokens: tokens of the prompt that the cache held already.
        cycles: target evaluations after the prefill.
        proposed, accepted: tokens.
        bonus: tokens drawn after a cycle that accepted all its proposals.
        fallback_cycles: cycles in which a drafter had nothing credible to propose.
        k_histogram: block length -> cycles that had it.
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
        """Emitted tokens by the second of decoding, prefill left out."""
        return self.emitted / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the proposed tokens that were accepted; None if none was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    def timings(self) -> dict[str, float]:
        """The ``timings`` object of ``edgespec run --json``."""
        return {
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "sample_s": self.sample_s,
            "tokens_per_second": self.tokens_per_second,
        }

    def speculation(self) -> dict[str, Any]:
        """The ``speculation`` object of ``edgespec run --json``."""
        return {
            "cycles": self.cycles,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "bonus": self.bonus,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_cycle": self.emitted / self.cycles if self.cycles else None,
            "k_histogram": {str(k): n for k, n in sorted(self.k_histogram.items())},
            "fallback_cycles": self.fallback_cycles,
        }
