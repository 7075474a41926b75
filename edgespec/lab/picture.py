"""Draw the report as a PNG."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.lab.report import LARGEST_K, Chain, Report, Tree, Verification
from edgespec.lab.theory import Decomposition
from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_picture"]

_MOST_LABELS = 16


def write_picture(report: Report, path: Path) -> None:
    """Draw the report; the file appears, or is replaced, in one step."""
    panels = [
        lambda axes: _draw_step(axes, report.decomposition),
        lambda axes: _draw_chain(axes, report.chain),
    ]
    if report.trees:
        panels.append(lambda axes: _draw_trees(axes, report.trees))
    write_panels(path, *panels)


def _draw_step(axes: Axes, step: Decomposition) -> None:
    tokens = range(1, len(step.p) + 1)
    residual = step.residual or (0,) * len(step.p)
    bars = (
        ("p (target)", step.p, BLUE),
        ("q (draft)", step.q, ORANGE),
        ("accepted: min(p, q)", step.accepted, GREEN),
        ("residual: norm((p - q)+)", residual, PURPLE),
    )
    few = len(step.p) <= 5
    for i, (label, values, colour) in enumerate(bars):
        places = [token + (i - 1.5) * 0.2 for token in tokens]
        drawn = axes.bar(places, [float(v) for v in values], 0.2, label=label, color=colour)
        if few:
            axes.bar_label(drawn, [f"{float(v):.3g}" for v in values], fontsize=8, padding=1)
    axes.set_title(f"One proposal: alpha = {float(step.alpha):.4g}", loc="left")
    stride = -(-len(step.p) // _MOST_LABELS)
    axes.set_xticks(list(tokens)[::stride])
    axes.set_xlim(0.4, len(step.p) + 0.6)
    axes.margins(y=0.1)
    axes.set_xlabel("token")
    axes.set_ylabel("probability")
    # Beside the title: bars may be anywhere below it.
    axes.legend(
        frameon=False, fontsize=9, ncols=4, loc="lower right", bbox_to_anchor=(1, 1),
        columnspacing=1, handlelength=1, borderaxespad=0.2,
    )  # fmt: skip


def _draw_chain(axes: Axes, chain: Chain) -> None:
    for side, name, colour in (
        (chain.free, "free verification, v(n) = 1", BLUE),
        (chain.measured, chain.measured.name, ORANGE),
    ):
        _draw_speedups(axes, side, name, colour)
    axes.axhline(1, color="0.4", linewidth=1, linestyle="--", label="plain decoding")
    axes.set_title(
        f"A cycle of k proposals: alpha = {float(chain.alpha):.4g}, c = {float(chain.c):.4g}",
        loc="left",
    )
    axes.set_xticks(range(LARGEST_K + 1))
    axes.set_ylim(0, axes.get_ylim()[1] * 1.4)  # room for the legend
    axes.set_xlabel("k (0: do not speculate)")
    axes.set_ylabel("speedup")
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _draw_speedups(axes: Axes, side: Verification, name: str, colour: str) -> None:
    points = [(k, float(s)) for k, s in enumerate(side.speedups) if s is not None]
    k, best = side.best.k, float(side.best.speedup)
    label = f"{textwrap.shorten(name, 80)}; best: " + (f"k = {k}, {best:.2f}x" if k else "k = 0")
    axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=label)
    axes.plot([k], [best], marker="o", markersize=11, fillstyle="none", color=colour)


def _draw_trees(axes: Axes, trees: tuple[Tree, ...]) -> None:
    for tree, name, colour in zip(
        trees,
        ("independent draws from q", "without the rejected tokens"),
        (GREEN, PURPLE),
        strict=True,
    ):
        numbers = range(1, tree.count + 1)
        axes.plot(
            numbers,
            [float(mass) for mass in tree.some_accepted],
            marker="o",
            markersize=4,
            color=colour,
            label=name,
        )
    axes.set_title("A tree of siblings", loc="left")
    axes.set_xticks(range(1, max(tree.count for tree in trees) + 1))
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("siblings")
    axes.set_ylabel("probability that one is accepted")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
