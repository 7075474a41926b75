"""Summarize pairs: medians of ratios by category, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["alpha_by_position", "by_depth", "median_interval", "summarize"]

_RESAMPLES = 2000
_ALL = "all"

Pair = dict[str, Any]


def median_interval(values: Sequence[float] | np.ndarray[Any, Any]) -> dict[str, float]:
    """Return the median and its 95% bootstrap interval (percentile method)."""
    values = np.asarray(values, np.float64)
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(values, (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return {"median": float(np.median(values)), "low": float(low), "high": float(high)}


def summarize(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return a line for each temperature and category, and one for all of a temperature.

    Ratios are speculative / plain. Faster is above 1 for tokens per second, and below 1 for
    seconds to the first token.
    """
    lines = []
    for temperature in dict.fromkeys(pair["temperature"] for pair in pairs):
        part = [pair for pair in pairs if pair["temperature"] == temperature]
        for category in dict.fromkeys(pair["category"] for pair in part):
            own = [pair for pair in part if pair["category"] == category]
            lines.append(_line(temperature, category, own))
        lines.append(_line(temperature, _ALL, part))
    return lines


def _line(temperature: float, category: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    plain, speculative = ([pair[side] for pair in pairs] for side in ("plain", "speculative"))
    speeds = [[_speed(run) for run in side] for side in (plain, speculative)]
    proposed = sum(sum(run["tried"]) for run in speculative)
    cycles = sum(run["cycles"] for run in speculative)
    line = {
        "temperature": temperature,
        "category": category,
        "pairs": len(pairs),
        "plain_tokens_per_second": float(np.median(speeds[0])),
        "tokens_per_second": float(np.median(speeds[1])),
        "speedup": median_interval(np.divide(speeds[1], speeds[0])),
        "first_token": median_interval(
            [
                b["first_token_s"] / a["first_token_s"]
                for a, b in zip(plain, speculative, strict=True)
            ]
        ),
        "tokens_per_cycle": sum(run["tokens"] for run in speculative) / max(1, cycles),
        "acceptance_rate": _share(sum(sum(run["accepted"]) for run in speculative), proposed),
        "energy": _energy(plain, speculative),
    }
    if temperature == 0:
        line["same_texts"] = sum(pair["same_text"] for pair in pairs)
    return line


def alpha_by_position(pairs: Sequence[Pair]) -> list[float]:
    """Return the share accepted at each position of a block, of the proposals judged."""
    longest = max((len(pair["speculative"]["tried"]) for pair in pairs), default=0)
    tried, accepted = np.zeros(longest), np.zeros(longest)
    for pair in pairs:
        run = pair["speculative"]
        tried[: len(run["tried"])] += run["tried"]
        accepted[: len(run["accepted"])] += run["accepted"]
    return [float(share) for share in accepted / np.maximum(tried, 1)]


def by_depth(pairs: Sequence[Pair], side: str) -> dict[int, float]:
    """Return tokens per second of decoding, by tokens in the cache in steps of 256."""
    totals: dict[int, list[float]] = {}
    for pair in pairs:
        for depth, (tokens, seconds) in pair[side]["depths"].items():
            total = totals.setdefault(int(depth), [0.0, 0.0])
            total[0] += tokens
            total[1] += seconds
    return {depth: tokens / seconds for depth, (tokens, seconds) in sorted(totals.items())}


def _speed(run: dict[str, Any]) -> float:
    return float(run["tokens"] / run["decode_s"])


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _energy(plain: Sequence[Pair], speculative: Sequence[Pair]) -> dict[str, float] | None:
    """Return the ratio of joules per token, prompts included; None if nothing reports them."""
    ratios = [
        (b["joules"] / b["tokens"]) / (a["joules"] / a["tokens"])
        for a, b in zip(plain, speculative, strict=True)
        if a["joules"] and b["joules"]
    ]
    return median_interval(ratios) if ratios else None
