"""The report as text of 80 columns and as JSON, and exact numbers as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from edgespec.control.speedup import tokens_by_length
from edgespec.lab.report import LARGEST_K, Chain, Report, Tree, Verification
from edgespec.lab.theory import ONE, ZERO, Decomposition, Distribution, total_variation
from edgespec.lab.trees import BestTree, Ranked, Shape

__all__ = ["WIDTH", "as_json", "both", "decimal", "exact", "fixed", "report_lines", "times"]

WIDTH = 80
_BAR = 9
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STEP_TITLES = (
    "token", "p", "q", "accept", "accepted", "rejected", "residual", "emitted", "naive",
)  # fmt: skip
_Column = Sequence[Fraction | None]
# Python prints no more than 4,300 digits; nobody reads that many.
_MOST_BITS = 13_000
_LONGEST_TO_READ = 21


def report_lines(report: Report, encoding: str | None) -> Iterator[str]:
    """Yield lines for a stream of this encoding, with block characters if it has them."""
    yield from _step_lines(report.decomposition)
    yield ""
    yield from _bar_lines(report.decomposition, _has_blocks(encoding))
    yield ""
    yield from _chain_lines(report.chain)
    if report.trees:
        yield ""
        yield from _tree_lines(report)
    if report.ranked:
        yield ""
        yield from _ranked_lines(report.ranked)
    for note in report.notes:
        yield ""
        yield from textwrap.wrap(f"Note: {note}.", WIDTH, break_on_hyphens=False)


def _step_lines(step: Decomposition) -> Iterator[str]:
    yield "ONE PROPOSAL, drawn from q and accepted with probability min(1, p/q)"
    yield ""
    fractions = list(_table(_step_rows(step, str)))
    if max(map(len, fractions)) <= WIDTH:
        yield from fractions
    else:
        yield "(The fractions are too long for a table: --json has them.)"
    yield ""
    yield from _table(_step_rows(step, decimal))
    yield ""
    yield from _step_legend(step)


def _step_legend(step: Decomposition) -> Iterator[str]:
    never = "; - where q = 0: never proposed" if None in step.acceptance else ""
    yield from _item("accept", f"min(1, p/q){never}")
    yield from _item("accepted", f"min(p, q); sum: alpha = 1 - TV(p, q) = {both(step.alpha)}")
    yield from _item("rejected", f"q - accepted; sum: rejection mass = {both(step.rejection)}")
    if step.residual is None:
        yield from _item("residual", "none: p = q, so that nothing is ever rejected")
    else:
        yield from _item("residual", "(p - q)+ / rejection mass: where replacements are drawn from")
    verdict = _verdict(step.recovered, step.p)
    yield from _item("emitted", f"accepted + rejection mass * residual = {verdict}")
    variation = total_variation(step.naive, step.p)
    wrong = f"wrong by a total variation of {both(variation)}" if variation else "here, that is p"
    yield from _item(
        "naive", f"accepted + rejection mass * p: replacements drawn from p itself; {wrong}"
    )


def _item(label: str, text: str, indent: int = 11) -> Iterator[str]:
    line = f"{label:{indent}}{text}"
    yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _verdict(output: Distribution, p: Distribution) -> str:
    return "p, exactly" if output == p else "NOT p"


def _step_rows(step: Decomposition, show: Callable[[Fraction], str]) -> Iterator[Sequence[str]]:
    columns: tuple[_Column, ...] = (
        step.p,
        step.q,
        step.acceptance,
        step.accepted,
        step.rejected,
        step.residual or (None,) * len(step.p),
        step.recovered,
        step.naive,
    )
    yield _STEP_TITLES
    for token, row in enumerate(zip(*columns, strict=True), 1):
        yield [str(token), *(_or_dash(value, show) for value in row)]
    sums = [_sum(column) for column in columns]
    sums[2] = None  # probabilities of different events
    yield ["sum", *("" if value is None else show(value) for value in sums)]


def _bar_lines(step: Decomposition, blocks: bool) -> Iterator[str]:
    residual = step.residual or (ZERO,) * len(step.p)
    columns = {"p": step.p, "q": step.q, "accepted": step.accepted, "residual": residual}
    largest = max(max(values) for values in columns.values())
    yield ("token  " + "".join(f"{title:18}" for title in columns)).rstrip()
    for token, row in enumerate(zip(*columns.values(), strict=True), 1):
        cells = (f"{_bar(value / largest, blocks)} {decimal(value):8}" for value in row)
        yield (f"{token:5}  " + "".join(cells)).rstrip()
    yield f"A full bar is {decimal(largest)}."


def _bar(share: Fraction, blocks: bool) -> str:
    """Return a bar for a share of the full width; the thinnest one for a tiny share."""
    steps = 8 if blocks else 1
    length = round(share * _BAR * steps)
    length = max(length, 1 if share else 0)
    whole, rest = divmod(length, steps)
    if not blocks:
        return f"{'#' * whole:{_BAR}}"
    return f"{_EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else ''):{_BAR}}"


def _has_blocks(encoding: str | None) -> bool:
    try:
        _EIGHTHS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _chain_lines(chain: Chain) -> Iterator[str]:
    yield f"A CYCLE OF k = {chain.k} PROPOSALS, each accepted with probability alpha"
    yield ""
    source = "given" if chain.given else "of p and q"
    yield from _item("alpha", f"{both(chain.alpha)}, {source}")
    yield from _item("c", f"{both(chain.c)}: the cost of a draft step")
    yield from _item("tokens", f"1 + alpha + ... + alpha^k = {both(chain.tokens)}")
    yield from _item(
        "speedup", f"tokens / (v(k+1) + k * c); * marks the best k of 0 to {LARGEST_K}"
    )
    for label, side in (("free", chain.free), ("measured", chain.measured)):
        text = f"{side.name}; k = {chain.k}: {_chosen(chain, side)}; best k: {_best(side)}"
        yield from _item(label, text)
    yield ""
    yield from _table(_chain_rows(chain))


def _chosen(chain: Chain, side: Verification) -> str:
    cost = side.cost(chain.k + 1)
    if side.chosen is None or cost is None:
        return f"v({chain.k + 1}) was not measured"
    total = cost + chain.k * chain.c
    return f"{fixed(chain.tokens)} / {fixed(total)} = {times(side.chosen)}"


def _best(side: Verification) -> str:
    if side.best.k == 0:
        return "0, do not speculate"
    return f"{side.best.k}, {times(side.best.speedup)}"


def _chain_rows(chain: Chain) -> Iterator[Sequence[str]]:
    """Yield a row for each k, because a column for each would not fit."""
    yield ["k", "tokens", "v(k+1)", "free", "measured"]
    expected = tokens_by_length([chain.alpha] * (len(chain.free.speedups) - 1), ONE)
    for k, (tokens, free, measured) in enumerate(
        zip(expected, chain.free.speedups, chain.measured.speedups, strict=True)
    ):
        yield [
            str(k),
            fixed(tokens),
            _or_dash(chain.measured.cost(k + 1), fixed),
            _or_dash(free, times) + _star(k, chain.free),
            _or_dash(measured, times) + _star(k, chain.measured),
        ]


def _star(k: int, side: Verification) -> str:
    return "*" if k == side.best.k else " "


def _tree_lines(report: Report) -> Iterator[str]:
    independent, distinct = report.trees
    count = independent.count
    yield f"A TREE OF {count} SIBLINGS, tried in order; after a rejection p <- norm((p - q)+)"
    yield ""
    table = list(_table(_tree_rows(independent, distinct)))
    left, right = table[0].index("accepted"), table[0].rindex("accepted")
    yield f"{'':{left}}{'drawn from q':{right - left}}drawn without the rejected tokens"
    yield from table
    yield ""
    yield from _item("accepted", "probability that one of N siblings is accepted")
    yield from _item("gain", "by how much that beats one sibling")
    yield from _item("free", "speedup of a cycle: (1 + accepted) / (v(N+1) + c) with v = 1")
    yield from _item("measured", "the same with the measured v; equal siblings count twice")
    yield from _item("output", "every sequence of rejections followed:")
    for name, tree in (("drawn from q", independent), ("without", distinct)):
        verdict = _verdict(tree.outcome.output, report.decomposition.p)
        some = f"accepted at N = {tree.count}: {both(tree.some_accepted[-1])}"
        yield from _item("", f"{name}: {verdict}; {some}")


def _tree_rows(independent: Tree, distinct: Tree) -> Iterator[Sequence[str]]:
    yield ["N", *("accepted", "gain", "free", "measured") * 2]
    for n in range(independent.count):
        row = [str(n + 1)]
        for tree in (independent, distinct):
            row += _tree_cells(tree, n) if n < tree.count else ["-"] * 4
        yield row


def _tree_cells(tree: Tree, n: int) -> list[str]:
    mass = tree.some_accepted[n]
    return [
        decimal(mass),
        decimal(mass - tree.some_accepted[0]),
        _or_dash(tree.free[n], times),
        _or_dash(tree.measured[n], times),
    ]


def _ranked_lines(ranked: Ranked) -> Iterator[str]:
    alphas = ", ".join(map(decimal, ranked.alphas))
    yield from _item("", f"TREES where the draft's first, second, ... token is right: {alphas}", 0)
    yield ""
    yield from _table(_shape_rows(ranked.shapes))
    yield ""
    yield from _item("shape", "children of each node, by level")
    yield from _item(
        "tokens", "1 + the sum over nodes of the product of their path's probabilities"
    )
    yield from _item("speedup", "tokens / (v(nodes + 1) + levels * c)")
    yield from _item("best free", _best_tree(ranked.free))
    yield from _item("measured", _best_tree(ranked.measured))
    yield from _item("", f"of all trees up to {LARGEST_K} nodes; a node's ranks from the top down")


def _shape_rows(shapes: Sequence[Shape]) -> Iterator[Sequence[str]]:
    yield ["shape", "nodes", "tokens", "free", "measured"]
    for shape in shapes:
        yield [
            ",".join(map(str, shape.widths)),
            str(shape.nodes),
            fixed(shape.tokens),
            _or_dash(shape.free, times),
            _or_dash(shape.measured, times),
        ]


def _best_tree(tree: BestTree) -> str:
    if not tree.nodes or tree.speedup is None:
        return "no tree, do not speculate"
    nodes = " ".join(_path(node) for node in tree.nodes)
    return f"{times(tree.speedup)}, {fixed(tree.tokens)} tokens, {len(tree.nodes)} nodes: {nodes}"


def _path(node: Sequence[int]) -> str:
    return ".".join(str(place + 1) for place in node)


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows with right-aligned columns, each as wide as it has to be."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(f"{cell:>{n}}" for cell, n in zip(line, widths, strict=True)).rstrip()


def _sum(column: _Column) -> Fraction | None:
    values = [value for value in column if value is not None]
    return sum(values, ZERO) if values else None


def _or_dash(value: Fraction | None, show: Callable[[Fraction], str]) -> str:
    return "-" if value is None else show(value)


def exact(value: Fraction) -> str | None:
    """Return 3/5, for example; None if it has thousands of digits."""
    largest = max(abs(value.numerator), value.denominator)
    return str(value) if largest.bit_length() <= _MOST_BITS else None


def decimal(value: Fraction) -> str:
    """Return a probability in at most 7 characters; 0.6000 was rounded, 0.6 was not."""
    if value and (abs(value) < Fraction(1, 1000) or abs(value) >= 1000):
        return f"{float(value):.1e}"
    text = f"{float(value):.4f}"
    return text.rstrip("0").rstrip(".") if Fraction(text) == value else text


def fixed(value: Fraction) -> str:
    """Return two decimals, or an exponent for a large number."""
    return f"{float(value):.2f}" if value < 1000 else f"{float(value):.1e}"


def times(value: Fraction) -> str:
    """Return a speedup."""
    return f"{fixed(value)}x"


def both(value: Fraction) -> str:
    """Return fraction and decimal, or the decimal alone if the fraction is too long to read."""
    text, short = f"{float(value):.6g}", exact(value)
    if short is None or len(short) > _LONGEST_TO_READ:
        return f"about {text}"
    if short == text:
        return text
    return f"{short} = {text}" if Fraction(text) == value else f"{short} = about {text}"


# -- JSON ---------------------------------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as one JSON object.

    A number is {"fraction": "3/5", "value": 0.6}; a list of numbers is {"fractions": [...],
    "values": [...]}. What does not exist is null, as is a fraction of thousands of digits.
    """
    step = report.decomposition
    return {
        "p": _list(step.p),
        "q": _list(step.q),
        "decomposition": _decomposition(step),
        "chain": _chain(report.chain),
        "siblings": {_RULE[tree.replacement]: _tree(tree, report) for tree in report.trees} or None,
        "ranked": None if report.ranked is None else _ranked(report.ranked),
        "notes": list(report.notes),
    }


