"""`edgespec distill`: a draft for a target, made of nothing but the target."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

import click

from edgespec.cli.opening import pull_progress
from edgespec.errors import CancelledError, UsageError
from edgespec.extras import require_extra

__all__ = ["distill"]

_WIDTH = 160
_EVERY_S = 15.0


@click.command()
@click.argument("target", required=False)
@click.option("-o", "--output", required=True, metavar="FILE", help="The draft, a .gguf file.")
@click.option(
    "--kind",
    type=click.Choice(["tiny", "eagle3"]),
    default="tiny",
    show_default=True,
    help="A small model of its own, or a head on the target's hidden states.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="FILE",
    help="Prompts to use in place of the target's own: .txt with blank lines between them, "
    '.jsonl with "prompt" or "messages", or a saved chat. May be repeated.',
)
@click.option("--hours", default=2.0, show_default=True, help="For everything, over all runs.")
@click.option("--vocabulary", default=8192, show_default=True, help="Tokens of the draft.")
@click.option(
    "--from",
    "start",
    metavar="DRAFT",
    help="Go on from this draft, with its vocabulary: a file that distill wrote, or a name.",
)
@click.option(
    "--work", metavar="DIR", help="Text and checkpoints; without it FILE.work beside the draft."
)
@click.option("--threads", default=0, help="Without it one for each physical core.")
@click.option("--plan", "only_plan", is_flag=True, help="Say what it would take, and stop.")
def distill(
    target: str | None,
    output: str,
    kind: str,
    data: tuple[str, ...],
    hours: float,
    vocabulary: int,
    start: str | None,
    work: str | None,
    threads: int,
    only_plan: bool,
) -> None:
    """Train a draft for TARGET on text that TARGET writes itself.

    Nothing is downloaded but TARGET. Ctrl-C stops at any time, and the same command goes on from
    there; with more --hours it goes on with what a shorter run has made.
    """
    require_extra("distill", "training")
    path = Path(output)
    if path.suffix != ".gguf":
        raise UsageError(f"the draft is to be {output}: give a name that ends in .gguf")
    if not 64 <= vocabulary <= 1 << 20:
        raise UsageError(f"vocabulary is {vocabulary}: it has to be 64 or more")
    if not 0 <= threads <= 512:
        raise UsageError(f"threads is {threads}: it has to be between 0 and 512")
    from edgespec.distill.make import Request, make_draft
    from edgespec.registry.resolve import resolve
    from edgespec.runtime.options import default_threads

    with pull_progress(target or "the default model") as download:
        found = resolve(target, progress=download)
    request = Request(
        found.path,
        path,
        kind,
        tuple(Path(name) for name in data),
        hours,
        vocabulary,
        None if start is None else resolve(start).path,
        Path(work) if work else path.with_name(f"{path.name}.work"),
        threads or default_threads(),
    )
    with _Report() as report:
        try:
            make_draft(request, report, only_plan=only_plan)
        except KeyboardInterrupt:
            raise CancelledError(
                "interrupted: everything so far is kept, the same command goes on from here"
            ) from None


class _Report:
    """Results on standard output; progress on one line of a terminal, or a line now and then."""

    def __init__(self) -> None:
        self._said = -_EVERY_S
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def line(self, text: str) -> None:
        """Something that stays."""
        self._clear()
        click.echo(text)

    def now(self, text: str) -> None:
        """Something that the next one replaces."""
        now = perf_counter()
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text[:_WIDTH]}")
        elif now - self._said >= _EVERY_S:
            self._said = now
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
