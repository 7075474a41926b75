"""The measured costs as a PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels
from edgespec.tuning.measure import SettingFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_plot"]

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


def write_plot(figures: SettingFigures, model: str, path: Path) -> None:
    """v(n) by depth, and the speedup that free proposals which are always right would bring."""
    write_panels(
        path,
        lambda axes: _draw_costs(axes, figures, model),
        lambda axes: _draw_ceiling(axes, figures),
    )


def _draw_costs(axes: Axes, figures: SettingFigures, model: str) -> None:
    for label, colour, costs in _curves(figures):
        axes.plot(figures.sizes, costs, marker="o", markersize=4, color=colour, label=label)
    axes.plot(
        figures.sizes,
        figures.sizes,
        color="0.4",
        linewidth=1,
        linestyle="--",
        label="as many single tokens",
    )
    axes.set_title(f"{model}: cost of a batch, {figures.name}", loc="left")
    axes.set_xlabel("tokens of the batch, n")
    axes.set_ylabel("v(n), in single tokens")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_ceiling(axes: Axes, figures: SettingFigures) -> None:
    for label, colour, costs in _curves(figures):
        gains = [n / cost for n, cost in zip(figures.sizes, costs, strict=True)]
        proposals = [n - 1 for n in figures.sizes]
        axes.plot(proposals, gains, marker="o", markersize=4, color=colour, label=label)
    axes.axhline(1, color="0.4", linewidth=1, linestyle="--", label="plain decoding")
    axes.set_title("The most that speculation could bring: (k + 1) / v(k + 1)", loc="left")
    axes.set_xlabel("proposals, k")
    axes.set_ylabel("speedup")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _curves(figures: SettingFigures) -> list[tuple[str, str, list[float]]]:
    return [
        (f"{depth} tokens of context", colour, [s / seconds[0] for s in seconds])
        for depth, seconds, colour in zip(figures.depths, figures.seconds, _COLOURS, strict=False)
    ]
