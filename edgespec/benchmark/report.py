"""Show the results: a table for the terminal, and a PNG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.benchmark.results import alpha_by_position, by_depth, summarize
from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["table_lines", "write_plots"]

Pair = dict[str, Any]

# With fewer, not even the smallest and the largest ratio enclose the median in 95% of all cases.
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
