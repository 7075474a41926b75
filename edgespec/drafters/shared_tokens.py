"""What two vocabularies of different families have in common: tokens with the same bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.errors import PairingError

__all__ = ["SharedTokens", "share_tokens"]


_LEAST_COVERAGE = 0.5
_SAMPLE = """\
The lock keeper writes the level of the river into his book every evening at six o'clock. In
spring, when the snow melts, it rises by almost two metres; by August you can walk across. "Why do
you still write it down?" asked the girl. He laughed: because his father did, and nobody had told
him to stop. To find the average of a list, add its numbers and divide the sum by how many there
are. For example, the average of 12, 15, 20 and 33 is 80 / 4 = 20.

1. Preheat the oven to 180 degrees.
2. Mix 250 g of flour with a pinch of salt, then stir in the eggs, one after the other.

def average(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

for (int i = 0; i < count; i++) { printf("%d\\n", items[i]); }
{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}

Der Fluss ist im Frühling höher als im Herbst. La rivière est plus basse en été. El río crece en
primavera. Река поднимается весной. 春になると川の水が増える。
"""


@dataclass(frozen=True)
class SharedTokens:
    """Pairs of token ids that stand for the same bytes.

    Attributes:
        target, draft: int32 (n,), the ids of each pair in the two vocabularies.
        coverage: the share of the target's tokens of an ordinary text that are among them.
    """

    target: Int32Array
    draft: Int32Array
    coverage: float

    def __str__(self) -> str:
        return (
            f"{len(self.target):,} tokens have the same bytes in both, "
            f"{self.coverage:.0%} of those in an ordinary text"
        )


def share_tokens(target: Vocabulary, draft: Vocabulary) -> SharedTokens:
    """Pair the tokens of two vocabularies by their bytes; control tokens are left out.

    Raises:
        PairingError: they share too little for proposals to be of use.
    """
    ours, theirs = target.by_bytes, draft.by_bytes
    pairs = sorted((token, theirs[text]) for text, token in ours.items() if text in theirs)
    known = {token for token, _ in pairs}
    sample = target.tokenize(_SAMPLE, add_special=False).tolist()
    shared = SharedTokens(
        np.array([token for token, _ in pairs], np.int32),
        np.array([token for _, token in pairs], np.int32),
        sum(token in known for token in sample) / len(sample),
    )
    if shared.coverage < _LEAST_COVERAGE:
        raise PairingError(
            f"the draft does not fit: its tokenizer is another one, and only {shared}, where "
            f"{_LEAST_COVERAGE:.0%} are needed: take one of the target's family, or --draft ngram"
        )
    return shared
