"""Work out everything the lab shows about one p and q, and draw it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.lab.inputs import Curve, Pair
from edgespec.lab.theory import (
    ONE,
    Choice,
    Cost,
    Decomposition,
    best_k,
    cycle_speedup,
    decompose,
    expected_tokens,
    free_verification,
    speedup,
)
from edgespec.lab.trees import Ranked, TooManyCasesError, TreeOutcome, rank, siblings
from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LARGEST_K", "Chain", "Report", "Tree", "Verification", "examine", "write_picture"]

LARGEST_K = 16
_MOST_STEPS = 32_000  # about a second


@dataclass(frozen=True)
class Verification:
    """What chains gain where an evaluation of n tokens costs v(n).

    Attributes:
        name: which machine.
        cost: v.
        speedups: for k = 0, 1, ... `LARGEST_K`; None where v(k + 1) is not known.
        chosen: for the k that was asked for.
        best: the best k up to `LARGEST_K`.
    """

    name: str
    cost: Cost
    speedups: tuple[Fraction | None, ...]
    chosen: Fraction | None
    best: Choice


@dataclass(frozen=True)
class Chain:
    """Cycles of k proposals, each accepted with probability alpha.

    Attributes:
        alpha: from p and q, unless `given`.
        tokens: expected tokens of a cycle of k.
        free, measured: on a GPU, and on a measured cost curve.
    """

    alpha: Fraction
    given: bool
    k: int
    c: Fraction
    tokens: Fraction
    free: Verification
    measured: Verification


@dataclass(frozen=True)
class Tree:
    """Siblings in place of one proposal; index n - 1 of each tuple is about n of them.

    Attributes:
        replacement: whether siblings are independent draws from q.
        outcome: of all of them.
        some_accepted: probability that one of n is accepted.
        free, measured: speedup of a cycle that verifies n siblings at once: one more token is
            emitted if one is accepted, and the draft is asked once.
    """

    replacement: bool
    outcome: TreeOutcome
    some_accepted: tuple[Fraction, ...]
    free: tuple[Fraction | None, ...]
    measured: tuple[Fraction | None, ...]

    @property
    def count(self) -> int:
        """Return the number of siblings."""
        return len(self.some_accepted)

    @property
    def gain(self) -> Fraction:
        """Return by how much all of them beat one."""
        return self.some_accepted[-1] - self.some_accepted[0]


@dataclass(frozen=True)
class Report:
    """The whole report; `trees` is empty unless siblings were asked for, and `ranked` None."""

    decomposition: Decomposition
    chain: Chain
    trees: tuple[Tree, ...]
    ranked: Ranked | None
    notes: tuple[str, ...]


def examine(
    pair: Pair,
    curve: Curve,
    *,
    k: int,
    c: Fraction,
    alpha: Fraction | None,
    count: int,
    ranks: tuple[Fraction, ...] = (),
    shapes: Sequence[tuple[int, ...]] = (),
) -> Report:
    """Work out the whole report.

    Args:
        pair: p and q.
        curve: measured cost of verification.
        k: block length of the chain.
        c: cost of a draft step.
        alpha: acceptance rate of the chain; None for that of p and q.
        count: number of siblings, 0 for none.
        ranks: alpha of each rank, for trees; none for no trees.
        shapes: children by level of trees to compare.
    """
    decomposition = decompose(pair.p, pair.q)
    rate = decomposition.alpha if alpha is None else alpha
    chain = Chain(
        alpha=rate,
        given=alpha is not None,
        k=k,
        c=c,
        tokens=expected_tokens(rate, k),
        free=_verification("GPU: v(n) = 1", free_verification, rate, k, c),
        measured=_verification(curve.name, curve.cost, rate, k, c),
    )
    trees, notes = _trees(pair, curve.cost, c, count) if count else ((), ())
    ranked = rank(ranks, shapes, c, curve.cost, LARGEST_K) if ranks else None
    return Report(decomposition, chain, trees, ranked, (*pair.notes, *curve.notes, *notes))


def _verification(name: str, cost: Cost, alpha: Fraction, k: int, c: Fraction) -> Verification:
    return Verification(
        name=name,
        cost=cost,
        speedups=tuple(cycle_speedup(alpha, n, c, cost) for n in range(LARGEST_K + 1)),
        chosen=cycle_speedup(alpha, k, c, cost),
        best=best_k(alpha, c, cost, LARGEST_K),
    )


def _trees(
    pair: Pair, cost: Cost, c: Fraction, count: int
) -> tuple[tuple[Tree, ...], tuple[str, ...]]:
    independent = siblings(pair.p, pair.q, count)
    distinct = siblings(pair.p, pair.q, 1, replacement=False)
    notes: tuple[str, ...] = ()
    drawable = sum(1 for mass in pair.q if mass)
    if drawable < count:
        notes = (f"without replacement: q allows only {drawable} tokens",)
    max_cases = _MOST_STEPS // len(pair.p)
    for n in range(2, min(count, drawable) + 1):
        try:
            distinct = siblings(pair.p, pair.q, n, replacement=False, max_cases=max_cases)
        except TooManyCasesError:
            notes = (f"without replacement: too many cases to follow beyond {n - 1} siblings",)
            break
    return (_tree(independent, True, cost, c), _tree(distinct, False, cost, c)), notes


def _tree(outcome: TreeOutcome, replacement: bool, cost: Cost, c: Fraction) -> Tree:
    some_accepted = tuple(accumulate(outcome.accepted))
    numbered = list(enumerate(some_accepted, 1))
    return Tree(
        replacement=replacement,
        outcome=outcome,
        some_accepted=some_accepted,
        free=tuple(speedup(ONE + mass, n + 1, c, free_verification) for n, mass in numbered),
        measured=tuple(speedup(ONE + mass, n + 1, c, cost) for n, mass in numbered),
    )


# -- a picture ----------------------------------------------------------------------------------

_MOST_LABELS = 16


def write_picture(report: Report, path: Path) -> None:
    """Draw the report; the file appears, or is replaced, in one step."""
    panels = [
        lambda axes: _draw_step(axes, report.decomposition),
        lambda axes: _draw_chain(axes, report.chain),
    ]
    if report.trees:
        panels.append(lambda axes: _draw_trees(axes, report.trees))
    if report.ranked is not None:
        ranked = report.ranked
        panels.append(lambda axes: _draw_ranked(axes, ranked, report.chain.measured.name))
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


def _draw_ranked(axes: Axes, ranked: Ranked, curve: str) -> None:
    """Draw what chains and the best trees of so many nodes bring: tokens, and speedup."""
    for sizes, name, colour in (
        (ranked.chains, "chain", GREEN),
        (ranked.trees, "best tree", PURPLE),
    ):
        tokens = [float(tree.tokens) for tree in sizes]
        axes.plot(range(len(sizes)), tokens, color=colour, label=f"{name}: tokens a cycle")
        known = [(n, float(tree.speedup)) for n, tree in enumerate(sizes) if tree.speedup]
        axes.plot(
            *zip(*known, strict=True),
            linestyle="--",
            marker="o",
            markersize=4,
            color=colour,
            label=f"{name}: speedup",
        )
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_title("Trees by alpha of each rank", loc="left")
    axes.set_xlabel(f"nodes; {textwrap.shorten(curve, 80)}")
    axes.set_ylabel("tokens a cycle, times plain decoding")
    axes.set_ylim(0)
    axes.legend(frameon=False, fontsize=9, loc="best")