_RULE = {True: "with_replacement", False: "without_replacement"}


def _decomposition(step: Decomposition) -> dict[str, Any]:
    return {
        "acceptance": _list(step.acceptance),
        "accepted": _list(step.accepted),
        "rejected": _list(step.rejected),
        "residual": None if step.residual is None else _list(step.residual),
        "alpha": _number(step.alpha),
        "rejection_mass": _number(step.rejection),
        "total_variation": _number(total_variation(step.p, step.q)),
        "recovered": _list(step.recovered),
        "recovered_equals_p": step.recovered == step.p,
        "naive": {
            "output": _list(step.naive),
            "total_variation": _number(total_variation(step.naive, step.p)),
        },
    }


def _chain(chain: Chain) -> dict[str, Any]:
    return {
        "alpha": _number(chain.alpha),
        "alpha_given": chain.given,
        "k": chain.k,
        "c": _number(chain.c),
        "expected_tokens": _number(chain.tokens),
        "free": _verification(chain.free, chain.k),
        "measured": _verification(chain.measured, chain.k),
    }


def _verification(side: Verification, k: int) -> dict[str, Any]:
    return {
        "name": side.name,
        "verification_cost": _optional(side.cost(k + 1)),
        "speedup": _optional(side.chosen),
        "speedups": _list(side.speedups),
        "best_k": side.best.k,
        "best_speedup": _number(side.best.speedup),
    }


