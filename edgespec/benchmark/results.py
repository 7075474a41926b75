"""Keep results on disk, a line for each pair; summarize them, print a table, draw a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgespec.errors import EdgespecError, UsageError
from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Results",
    "alpha_by_position",
    "by_depth",
    "median_interval",
    "summarize",
    "table_lines",
    "write_plots",
]

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


# With fewer, not even the smallest and the largest ratio enclose the median in 95% of all cases.


# -- a table and a picture ----------------------------------------------------------------------

_FEWEST_FOR_INTERVAL = 6
_FEWEST_FOR_RATIO = 2  # a single pair tells what else the machine did

_HEAD = (
    f"{'':4} {'':14} {'pairs':>5} {'plain':>7} {'spec.':>7}  {'speedup':18} "
    f"{'first token':18} {'a cycle':>7} {'accepted':>8}"
)

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


# -- the table ----------------------------------------------------------------------------


def table_lines(
    pairs: Sequence[dict[str, Any]], head: dict[str, Any], asked: int, memory: int
) -> Iterator[str]:
    """Yield what was measured, by temperature and category, and on which machine."""
    settings = head["settings"]
    flash = "on" if settings["flash_attention"] else "off"
    yield (
        f"{settings['model']}, draft {settings['draft']}, k {settings['k']}, "
        f"{settings['threads']} threads, flash attention {flash}, {settings['exactness']}, "
        f"up to {settings['tokens']} tokens"
    )
    yield f"{head['machine']['processor']}, {head['machine']['cores']} cores"
    yield ""
    yield _HEAD
    lines = summarize(pairs)
    for line in lines:
        yield _row(line)
    yield ""
    yield "plain, spec.: median tokens per second of decoding. speedup and first token are"
    yield "speculative / plain, medians of pairs with 95% intervals. a cycle: tokens emitted."
    if any(line["pairs"] < _FEWEST_FOR_INTERVAL for line in lines):
        yield (
            f"fewer than {_FEWEST_FOR_INTERVAL} pairs have no interval, and one has no ratio: "
            "give more --rounds"
        )
    alpha = alpha_by_position(pairs)
    if alpha:
        shown = "  ".join(f"{position}: {value:.2f}" for position, value in enumerate(alpha, 1))
        yield f"accepted by position: {shown}"
    yield from _remarks(lines, len(pairs), asked, memory)


def _row(line: dict[str, Any]) -> str:
    accepted = line["acceptance_rate"]
    share = "-" if accepted is None else f"{accepted:.0%}"
    return (
        f"{line['temperature']:<4g} {line['category'][:14]:14} {line['pairs']:5} "
        f"{line['plain_tokens_per_second']:7.1f} {line['tokens_per_second']:7.1f}  "
        f"{_ratio(line, 'speedup'):18} {_ratio(line, 'first_token'):18} "
        f"{line['tokens_per_cycle']:7.2f} {share:>8}"
    )


def _remarks(
    lines: Sequence[dict[str, Any]], measured: int, asked: int, memory: int
) -> Iterator[str]:
    for line in lines:
        if line["category"] == "all" and "same_texts" in line:
            yield f"greedy texts that are the same: {line['same_texts']} of {line['pairs']}"
        if line["category"] == "all" and line["energy"]:
            energy = _ratio(line, "energy")
            yield f"energy of a token, temperature {line['temperature']:g}: {energy}"
    if asked > measured:
        yield f"{asked - measured} pairs were left out: their prompts do not fit into the context"
    yield f"peak memory, both sides in one process: {memory / 2**20:.0f} MiB"


def _ratio(line: dict[str, Any], name: str) -> str:
    ratio = line[name]
    if line["pairs"] < _FEWEST_FOR_RATIO:
        return "-"
    if line["pairs"] < _FEWEST_FOR_INTERVAL:
        return f"{ratio['median']:.2f}"
    return f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


# -- the picture --------------------------------------------------------------------------


def write_plots(pairs: Sequence[Pair], title: str, path: Path) -> None:
    """Draw speedup by category, acceptance by position, and speed by depth."""
    write_panels(
        path,
        lambda axes: _draw_speedups(axes, pairs, title),
        lambda axes: _draw_acceptance(axes, pairs),
        lambda axes: _draw_depths(axes, pairs),
    )


def _draw_speedups(axes: Axes, pairs: Sequence[Pair], title: str) -> None:
    lines = summarize(pairs)
    temperatures = _temperatures(pairs)
    categories = list(dict.fromkeys(line["category"] for line in lines))
    width = 0.8 / len(temperatures)
    for index, temperature in enumerate(temperatures):
        own = {line["category"]: line for line in lines if line["temperature"] == temperature}
        told = {name for name, line in own.items() if line["pairs"] >= _FEWEST_FOR_RATIO}
        found = [name for name in categories if name in told]
        middles = [categories.index(name) + (index + 0.5) * width - 0.4 for name in found]
        ratios = [own[name]["speedup"] for name in found]
        heights = [ratio["median"] for ratio in ratios]
        spread = [
            [ratio["median"] - ratio["low"] for ratio in ratios],
            [ratio["high"] - ratio["median"] for ratio in ratios],
        ]
        colour = _COLOURS[index % len(_COLOURS)]
        label = f"temperature {temperature:g}"
        axes.bar(middles, heights, width * 0.9, color=colour, label=label)
        axes.errorbar(middles, heights, spread, fmt="none", color="0.2", capsize=2)
    axes.axhline(1, color="0.4", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(categories)), categories, rotation=20, ha="right")
    axes.set_title(f"{title}: tokens per second, speculative / plain", loc="left")
    axes.legend(frameon=False, fontsize=9)


def _draw_acceptance(axes: Axes, pairs: Sequence[Pair]) -> None:
    for index, temperature in enumerate(_temperatures(pairs)):
        alpha = alpha_by_position([pair for pair in pairs if pair["temperature"] == temperature])
        axes.plot(
            range(1, len(alpha) + 1),
            alpha,
            marker="o",
            markersize=4,
            color=_COLOURS[index % len(_COLOURS)],
            label=f"temperature {temperature:g}",
        )
    axes.set_title("Acceptance of the proposals that were judged", loc="left")
    axes.set_xlabel("position in the block")
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, fontsize=9)


def _draw_depths(axes: Axes, pairs: Sequence[Pair]) -> None:
    for side, colour in (("plain", BLUE), ("speculative", ORANGE)):
        speeds = by_depth(pairs, side)
        axes.plot(
            list(speeds), list(speeds.values()), marker="o", markersize=4, color=colour, label=side
        )
    axes.set_title("Tokens per second of decoding", loc="left")
    axes.set_xlabel("tokens in the cache, in steps of 256")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)


def _temperatures(pairs: Sequence[Pair]) -> list[float]:
    return list(dict.fromkeys(pair["temperature"] for pair in pairs))
