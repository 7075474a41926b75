"""Several proposals for one position, tried in order: recursive rejection sampling, exactly.

A rejected sibling turns the target into its residual, p <- norm((p - q)+), against which the next
sibling is judged; when all are rejected, the token is drawn from what p has become. Each step is
the one-proposal rule with its own p and q, and leaves exactly the residual to the next, whatever
q the next sibling is drawn from. Hence the output is distributed as the first p, for both ways to
draw:

* with replacement: siblings are independent draws from q, as in the multi-step speculative
  sampling of SpecInfer (Miao et al. 2024, algorithm 2 and theorem 4.2);
* without: each is drawn from q without the tokens rejected before, normalized again (Jeon et al.
  2024, "Recursive Speculative Decoding", recursive rejection sampling). The acceptance test has
  to use that q, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from edgespec.lab.theory import ZERO, Distribution, decompose, normalized

__all__ = ["TooManyCasesError", "TreeOutcome", "siblings"]


class TooManyCasesError(ValueError):
    """The tree of rejected tokens has more nodes than the caller allows."""


@dataclass(frozen=True)
class TreeOutcome:
    """What a list of siblings emits.

    Attributes:
        accepted: probability that the i-th sibling is the accepted one.
        output: distribution of the emitted token.
    """

    accepted: tuple[Fraction, ...]
    output: Distribution

    @property
    def some_accepted(self) -> Fraction:
        """Return the probability that one of the siblings is accepted."""
        return sum(self.accepted, ZERO)


def siblings(
    p: Distribution,
    q: Distribution,
    count: int,
    *,
    replacement: bool = True,
    max_cases: int | None = None,
) -> TreeOutcome:
    """Follow every sequence of rejections, and add up what each emits.

    Args:
        p, q: distributions of the same length.
        count: number of siblings, at least 1.
        replacement: draw siblings independently from q; otherwise without the rejected ones.
            Fewer than `count` are drawn when q has no token left.
        max_cases: give up after so many steps. With replacement there are at most `count`:
            what p becomes does not depend on which token was rejected. Without, they grow like
            the number of ordered selections of tokens.

    Raises:
        TooManyCasesError: more than `max_cases`.
    """
    return _Walk(replacement, max_cases).outcome(p, q, count)


class _Walk:
    """Every sequence of rejections, depth first."""

    def __init__(self, replacement: bool, max_cases: int | None) -> None:
        self._replacement = replacement
        self._max_cases = max_cases
        self._cases = 0

    def outcome(self, p: Distribution, q: Distribution, left: int) -> TreeOutcome:
        """Return what the remaining siblings emit."""
        if left == 0 or not any(q):
            return TreeOutcome((ZERO,) * left, p)
        self._count()
        step = decompose(p, q)
        accepted = [step.alpha] + [ZERO] * (left - 1)
        output = list(step.accepted)
        if step.residual is not None:
            # After the last sibling nothing is drawn from q: which token it was is the same.
            together = self._replacement or left == 1
            for probability, rest in _rejections(step.rejected, q, together):
                below = self.outcome(step.residual, rest, left - 1)
                # Added up here, level by level: the branches' different denominators cancel.
                for token, mass in enumerate(below.output):
                    output[token] += probability * mass
                for i, mass in enumerate(below.accepted, 1):
                    accepted[i] += probability * mass
        return TreeOutcome(tuple(accepted), tuple(output))

    def _count(self) -> None:
        self._cases += 1
        if self._max_cases is not None and self._cases > self._max_cases:
            raise TooManyCasesError(f"more than {self._max_cases} cases")


def _rejections(
    rejected: Distribution, q: Distribution, together: bool
) -> Iterator[tuple[Fraction, Distribution]]:
    """Yield the probability of each kind of rejection, and q for the next sibling."""
    if together:
        yield sum(rejected, ZERO), q
        return
    for token, probability in enumerate(rejected):
        if probability:
            rest = (*q[:token], ZERO, *q[token + 1 :])
            yield probability, normalized(rest) or rest
