"""Compute p in float64 NumPy, to compare the compiled filters with.

Shares no code with the sampling package: everything is sorted, and summed in double precision.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec._types import Float32Array, Float64Array
from edgespec.errors import UsageError
from edgespec.sampling.parameters import SamplingParameters

__all__ = ["expected_distribution", "is_clear_cut", "softmax", "total_variation"]


_ROUNDING = 1e-5


def softmax(logits: npt.NDArray[np.floating], temperature: float = 1.0) -> Float64Array:
    """Return float64 probabilities of finite or -inf logits."""
    values = logits.astype(np.float64) / temperature
    weights: Float64Array = np.exp(values - values.max())
    weights /= weights.sum()
    return weights


def total_variation(a: Float64Array, b: Float64Array) -> float:
    """Return half the sum of absolute differences of two distributions: 0 to 1."""
    return float(0.5 * np.abs(a - b).sum())


def expected_distribution(
    logits: Float32Array, parameters: SamplingParameters, slack: float = 0.0
) -> Float64Array:
    """Return the distribution after top-k, top-p, min-p and temperature: float64 (n_vocab,).

    They apply in this order, each to what the one before left.

    Args:
        logits: float32 (n_vocab,).
        parameters: with nothing else set; temperature above 0.
        slack: moves the thresholds of top-p and min-p, to see whether rounding decides.

    Raises:
        UsageError: the parameters ask for something else.
    """
    known = SamplingParameters(
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        seed=parameters.seed,
    )
    if parameters != known or parameters.temperature <= 0.0:
        raise UsageError("verification knows top-k, top-p, min-p and temperatures above 0 only")
    kept = np.argsort(-logits, kind="stable")
    if parameters.top_k > 0:
        kept = kept[: parameters.top_k]
    if parameters.top_p < 1.0:
        mass = np.cumsum(softmax(logits[kept]))
        kept = kept[: 1 + int(np.searchsorted(mass, parameters.top_p + slack))]
    if parameters.min_p > 0.0:
        p = softmax(logits[kept])
        kept = kept[p >= parameters.min_p * p[0] * (1.0 + slack)]
    expected = np.zeros(len(logits))
    expected[kept] = softmax(logits[kept], parameters.temperature)
    return expected


def is_clear_cut(logits: Float32Array, parameters: SamplingParameters) -> bool:
    """Return whether the same tokens pass when rounding moves the thresholds a little."""
    low = expected_distribution(logits, parameters, -_ROUNDING)
    high = expected_distribution(logits, parameters, _ROUNDING)
    return bool(np.array_equal(low > 0.0, high > 0.0))
