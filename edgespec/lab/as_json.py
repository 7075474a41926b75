"""The report as JSON for programs: every number as an exact fraction and as a float."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from edgespec.lab.report import Chain, Report, Tree, Verification
from edgespec.lab.text import exact
from edgespec.lab.theory import Decomposition, total_variation

__all__ = ["as_json"]


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


def _number(number: Fraction) -> dict[str, Any]:
    return {"fraction": exact(number), "value": float(number)}


def _optional(number: Fraction | None) -> dict[str, Any] | None:
    return None if number is None else _number(number)


def _list(numbers: Sequence[Fraction | None]) -> dict[str, list[Any]]:
    return {
        "fractions": [None if number is None else exact(number) for number in numbers],
        "values": [None if number is None else float(number) for number in numbers],
    }
