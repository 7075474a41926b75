"""Draw measured against predicted speedups as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_scatter"]

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_PREDICTIONS = {
    "by_cycle": "predicted from the cycles that happened",
    "textbook": "predicted by the theorem, from alpha and v(n)",
}


def write_scatter(rows: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Draw a panel for each prediction, with the line on which it is right."""
    write_panels(
        path,
        *(
            lambda axes, name=name: _draw(axes, rows, name, title)  # type: ignore[misc]
            for name in _PREDICTIONS
        ),
    )


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], name: str, title: str) -> None:
    for index, k in enumerate(dict.fromkeys(row["k"] for row in rows)):
        own = [row for row in rows if row["k"] == k]
        axes.errorbar(
            [row[name] for row in own],
            [row["measured"] for row in own],
            _spread(own),
            fmt=_MARKERS[index % len(_MARKERS)],
            markersize=5,
            color=_COLOURS[index % len(_COLOURS)],
            elinewidth=0.8,
            label=f"k {k}",
        )
    for row in rows:
        if row["outlier"] is not None:
            place = (row[name], row["measured"])
            axes.annotate(row["task"], place, (4, 3), textcoords="offset points", fontsize=8)
    values = [row[key] for row in rows for key in (name, "measured")]
    ends = min(values) * 0.97, max(values) * 1.03
    axes.plot(ends, ends, color="0.4", linewidth=1, linestyle="--", label="as predicted")
    axes.set_title(f"{title}: speedup over plain decoding, by prompt", loc="left")
    axes.set_xlabel(_PREDICTIONS[name])
    axes.set_ylabel("measured")
    axes.legend(frameon=False, fontsize=9)


def _spread(rows: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return how far the interval reaches below and above; it may lie on one side only."""
    return [
        [max(0.0, row["measured"] - row["interval"]["low"]) for row in rows],
        [max(0.0, row["interval"]["high"] - row["measured"]) for row in rows],
    ]
