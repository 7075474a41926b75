"""Open an engine from the command line, and show on standard error what it waits for."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from edgespec.chat.characters import printable
from edgespec.extras import has_extra
from edgespec.files import cache_root

if TYPE_CHECKING:
    from edgespec.registry.fetch import Progress
    from edgespec.runtime.embedding import Embedder
    from edgespec.runtime.engine import Engine
    from edgespec.runtime.options import EngineOptions

__all__ = [
    "SAID",
    "megabytes",
    "open_chat_engine",
    "open_engine",
    "open_for_serving",
    "pull_progress",
    "say_compiling",
    "say_small_once",
]

SAID = "said-that-the-default-is-small"
"""A file in the cache folder."""

_SLOW_LOAD_STEPS = 20


def open_chat_engine(model: str | None, options: EngineOptions) -> Engine:
    """Open an engine, for a model that has a chat template.

    Raises: whatever `Engine` raises, and `TemplateError` before anything is loaded.
    """
    from edgespec.gguf.header import read_header
    from edgespec.registry.resolve import resolve
    from edgespec.templates import require_template

    with pull_progress(model or "the default model") as download:
        found = resolve(model, progress=download, offline=options.offline)
    require_template(read_header(found.path))
    return open_engine(model, options)


def open_engine(model: str | None, options: EngineOptions) -> Engine:
    """Download what is missing, compile what is not compiled yet, load.

    Raises: whatever `Engine` raises.
    """
    from edgespec.runtime.engine import Engine
    from edgespec.runtime.loading import warm_up
    from edgespec.sampling.kernel import replaced_folder

    # The engine waits for the kernels too, but a model may have to be downloaded before.
    compiler = threading.Thread(
        target=warm_up, args=(say_compiling,), kwargs={"drafting": False}, daemon=True
    )
    compiler.start()
    with pull_progress(model or "the default model") as download:
        engine = Engine(model, options, progress=_Loading(), download=download)
    for line in (engine.notice, replaced_folder()):
        if line:
            click.echo(f"edgespec: {printable(line)}", err=True)
    return engine


def open_for_serving(
    model: str | None, options: EngineOptions, pooling: str | None
) -> Engine | Embedder:
    """Open an engine, or what an embedding model is.

    Raises: whatever `Engine` or `load_embedder` raises.
    """
    from edgespec.gguf.header import read_header
    from edgespec.registry.resolve import resolve
    from edgespec.runtime.embedding import load_embedder

    with pull_progress(model or "the default model") as download:
        found = resolve(model, progress=download, offline=options.offline)
    if model is not None and read_header(found.path, embedding=True).embeds:
        return load_embedder(model, options, pooling=pooling)
    return open_engine(model, options)


def say_compiling() -> None:
    """Explain a wait to the user."""
    click.echo("Compiling kernels for this processor, once (10 to 20 s) ...", err=True)


def say_small_once(model: str | None) -> None:
    """Tell people in a terminal, once on a machine, that there are better models than the default.

    Nothing is said where a model was named, nor where the fact could not be kept.
    """
    if model is not None or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    said = cache_root() / SAID
    try:
        said.parent.mkdir(parents=True, exist_ok=True)
        said.touch(exist_ok=False)
    except OSError:
        return
    click.echo(
        "edgespec: the default model is small, so that it starts at once: a toy beside the others. "
        "`edgespec list` shows them; `edgespec run NAME PROMPT` uses one. (Said once.)",
        err=True,
    )


@contextmanager
def pull_progress(name: str) -> Iterator[Progress]:
    """Yield a callback that shows a download on standard error.

    In a terminal it is a bar; elsewhere a line when bytes start to come and one when they end.
    Nothing is shown for a model that is already there.
    """
    if not (sys.stderr.isatty() and has_extra("chat")):
        yield from _download_lines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Bar(*columns, TransferSpeedColumn(), console=Console(stderr=True))
    task = bar.add_task(name, total=None)

    def show(done: int, total: int | None) -> None:
        # Only while bytes come: a bar on the screen garbles what others write to it.
        bar.start()
        bar.update(task, completed=done, total=total)
        if done == total:
            bar.stop()

    try:
        yield show
    finally:
        bar.stop()


def _download_lines(name: str) -> Iterator[Progress]:
    latest: list[int] = []

    def note(done: int, total: int | None) -> None:
        if not latest:
            size = f" ({megabytes(total)})" if total else ""
            click.echo(f"downloading {name}{size} ...", err=True)
        latest[:] = [done]

    yield note
    if latest:
        click.echo(f"downloaded {name} ({megabytes(latest[0])})", err=True)


def megabytes(size: int) -> str:
    """Return a size for people to read."""
    return f"{size / 1e6:,.1f} MB"


class _Loading:
    """A percentage on one line of a terminal; silent elsewhere and for fast loads."""

    def __init__(self) -> None:
        self._shown = False
        self._step = -1
        self._calls = 0

    def __call__(self, task: str, fraction: float) -> None:
        step = int(fraction * _SLOW_LOAD_STEPS)
        if step == self._step or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            return
        self._step = step
        if fraction < 1.0:
            self._shown = True
            sys.stderr.write(f"\r\x1b[K{task.capitalize()} {fraction:4.0%}")
        elif self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
