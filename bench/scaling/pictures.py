"""Draw the charts of one part as a PNG: points with their intervals, and the fitted lines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.scaling.chart import Chart
from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_charts"]

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "0.2", "0.6")


def write_charts(charts: Sequence[Chart], path: Path) -> None:
    """Draw a panel for each chart, one below the other."""
    write_panels(path, *(partial(_draw, chart=chart) for chart in charts))


def _draw(axes: Axes, chart: Chart) -> None:
    named = isinstance(chart.x[0], str)
    places = np.arange(len(chart.x)) if named else np.array(chart.x, np.float64)
    for index, each in enumerate(chart.series):
        colour = _COLOURS[index % len(_COLOURS)]
        medians, spread = _spread(chart.figures[each.name])
        offset = 0.1 * (index - (len(chart.series) - 1) / 2) if named else 0.0
        axes.errorbar(
            places + offset, medians, spread, fmt="o", markersize=4, capsize=2, color=colour,
            label=each.name,
        )  # fmt: skip
        if each.name in chart.fits:
            line = np.linspace(places[0], places[-1], 100)
            axes.plot(line, chart.fits[each.name].at(line), color=colour, linewidth=1)
    if named:
        axes.set_xticks(places, chart.x)
    axes.set_title(chart.title, loc="left")
    axes.set_xlabel(chart.x_label)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.legend(frameon=False, fontsize=9)


def _spread(figures: Sequence[dict[str, float]]) -> tuple[list[float], list[list[float]]]:
    """Return medians, and how far the interval reaches below and above each."""
    medians = [figure["median"] for figure in figures]
    below = [figure["median"] - figure["low"] for figure in figures]
    above = [figure["high"] - figure["median"] for figure in figures]
    return medians, [below, above]
