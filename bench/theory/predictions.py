"""Predict the speedup of an answer from its acceptance, and from costs measured before.

There are three predictions, each with more of what happened: the theorem with one chance of
acceptance, with one for each position in the block, and the costs of the cycles as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.theory.answers import Answer, Cycle
from bench.theory.costs import Known
from edgespec.control.speedup import expected_speedups

__all__ = ["Prediction", "acceptance", "one_chance", "plain_s", "predict"]


@dataclass(frozen=True)
class Prediction:
    """Predicted speedups over plain decoding, and the ratios between them.

    Attributes:
        one_alpha: Leviathan et al. (2023), theorem 3.8, with measured costs and one alpha, over
            the block lengths that happened.
        textbook: the same with an alpha for each position of the block (prediction A).
        cycles: by the costs of every cycle at its depth (prediction B).
        runs: textbook / one_alpha: acceptance comes in runs, so that a proposal after accepted
            ones is accepted more often than the first.
        lengths: tokens per cycle emitted / expected if alphas and lengths were independent: blocks
            are longer where more is accepted.
        costs: the rest of cycles / textbook: depths, drafts reading the prompt, tokens dropped
            after the end.
    """

    one_alpha: float
    textbook: float
    cycles: float
    runs: float
    lengths: float
    costs: float

    @property
    def varying(self) -> float:
        """The effect of alpha varying along the text: Jensen's inequality."""
        return self.runs * self.lengths

    def as_json(self) -> dict[str, float]:
        """Return everything."""
        return {**asdict(self), "varying": self.varying}


def acceptance(cycles: Sequence[Cycle]) -> list[float]:
    """Return the share accepted of the proposals judged, by position in the block.

    A position where none was judged has the share of the one before.
    """
    alpha: list[float] = []
    for position in range(max((c.proposed for c in cycles), default=0)):
        judged = sum(min(c.emitted, c.proposed) > position for c in cycles)
        accepted = sum(c.emitted - 1 > position for c in cycles)
        alpha.append(accepted / judged if judged else alpha[-1])
    return alpha


def one_chance(cycles: Sequence[Cycle]) -> float:
    """Accepted / judged, over all positions; 0 if nothing was proposed."""
    judged = sum(min(c.emitted, c.proposed) for c in cycles)
    return sum(c.emitted - 1 for c in cycles) / judged if judged else 0.0


def plain_s(answer: Answer, known: Known) -> float:
    """Seconds of plain decoding of this answer's tokens by the table."""
    return sum(
        known.plain.evaluation_s(1, cycle.depth + i)
        for turn in answer.turns
        for cycle, count in turn.kept()
        for i in range(count)
    )


def predict(answer: Answer, known: Known) -> Prediction:
    """Predict the speedup of a speculative answer, using its counts but not its times."""
    cycles = answer.cycles
    alpha, alone = acceptance(cycles), one_chance(cycles)
    one_alpha, _ = _theorem([alone] * len(alpha), cycles, known)
    textbook, tokens = _theorem(alpha, cycles, known)
    evaluations_s = sum(known.speculative.evaluation_s(c.evaluated, c.depth) for c in cycles)
    took_s = evaluations_s + sum(known.drafting.of_cycles(answer.turns))
    by_cycle = plain_s(answer, known) / took_s
    lengths = sum(c.emitted for c in cycles) / len(cycles) / tokens
    costs = by_cycle / (textbook * lengths)
    return Prediction(one_alpha, textbook, by_cycle, textbook / one_alpha, lengths, costs)


def _theorem(alpha: Sequence[float], cycles: Sequence[Cycle], known: Known) -> tuple[float, float]:
    """Return speedup and tokens per cycle at the mean depth, over the lengths that happened."""
    depth = sum(c.depth for c in cycles) / len(cycles)
    plain = known.plain.evaluation_s(1, depth)
    v = [known.speculative.evaluation_s(n, depth) / plain for n in range(1, len(alpha) + 2)]
    found = {
        drafted: expected_speedups(alpha, v, known.drafting.step_s / plain if drafted else 0.0)
        for drafted in (False, True)
    }
    tokens = cost = 0.0
    for (k, drafted), count in Counter((c.proposed, c.drafted) for c in cycles).items():
        expected = found[drafted][k]
        tokens += count * expected.tokens
        cost += count * (expected.cost + known.drafting.lookup_s / plain)
    return tokens / cost, tokens / len(cycles)
