"""Opening an engine from the command line, with its progress on standard error."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

import click

from edgespec.cli.models import pull_progress
from edgespec.runtime.options import EngineOptions

if TYPE_CHECKING:
    from edgespec.runtime.engine import Engine

__all__ = ["open_engine", "say_compiling"]

_SLOW_LOAD_STEPS = 20


def open_engine(model: str | None, options: EngineOptions) -> Engine:
    """Download what is missing, compile what is not compiled yet, load.

    Raises: whatever `Engine` raises.
    """
    from edgespec.runtime.engine import Engine
    from edgespec.runtime.warmup import warm_up

    # The kernels are needed at the end of a load: they are compiled beside it.
    compiler = threading.Thread(target=warm_up, args=(say_compiling,), daemon=True)
    compiler.start()
    with pull_progress(model or "the default model") as download:
        engine = Engine(model, options, progress=_Loading(), download=download)
    try:
        compiler.join()
    except BaseException:
        engine.close()
        raise
    if engine.notice:
        click.echo(f"edgespec: {engine.notice}", err=True)
    return engine


def say_compiling() -> None:
    """Explain a wait to the user."""
    click.echo("Compiling kernels for this processor, once (about 15 s) ...", err=True)


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
