"""Compare measured with predicted speedups by prompt, and explain the outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.theory.answers import Answer
from bench.theory.costs import Known
from bench.theory.factors import FACTORS, decompose
from bench.theory.predictions import acceptance, predict
from edgespec.benchmark.results import median_interval

__all__ = ["LEAST", "SPREADS", "make_row", "mark_outliers", "rank_correlation", "summarize"]

LEAST, SPREADS = 0.05, 3.0
"""An outlier is off by more than LEAST, and by more than SPREADS robust standard deviations."""

_ROBUST = 1.4826  # standard deviations of a normal distribution in its median absolute deviation
_FEWEST = 3  # prompts that can be ranked, or show what is usual

Row = dict[str, Any]

_WORDS = {
    "plain": "steps of plain decoding took {ratio} times what the table says",
    "text": "the texts differ, and so do the depths of their tokens",
    "same": "evaluations of as many tokens as the one before took {ratio} times the table's",
    "changed": "evaluations of another number of tokens than the one before took {ratio} times "
    "the table's",
    "first": "the first evaluations behind a prompt took {ratio} times the table's",
    "drafting": "drafting took {ratio} times what was measured before",
    "overhead": "sampling, text and Python took {own} of speculative decoding, {plain} of plain",
}


def make_row(
    task: str, category: str, k: str, rounds: Sequence[tuple[Answer, Answer]], known: Known
) -> Row:
    """Make the row of one prompt with one k.

    It predicts and explains the round of the median speedup (the lower of two in the middle), so
    that the product of the factors is exact.

    Args:
        rounds: plain and speculative answers.
    """
    speedups = [_token_s(plain) / _token_s(fast) for plain, fast in rounds]
    middle = int(np.argsort(speedups, kind="stable")[(len(speedups) - 1) // 2])
    plain, fast = rounds[middle]
    prediction, parts = predict(fast, known), decompose(plain, fast, known)
    cycles = fast.cycles
    return {
        "task": task,
        "category": category,
        "k": k,
        "speedups": speedups,
        "round": middle,
        "measured": speedups[middle],
        "interval": median_interval(speedups),
        "textbook": prediction.textbook,
        "by_cycle": prediction.cycles,
        "between": prediction.as_json(),
        "off": math.log(speedups[middle] / prediction.cycles),
        **parts.as_json(),
        "alpha": acceptance(cycles),
        "proposed_a_cycle": sum(c.proposed for c in cycles) / len(cycles),
        "tokens_a_cycle": sum(c.emitted for c in cycles) / len(cycles),
        "same_text": all(plain.digest == fast.digest for plain, fast in rounds),
    }


def _token_s(answer: Answer) -> float:
    return answer.seconds / answer.tokens


def mark_outliers(rows: Sequence[Row]) -> float:
    """Give every row of one k its "outlier", a sentence or None.

    Standard deviations are around 0, where the prediction is right, not around the middle of the
    rows. What all rows have in common is no outlier; `summarize` shows it.

    Returns:
        The bound of |log(measured / by_cycle)|.
    """
    spread = _ROBUST * float(np.median([abs(row["off"]) for row in rows]))
    if len(rows) < _FEWEST:
        spread = 0.0  # nothing is known of what is usual
    bound = max(math.log1p(LEAST), SPREADS * spread)
    for row in rows:
        row["outlier"] = _sentence(row) if abs(row["off"]) > bound else None
    return bound


def largest_factor(row: Row) -> str:
    """Return the factor that moves the speedup furthest in the direction in which it is off."""
    sign = math.copysign(1.0, row["off"])
    return max(FACTORS, key=lambda name: sign * math.log(row["factors"][name]))


def _sentence(row: Row) -> str:
    name = largest_factor(row)
    parts, ratio = row["parts"], "-"
    # A machine that was slower on both sides does not explain anything.
    predicted = row["both"] * parts.get(name, {"predicted": 0.0})["predicted"]
    if predicted > 0:
        ratio = f"{parts[name]['measured'] / predicted:.2f}"
    words = _WORDS[name].format(
        ratio=ratio,
        own=f"{_share(parts, 'overhead', ('same', 'changed', 'first', 'drafting')):.0%}",
        plain=f"{_share(parts, 'plain overhead', ('plain',)):.0%}",
    )
    return (
        f"{row['task']}, k {row['k']}: {row['measured']:.2f} in place of {row['by_cycle']:.2f}, "
        f"above all as {words} (factor {row['factors'][name]:.2f})"
    )


def _share(parts: dict[str, Any], name: str, others: Sequence[str]) -> float:
    own = parts[name]["measured"]
    return float(own / (own + sum(parts[other]["measured"] for other in others)))


def summarize(rows: Sequence[Row], bound: float) -> dict[str, Any]:
    """Return how good each prediction is over the prompts of one k, and the median factors."""
    measured = [row["measured"] for row in rows]
    predictions = {}
    for name in ("textbook", "by_cycle"):
        found = [row[name] for row in rows]
        errors = [abs(p / m - 1) for p, m in zip(found, measured, strict=True)]
        predictions[name] = {
            "rank_correlation": rank_correlation(found, measured),
            "median_error": float(np.median(errors)),
        }
    return {
        "k": rows[0]["k"],
        "prompts": len(rows),
        "predictions": predictions,
        "factors": {n: float(np.median([row["factors"][n] for row in rows])) for n in FACTORS},
        "varying": float(np.median([row["between"]["varying"] for row in rows])),
        "outlier_bound": bound,
        "outliers": sum(row["outlier"] is not None for row in rows),
        "same_texts": sum(row["same_text"] for row in rows),
    }


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's correlation, or None for too few values or all equal.

    Equal values share their mean rank.
    """
    if len(x) < _FEWEST or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, np.float64)
    below = (array[None, :] < array[:, None]).sum(axis=1)
    equal = (array[None, :] == array[:, None]).sum(axis=1)
    return below + (equal - 1) / 2
