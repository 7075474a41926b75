"""What the target says of the tokens a draft has, from its stored hidden states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgespec.distill.vocabulary import DraftVocabulary
from edgespec.distill.weights import TargetWeights

__all__ = ["Judgement", "Teacher", "by_position"]


class Judgement(NamedTuple):
    """How a draft does at some tokens: float32, 0 to 1 each.

    Attributes:
        greedy: whether its most likely next token is the target's.
        overlap: 1 - TV at temperature 1: the sum of min(p, q), p over the whole vocabulary.
    """

    greedy: Tensor
    overlap: Tensor


class Teacher:
    """The target's distribution over the draft's tokens, and over all of them."""

    def __init__(self, weights: TargetWeights, vocabulary: DraftVocabulary) -> None:
        self._weights = weights
        self.vocabulary = vocabulary
        self.rows = torch.from_numpy(weights.output_rows(vocabulary.target_ids))
        self._target_ids = torch.from_numpy(vocabulary.target_ids.astype(np.int64))

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, width) -> (n, draft tokens)."""
        logits: Tensor = self._weights.capped(hidden @ self.rows.T)
        return logits

    def log_p(self, hidden: Tensor) -> Tensor:
        """Logarithm of p, renormalized over the draft's tokens: what a draft is trained on."""
        return self.logits(hidden).log_softmax(-1)

    def judge(self, logits: Tensor, hidden: Tensor, top: Tensor, normalizer: Tensor) -> Judgement:
        """Compare a draft's logits (n, draft tokens) with p: not renormalized here."""
        p = (self.logits(hidden) - normalizer[:, None]).exp()
        overlap = torch.minimum(p, logits.softmax(-1)).sum(-1)
        greedy = self._target_ids[logits.argmax(-1)] == top
        return Judgement(greedy.float(), overlap)


def by_position(steps: list[Tensor]) -> list[float]:
    """Acceptance of each proposal of a block, if all before it were accepted.

    Args:
        steps: for each position (rows, length): chance that it is accepted in a block that
            begins behind this token; NaN where there is no such proposal.
    """
    found, before = [], torch.ones_like(steps[0])
    for step in steps:
        known = ~torch.isnan(before * step)
        weight = before[known].sum()
        product = before * step
        found.append(float(product[known].sum() / weight) if weight > 0 else 0.0)
        before = product
    return found