def _tree(tree: Tree, report: Report) -> dict[str, Any]:
    return {
        "count": tree.count,
        "accepted": _list(tree.outcome.accepted),
        "some_accepted": _list(tree.some_accepted),
        "gain": _number(tree.gain),
        "output": _list(tree.outcome.output),
        "output_equals_p": tree.outcome.output == report.decomposition.p,
        "speedup": {"free": _list(tree.free), "measured": _list(tree.measured)},
    }


def _ranked(ranked: Ranked) -> dict[str, Any]:
    return {
        "alphas": _list(ranked.alphas),
        "shapes": [
            {
                "widths": list(shape.widths),
                "nodes": shape.nodes,
                "expected_tokens": _number(shape.tokens),
                "speedup": {"free": _optional(shape.free), "measured": _optional(shape.measured)},
            }
            for shape in ranked.shapes
        ],
        "best": {
            name: {
                "nodes": [[place + 1 for place in node] for node in tree.nodes],
                "widths": list(tree.widths),
                "expected_tokens": _number(tree.tokens),
                "speedup": _optional(tree.speedup),
            }
            for name, tree in (("free", ranked.free), ("measured", ranked.measured))
        },
    }


def _number(number: Fraction) -> dict[str, Any]:
    return {"fraction": exact(number), "value": float(number)}


def _optional(number: Fraction | None) -> dict[str, Any] | None:
    return None if number is None else _number(number)


def _list(numbers: Sequence[Fraction | None]) -> dict[str, list[Any]]:
    return {
        "fractions": [None if number is None else exact(number) for number in numbers],
        "values": [None if number is None else float(number) for number in numbers],
    }
