"""Measure all prompts with every k, and show measured beside predicted speedups."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from bench.theory.answers import Answer
from bench.theory.costs import Known
from bench.theory.factors import FACTORS
from bench.theory.rows import LEAST, SPREADS, make_row, mark_outliers, summarize
from bench.theory.runs import PLAIN, Variant, measure_known, open_variants, run
from edgespec import EngineOptions
from edgespec.benchmark.measuring import Work, choose_tasks, machine_facts, own_tasks, read_tasks
from edgespec.errors import UsageError
from edgespec.runtime.loading import warm_up

__all__ = ["compare", "make_report", "show"]

Answers = dict[str, dict[str, Any]]
"""By task: its "category", and its "answers" of every round by variant."""


def measure(variants: Sequence[Variant], work: Work) -> Answers:
    """Measure all rounds; after Ctrl-C return what was measured until then."""
    found: Answers = {}
    try:
        for task, _, answers in run(variants, work, note):
            entry = found.setdefault(task.name, {"category": task.category, "answers": {}})
            for name, answer in answers.items():
                entry["answers"].setdefault(name, []).append(answer)
    except KeyboardInterrupt:
        note("interrupted: what was measured until now is shown")
    if not found:
        raise UsageError("nothing was measured: no task fits into the context; raise --ctx")
    return found


def compare(found: Answers, known: dict[str, Known]) -> tuple[list[Any], list[Any]]:
    """Return rows of all prompts by k, with outliers marked, and a summary for each k."""
    rows, summary = [], []
    for k, costs in known.items():
        own = []
        for task, entry in found.items():
            sides: list[list[Answer]] = [entry["answers"][name] for name in (PLAIN, k)]
            rounds = list(zip(*sides, strict=True))
            own.append(make_row(task, entry["category"], k, rounds, costs))
        summary.append(summarize(own, mark_outliers(own)))
        rows += own
    return rows, summary


def show(rows: Sequence[dict[str, Any]], summary: Sequence[dict[str, Any]]) -> None:
    columns = ("A", "B", "alpha", "costs", "both", *FACTORS)
    print(f"{'':20} {'k':>4} {'measured':20}{''.join(f'{name:>9}' for name in columns)}")
    for row in rows:
        show_row(row)
    print(f"\n{'k':>4} prompts  A: rank, error    B: rank, error    usual factors")
    for line in summary:
        cells = [_quality(line["predictions"][name]) for name in ("textbook", "by_cycle")]
        factors = ", ".join(f"{name} {value:.3f}" for name, value in line["factors"].items())
        print(f"{line['k']:>4} {line['prompts']:7}  {cells[0]:17} {cells[1]:17} {factors}")
    print("rank: Spearman's correlation with measured speedups; error: median |predicted / it - 1|")
    for line in summary:
        show_outliers(line, [row for row in rows if row["k"] == line["k"]])


def show_row(row: dict[str, Any]) -> None:
    interval, between = row["interval"], row["between"]
    measured = f"{row['measured']:.3f} [{interval['low']:.2f}, {interval['high']:.2f}]"
    figures = [row["textbook"], row["by_cycle"], between["varying"], between["costs"], row["both"]]
    figures += [row["factors"][name] for name in FACTORS]
    marks = "" if row["outlier"] is None else " *"
    marks += "" if row["same_text"] else " TEXTS DIFFER"
    cells = "".join(f"{figure:9.3f}" for figure in figures)
    print(f"{row['task'][:20]:20} {row['k']:>4} {measured:20}{cells}{marks}")


def show_outliers(line: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"\nk {line['k']}: off B by more than {math.expm1(line['outlier_bound']):.1%} (the greater "
        f"of {LEAST:.0%} and {SPREADS:g} robust standard deviations) are {line['outliers']} of "
        f"{line['prompts']} prompts"
    )
    for row in rows:
        if row["outlier"] is not None:
            print(f"* {row['outlier']}")


def _quality(one: dict[str, float | None]) -> str:
    rank = one["rank_correlation"]
    return f"{'-' if rank is None else f'{rank:.2f}'}, {one['median_error']:.1%}"


def make_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, and return everything as one report."""
    tasks = own_tasks() if arguments.tasks is None else read_tasks(arguments.tasks)
    tasks = choose_tasks(tasks, arguments.categories, arguments.limit)
    work = Work(tasks, [arguments.temperature], arguments.rounds, arguments.tokens)
    warm_up()
    facts = machine_facts()
    with ExitStack() as stack:
        options = EngineOptions(draft=arguments.draft, context=arguments.ctx)
        variants = open_variants(arguments.model, options, arguments.k, stack)
        settings = {name: getattr(arguments, name) for name in ("temperature", "tokens", "rounds")}
        settings |= _settings(variants)
        known = measure_known(variants, note)
        found = measure(variants, work)
    rows, summary = compare(found, known)
    for entry in found.values():
        entry["answers"] = {
            name: [answer.as_json() for answer in answers]
            for name, answers in entry["answers"].items()
        }
    return {
        "machine": facts,
        "settings": settings,
        "known": {
            name: {side: getattr(costs, side).as_json() for side in vars(costs)}
            for name, costs in known.items()
        },
        "summary": summary,
        "rows": rows,
        "answers": found,
    }


def _settings(variants: Sequence[Variant]) -> dict[str, Any]:
    plain, fast = variants[0].engine, variants[-1].engine
    return {
        "model": plain.model_name,
        "draft": fast.drafter_name,
        "k": [variant.name for variant in variants[1:]],
        "exactness": fast.exactness.as_json(),
        "threads": fast.target.options.threads,
        "context": fast.context_length,
    }


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
