"""`edgespec chat`: a conversation in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgespec.cli.opening import open_engine
from edgespec.cli.options import (
    engine_options,
    limit_options,
    make_engine_options,
    make_limits,
    make_sampling,
    sampling_options,
)
from edgespec.errors import UsageError

__all__ = ["chat"]


@click.command()
@engine_options
@click.option("--system", metavar="TEXT", help="A system prompt.")
@click.option("--load", metavar="FILE", help="Go on with a conversation saved by /save.")
@sampling_options
@limit_options
@click.option("--show", is_flag=True, help="Colour answers by where each token came from.")
@click.pass_context
def chat(context: click.Context, /, **values: Any) -> None:
    """Talk with a model. Without a terminal, each line of standard input is a message.

    Sampling options replace what a file given to --load says.
    """
    from edgespec.chat.storage import load_conversation
    from edgespec.runtime.session import Session
    from edgespec.speculation.settings import draw_settings

    options = make_engine_options(values)
    unparsed = set(values)
    sampling = make_sampling(values)
    given = [name for name in unparsed - set(values) if _is_given(context, name)]
    limits = make_limits(values, overflow="shift")
    system = _valid_text(values["system"])
    saved = load_conversation(Path(values["load"])) if values["load"] else None
    if saved and not given:
        sampling = saved.sampling
    draw_settings(sampling, values["accept"])
    with open_engine(values["model"], options) as engine:
        from edgespec.chat.loop import converse

        session = Session(engine, system, sampling, limits, accept=values["accept"])
        converse(session, show=values["show"], saved=saved)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _valid_text(system: str | None) -> str | None:
    try:
        (system or "").encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError("the system prompt is not UTF-8: convert it first") from None
    return system and system.strip()
