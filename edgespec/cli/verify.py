"""`edgespec verify`: check that speculation changes nothing on this machine."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from edgespec.chat.characters import printable
from edgespec.cli.opening import open_engine
from edgespec.cli.options import engine_options, make_engine_options

if TYPE_CHECKING:
    from edgespec.runtime.engine import Engine
    from edgespec.verification.checks import Progress
    from edgespec.verification.suite import Timed

__all__ = ["verify"]

_WIDTH = 79
_INDENT = " " * 18


@click.command()
@engine_options
@click.option("--quick", is_flag=True, help="Fewer and shorter answers, prefixes and contexts.")
@click.option(
    "--accept",
    type=click.Choice(["typical"]),
    help="Also measure by how much this lossy rule changes texts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with every figure.")
def verify(**values: Any) -> int:
    """Show that speculation changes nothing.

    The exit status is 0 only if every check holds.

    \b
    invariance  a token evaluated in a batch has the logits it has alone
    greedy      greedy answers are plain decoding's, token for token
    coupled     sampled answers with a seed are too, by the coupled rule
    rejection   frequencies of sampled tokens fit the target's distribution
    trees       nodes have the bits of chains, siblings the right frequencies
    cache       after many rejections the caches are like newly filled ones
    typical     what a lossy rule changes, where --accept typical is given
    """
    from edgespec.verification.suite import FULL, QUICK, run_checks

    quick, as_json = values.pop("quick"), values.pop("as_json")
    typical = values.pop("accept") is not None
    options = make_engine_options(values)
    started = perf_counter()
    with open_engine(values["model"], options) as engine, _progress() as progress:
        if not as_json:
            click.echo(_headline(engine))
        done = []
        for timed in run_checks(engine, QUICK if quick else FULL, progress, typical=typical):
            done.append(timed)
            progress("")
            if not as_json:
                click.echo(_row(timed))
        if as_json:
            click.echo(json.dumps(_facts(engine, quick, done, perf_counter() - started), indent=2))
    failed = [timed.result.name for timed in done if not timed.result.holds]
    if failed:
        click.echo(f"edgespec: {_verdict(failed, len(done))}", err=True)
    elif not as_json:
        but = ", and typical acceptance is lossy" if typical else ""
        click.echo(f"\nEverything holds{but} ({perf_counter() - started:.0f} s).")
    return 1 if failed else 0


def _verdict(failed: list[str], checks: int) -> str:
    return (
        f"{len(failed)} of {checks} checks failed ({', '.join(failed)}): speculation is not "
        "exact here; try --exact bitwise or a smaller --k, see edgespec doctor, or use --draft none"
    )


def _headline(engine: Engine) -> str:
    target = engine.target
    return _fill(
        f"{engine.model_name}, draft {engine.drafter_name}, k = {engine.largest_k}, "
        f"{target.options.threads} threads, context {target.capacity}\n",
        "",
    )


def _row(timed: Timed) -> str:
    result = timed.result
    word, colour = ("holds", "green") if result.holds else ("FAILS", "red")
    if not result.applies:
        word, colour = "-", "yellow"
    head = f"{result.name:10}  {click.style(f'{word:5}', fg=colour)} "
    lines = [_fill(printable(result.summary), _INDENT)]
    lines += [_fill(f"- {printable(detail)}", f"{_INDENT}  ") for detail in result.details]
    first, _, rest = "\n".join(lines).partition("\n")
    return f"{head}{first}\n{rest}" if rest else f"{head}{first}"


def _fill(text: str, indent: str) -> str:
    """Wrap a text to the width; later lines are indented, and the first leaves room."""
    room = " " * len(_INDENT) if indent else ""
    start = _INDENT if len(indent) > len(_INDENT) else ""
    wrapped = textwrap.fill(
        text,
        _WIDTH,
        initial_indent=start or room,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return wrapped if start else wrapped[len(room) :]


def _facts(engine: Engine, quick: bool, done: list[Timed], seconds: float) -> dict[str, Any]:
    from edgespec import __version__
    from edgespec.backend import capabilities

    build, options = capabilities(), engine.target.options
    return {
        "edgespec": __version__,
        "llama_cpp_python": build.binding,
        "tinyblas_kernels": build.tinyblas,
        "model": engine.model_name,
        "drafter": engine.drafter_name,
        "k": engine.largest_k,
        "threads": options.threads,
        "context": engine.context_length,
        "flash_attention": options.flash_attention,
        "kernels": engine.target.model.kernels,
        "repack": engine.options.repack,
        "exact": engine.options.exact,
        "quick": quick,
        "holds": all(timed.result.holds for timed in done),
        "seconds": round(seconds, 2),
        "checks": [timed.as_json() for timed in done],
    }


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show what is being done, on one line of a terminal; show nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda words: None
        return

    def show(words: str) -> None:
        sys.stderr.write(f"\r\x1b[K{printable(words)[:_WIDTH]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")
