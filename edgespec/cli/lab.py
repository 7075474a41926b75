"""`edgespec lab`: speculation's arithmetic for given p and q, in exact fractions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.lab.inputs import Curve

__all__ = ["lab"]

_MOST_SIBLINGS = 16
_LONGEST_CHAIN = 32
_SHAPES = ("1,1,1,1", "3", "2,2", "4,2,1")


@click.command()
@click.option("--p", metavar="NUMBERS", help="The target's distribution, e.g. 0.6,0.3,0.1.")
@click.option("--q", metavar="NUMBERS", help="The draft's, e.g. 1/5,1/2,3/10.")
@click.option(
    "--k",
    default=4,
    show_default=True,
    type=click.IntRange(0, _LONGEST_CHAIN),
    help="Proposals of a cycle.",
)
@click.option("--c", default="0.1", show_default=True, help="Cost of a draft step.")
@click.option("--alpha", help="Acceptance rate of the cycle; without it that of p and q.")
@click.option(
    "--cost",
    metavar="V1,V2,...|FILE.json",
    help="Measured cost of evaluating 1, 2, ... tokens; N:V,N:V,... leaves gaps.",
)
@click.option(
    "--measure",
    is_flag=False,
    flag_value="",
    metavar="[MODEL]",
    help="Measure the cost on this machine, with the default model or another one.",
)
@click.option(
    "--siblings",
    default=0,
    type=click.IntRange(0, _MOST_SIBLINGS),
    metavar="N",
    help="Also N proposals for one position, tried in order.",
)
@click.option(
    "--ranks",
    metavar="A1,A2,...",
    help="Also trees, by the probability that the draft's first, second, ... token is right.",
)
@click.option(
    "--tree",
    "shapes",
    metavar="N,N,...",
    multiple=True,
    help="With --ranks: children of each node by level. May be repeated.",
)
@click.option("--png", metavar="FILE", help="Write a picture.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lab(
    p: str | None,
    q: str | None,
    k: int,
    c: str,
    alpha: str | None,
    cost: str | None,
    measure: str | None,
    siblings: int,
    ranks: str | None,
    shapes: tuple[str, ...],
    png: str | None,
    as_json: bool,
) -> None:
    """Show why speculation keeps p, and when it pays.

    Takes one proposal apart, then a cycle of them, in exact fractions. Costs are in units of
    one target evaluation of a single token.
    """
    from edgespec.lab.inputs import (
        built_in_pair,
        read_alpha,
        read_c,
        read_pair,
        read_ranks,
        read_shape,
    )
    from edgespec.lab.report import examine, write_picture
    from edgespec.lab.text import as_json as json_of
    from edgespec.lab.text import report_lines
    from edgespec.pictures import check_picture_path

    path = None if png is None else Path(png)
    if path is not None:
        check_picture_path(path)
    if p is not None and q is not None:
        pair = read_pair(p, q)
    elif p is None and q is None:
        pair = built_in_pair()
    else:
        raise UsageError("--p and --q belong together: give both, or neither")
    if shapes and ranks is None:
        raise UsageError("--tree needs --ranks: how often the draft's first, second, ... are right")
    widths = tuple(map(read_shape, shapes or _SHAPES))
    alphas = () if ranks is None else read_ranks(ranks)
    curve = _curve(cost, measure)
    report = examine(
        pair,
        curve,
        k=k,
        c=read_c(c),
        alpha=None if alpha is None else read_alpha(alpha),
        count=siblings,
        ranks=alphas,
        shapes=widths,
    )
    if path is not None:
        write_picture(report, path)
        click.echo(f"saved {path}", err=True)
    if as_json:
        click.echo(json.dumps(json_of(report), indent=2))
        return
    for line in report_lines(report, sys.stdout.encoding):
        click.echo(line)


def _curve(cost: str | None, measure: str | None) -> Curve:
    if cost is not None and measure is not None:
        raise UsageError("--cost and --measure exclude each other")
    if measure is not None:
        from edgespec.cli.opening import pull_progress
        from edgespec.lab.inputs import measured_curve

        with pull_progress(measure or "the default model") as download:
            return measured_curve(measure or None, download)
    from edgespec.lab.inputs import built_in_curve, read_curve

    return built_in_curve() if cost is None else read_curve(cost)
