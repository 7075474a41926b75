"""`edgespec distill`: train a draft for a target, from nothing but the target."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from time import perf_counter

import click

from edgespec.cli.opening import pull_progress
from edgespec.errors import CancelledError, UsageError
from edgespec.extras import has_extra, require_extra

__all__ = ["distill"]

_WIDTH = 160
_EVERY_S = 15.0


@click.command()
@click.argument("target", required=False)
@click.option("-o", "--output", required=True, metavar="FILE", help="The draft, a .gguf file.")
@click.option(
    "--kind",
    type=click.Choice(["tiny", "eagle3", "medusa"]),
    default="tiny",
    show_default=True,
    help="A small model of its own, or heads on the target's hidden states.",
)
@click.option(
    "--data",
    multiple=True,
    metavar="FILE",
    help="Prompts to use instead of the target's own: .txt with blank lines between them, "
    '.jsonl with "prompt" or "messages", or a saved chat. May be repeated.',
)
@click.option(
    "--documents",
    multiple=True,
    metavar="FOLDER",
    help="Text and code to make tasks from: Markdown, plain text, source files. May be repeated.",
)
@click.option(
    "--hours", default=2.0, show_default=True, help="Hours for everything, over all runs."
)
@click.option(
    "--vocabulary", default=8192, show_default=True, help="Size of the draft's vocabulary."
)
@click.option(
    "--from",
    "start",
    metavar="DRAFT",
    help="Continue from this draft: a file that distill wrote, or a name. "
    "A tiny one keeps its vocabulary. Published Medusa heads (.safetensors) are converted.",
)
@click.option(
    "--work", metavar="DIR", help="Folder of texts and checkpoints; by default FILE.work."
)
@click.option("--threads", default=0, help="0: one per physical core.")
@click.option("--plan", "only_plan", is_flag=True, help="Show what training would take, and stop.")
def distill(
    target: str | None,
    output: str,
    kind: str,
    data: tuple[str, ...],
    documents: tuple[str, ...],
    hours: float,
    vocabulary: int,
    start: str | None,
    work: str | None,
    threads: int,
    only_plan: bool,
) -> None:
    """Train a draft for TARGET on text that TARGET writes itself.

    Only TARGET is downloaded. Ctrl-C stops at any time, and the same command continues from there;
    with more --hours it continues what a shorter run has made.
    """
    converted = Path(start) if start is not None and start.endswith(".safetensors") else None
    if converted is None and not only_plan:
        require_extra("distill", "training")
    elif converted is not None and kind != "medusa":
        raise UsageError(f"{start} is converted to a draft of another kind: add --kind medusa")
    path = Path(output)
    if path.suffix != ".gguf":
        raise UsageError(f"the draft is to be {output}: give a name that ends in .gguf")
    if not 64 <= vocabulary <= 1 << 20:
        raise UsageError(f"vocabulary is {vocabulary}: it has to be 64 or more")
    if data and documents:
        raise UsageError("--data has the prompts already: give either --data or --documents")
    if not 0 <= threads <= 512:
        raise UsageError(f"threads is {threads}: it has to be between 0 and 512")
    from edgespec.registry.resolve import resolve

    with pull_progress(target or "the default model") as download:
        found = resolve(target, progress=download)
    folder = Path(work) if work else path.with_name(f"{path.name}.work")
    if converted is not None:
        from edgespec.distill.published import convert_heads

        click.echo(convert_heads(converted, found.path, path, vocabulary, folder))
        return
    from edgespec.distill.plan import Request, estimate_plan
    from edgespec.runtime.processors import default_threads

    request = Request(
        found.path,
        path,
        kind,
        tuple(Path(name) for name in data),
        tuple(Path(name) for name in documents),
        hours,
        vocabulary,
        None if start is None else resolve(start).path,
        folder,
        threads or default_threads(),
    )
    with closing(_Report()) as report:
        try:
            if not has_extra("distill"):
                estimate_plan(request, report)
            else:
                from edgespec.distill.make import make_draft

                make_draft(request, report, only_plan=only_plan)
        except KeyboardInterrupt:
            raise CancelledError(
                "interrupted: everything so far is kept, the same command continues from here"
            ) from None


class _Report:
    """Results on standard output; progress on one line of a terminal, or a line now and then."""

    def __init__(self) -> None:
        self._said = -_EVERY_S
        self._terminal = sys.stderr.isatty()

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.close()
        click.echo(text)

    def now(self, text: str) -> None:
        """Show a line that the next one replaces."""
        now = perf_counter()
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text[:_WIDTH]}")
        elif now - self._said >= _EVERY_S:
            self._said = now
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Clear what is there for now."""
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
