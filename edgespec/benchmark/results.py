"""Keep results on disk, a line for each pair, and summarize them: medians with their intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import EdgespecError, UsageError

__all__ = ["Results", "alpha_by_position", "by_depth", "median_interval", "summarize"]

_FORMAT = "edgespec-bench 1"


class Results:
    """Lines of a file, or of memory only.

    The first line has the settings and the machine; every other line is a pair: a task at a
    temperature in a round, with what both sides did.

    Args:
        path: continued if it exists and has the same settings; None keeps nothing.
        settings: what pairs of one file have in common.
        facts: of the machine; a file that is continued keeps those of its first run.

    Raises:
        UsageError: the file is something else, or has other settings.
        EdgespecError: it cannot be written.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], facts: dict[str, Any]) -> None:
        self.path = path
        self.head: dict[str, Any] = {"format": _FORMAT, "settings": settings, "machine": facts}
        self.pairs: list[dict[str, Any]] = []
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._continue(path, settings)
        else:
            self._append(self.head)

    def add(self, pair: dict[str, Any]) -> None:
        """Keep a pair.

        Raises:
            EdgespecError: it cannot be written.
        """
        self.pairs.append(pair)
        if self.path is not None:
            self._append(pair)

    def has(self, task: str, temperature: float, round_: int) -> bool:
        """Return whether this pair was measured before."""
        wanted = (task, temperature, round_)
        return any((p["task"], p["temperature"], p["round"]) == wanted for p in self.pairs)

    @property
    def model(self) -> str:
        """The target's name."""
        return str(self.head["settings"]["model"])

    @property
    def measured(self) -> list[dict[str, Any]]:
        """Pairs with both sides, without tasks that did not fit into the context."""
        return [pair for pair in self.pairs if "skipped" not in pair]

    def _append(self, line: dict[str, Any]) -> None:
        assert self.path is not None
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            reason = error.strerror or error
            raise EdgespecError(f"cannot write {self.path}: {reason}") from None

    def _continue(self, path: Path, settings: dict[str, Any]) -> None:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"{path} is not a results file: give another --out") from None
        lines = list(_objects(text))
        if not lines or lines[0].get("format") != _FORMAT:
            raise UsageError(f"{path} is not a results file: give another --out")
        known = lines[0].get("settings")
        other = {k for k in settings if not isinstance(known, dict) or known.get(k) != settings[k]}
        if other:
            raise UsageError(
                f"{path} has results with another {', '.join(sorted(other))}: give another --out"
            )
        self.head, self.pairs = lines[0], lines[1:]
        if not text.endswith("\n"):  # a crash left half a line
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            return
        if isinstance(value, dict):
            yield value


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
