"""Top-n-sigma: keep the logits within n standard deviations of the largest.

Tang et al. (2024), "Top-nσ: Not All Logits Are You Need". The threshold does not move with the
temperature, as mean and deviation are those of the logits.
"""

from __future__ import annotations

import math

import numpy as np

from edgespec._types import Float32Array
from edgespec.sampling.kernel import kernel
from edgespec.sampling.softmax import argmax

__all__ = ["LEAST_LOGIT", "sigma_floor"]

LEAST_LOGIT: np.float32 = np.float32(np.finfo(np.float32).min)
"""What every logit but -inf reaches."""


@kernel
def _below(logit: np.float32, largest: np.float32) -> float:
    """How far below the largest, in float64; 0 for -inf, which does not count."""
    below: float = float(logit) - float(largest) if logit > -np.inf else 0.0
    return below


@kernel
def sigma_floor(logits: Float32Array, n_sigma: float) -> np.float32:
    """The smallest logit to keep, finite: the largest minus n_sigma standard deviations.

    All logits but those of -inf count. `LEAST_LOGIT` if n_sigma is 0 or less, or if a logit is
    NaN or +inf, which is for others to report.
    """
    best = argmax(logits) if n_sigma > 0.0 else -1
    if best < 0 or logits[best] == -np.inf:
        return LEAST_LOGIT
    largest = logits[best]
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = len(logits) - len(logits) % 2
    number = 0
    for i in range(0, whole, 2):
        x, y = _below(logits[i], largest), _below(logits[i + 1], largest)
        number += int(logits[i] > -np.inf) + int(logits[i + 1] > -np.inf)
        a += x
        b += y
        c += x * x
        d += y * y
    for i in range(whole, len(logits)):
        x = _below(logits[i], largest)
        number += int(logits[i] > -np.inf)
        a += x
        c += x * x
    mean = (a + b) / number
    deviation = math.sqrt(max((c + d) / number - mean * mean, 0.0))
    floor: np.float32 = np.float32(max(float(largest) - n_sigma * deviation, float(LEAST_LOGIT)))
    return floor
