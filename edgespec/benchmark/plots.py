"""Draw the results as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.benchmark.summary import alpha_by_position, by_depth, summarize
from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_plots"]

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)

Pair = dict[str, Any]


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
        found = [name for name in categories if name in own]
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
