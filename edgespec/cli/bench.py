"""`edgespec bench`: compare plain and speculative decoding on a suite of prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.opening import open_engine
from edgespec.cli.options import engine_options, make_engine_options
from edgespec.errors import UsageError
from edgespec.extras import has_extra

if TYPE_CHECKING:
    from edgespec.benchmark.measuring import Task
    from edgespec.runtime.engine import Engine
    from edgespec.runtime.options import EngineOptions

__all__ = ["bench"]


@click.command()
@engine_options
@click.option("--suite", metavar="FILE", help="Tasks as JSON lines, as Spec-Bench has them.")
@click.option("--categories", metavar="A,B,...", help="Only these categories; by default all.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Most tasks of each category.")
@click.option(
    "--temperature",
    type=float,
    multiple=True,
    metavar="T",
    help="Temperature of answers; may be repeated.  [default: 0 and 0.8]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="How often to answer every task.",
)
@click.option(
    "--tokens",
    type=click.IntRange(2),
    default=128,
    show_default=True,
    metavar="N",
    help="Length of the longest answer.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.0, min_open=True),
    metavar="M",
    help="Start no task after M minutes, loading included; by default all are answered.",
)
@click.option(
    "--out", metavar="FILE", help="Keep every pair in this file; a later run continues it."
)
@click.option("--png", metavar="FILE", help="Write a picture.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with every figure.")
def bench(**values: Any) -> None:
    """Measure what speculation brings with MODEL on this machine.

    Every task is answered twice in random order, with and without speculation. A ratio is
    speculative / plain for such a pair; medians are shown with 95% intervals.
    """
    from edgespec.pictures import check_picture_path

    started = monotonic()
    temperatures = values.pop("temperature") or (0.0, 0.8)
    if any(not 0 <= temperature <= 100 for temperature in temperatures):
        raise UsageError("a temperature has to be between 0 and 100")
    png = None if values["png"] is None else Path(values["png"])
    if png is not None:
        check_picture_path(png)
    tasks = _tasks(values["suite"], values["categories"], values["limit"])
    options = make_engine_options(values)
    if options.draft == "none":
        raise UsageError("--draft none is the baseline already: choose a draft, or auto")
    _bench(values, options, tasks, temperatures, png, started)


def _bench(
    values: dict[str, Any],
    options: EngineOptions,
    tasks: list[Task],
    temperatures: tuple[float, ...],
    png: Path | None,
    started: float,
) -> None:
    from edgespec.benchmark.measuring import Work, machine_facts, measure_pairs, peak_memory
    from edgespec.benchmark.results import Results, table_lines, write_plots

    minutes = values["minutes"]
    deadline = None if minutes is None else started + 60 * minutes
    work = Work(tasks, temperatures, values["rounds"], values["tokens"], deadline)
    with ExitStack() as stack:
        engines = _open_both(values["model"], options, stack)
        out = None if values["out"] is None else Path(values["out"])
        results = Results(out, _settings(engines["speculative"], options, work), machine_facts())
        with _progress(started, deadline) as note:
            _until_interrupted(lambda: measure_pairs(engines, work, results, note))
        memory = peak_memory()
    if not results.measured:
        raise UsageError("nothing was measured: give more --minutes, or a longer --ctx")
    if png is not None:
        write_plots(results.measured, results.model, png)
        click.echo(f"saved {png}", err=True)
    if values["as_json"]:
        click.echo(json.dumps(_report(results, memory), indent=2))
        return
    for line in table_lines(results.measured, results.head, len(results.pairs), memory):
        click.echo(line)


def _tasks(suite: str | None, categories: str | None, limit: int | None) -> list[Task]:
    from edgespec.benchmark.measuring import choose_tasks, own_tasks, read_tasks

    tasks = own_tasks() if suite is None else read_tasks(Path(suite))
    names = [name.strip() for name in (categories or "").split(",") if name.strip()]
    return choose_tasks(tasks, names, limit)


def _open_both(model: str | None, options: EngineOptions, stack: ExitStack) -> dict[str, Engine]:
    speculative = stack.enter_context(open_engine(model, options))
    plain = stack.enter_context(open_engine(model, replace(options, draft="none", trace=None)))
    return {"plain": plain, "speculative": speculative}


def _settings(engine: Engine, options: EngineOptions, work: Any) -> dict[str, Any]:
    """Return what has to be the same for results to be combined."""
    return {
        "model": engine.model_name,
        "draft": engine.drafter_name,
        "k": "auto" if options.k is None else options.k,
        "exactness": engine.exactness.mode,
        "threads": engine.target.options.threads,
        "flash_attention": engine.target.options.flash_attention,
        "kernels": engine.target.model.kernels,
        "repack": engine.target.model.options.repack,
        "kv_type": options.kv_type,
        "context": engine.context_length,
        "tokens": work.tokens,
    }


def _report(results: Any, memory: int) -> dict[str, Any]:
    from edgespec.benchmark.results import alpha_by_position, by_depth, summarize

    measured = results.measured
    return {
        **results.head,
        "summary": summarize(measured),
        "alpha_by_position": alpha_by_position(measured),
        "tokens_per_second_by_depth": {
            side: by_depth(measured, side) for side in ("plain", "speculative")
        },
        "peak_memory_bytes": memory,
        "pairs": results.pairs,
    }


def _until_interrupted(measure: Callable[[], None]) -> None:
    """Measure until done or until Ctrl-C; what was measured until then is shown."""
    try:
        measure()
    except KeyboardInterrupt:
        click.echo("interrupted: here is what was measured until now", err=True)


@contextmanager
def _progress(
    started: float, deadline: float | None
) -> Iterator[Callable[[float, int, str], None]]:
    """Show how much is done: of the pairs or of the time, whichever is nearer to its end."""
    if not (sys.stderr.isatty() and has_extra("chat")):
        yield lambda done, total, name: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, refresh_per_second=1) as bar:
        task = bar.add_task("", total=1.0)

        def note(done: float, total: int, name: str) -> None:
            share = done / total
            if deadline is not None:
                share = max(share, (monotonic() - started) / (deadline - started))
            bar.update(task, completed=min(share, 1.0), description=name)

        yield note
