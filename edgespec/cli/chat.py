"""`edgespec chat`: a conversation in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgespec.cli.opening import open_chat_engine, say_small_once
from edgespec.cli.options import (
    engine_options,
    limit_options,
    make_engine_options,
    make_limits,
    make_sampling,
    sampling_options,
)
from edgespec.errors import UsageError
from edgespec.extras import require_extra

if TYPE_CHECKING:
    from edgespec.chat.archive import Journal
    from edgespec.chat.events import Conversation
    from edgespec.chat.settings import Settings

__all__ = ["chat"]

_LATEST = "latest"


@click.command()
@click.option("--system", metavar="TEXT", help="A system prompt.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value=_LATEST,
    metavar="[ID]",
    help="Continue a stored conversation, by default the latest; see `edgespec chats`.",
)
@click.option("--no-store", is_flag=True, help="Keep nothing of this conversation on disk.")
@click.option(
    "--lookup-chats",
    is_flag=True,
    help="Let prompt lookup copy from stored conversations too.",
)
@click.option("--load", metavar="FILE", help="Continue a conversation saved by /save.")
@click.option("--show", is_flag=True, help="Colour answers by where each token came from.")
@engine_options
@sampling_options
@limit_options
@click.pass_context
def chat(context: click.Context, /, **values: Any) -> int:
    """Talk with a model. Without a terminal, each line of standard input is a message, and
    the exit status says whether all of them were answered.

    --resume keeps model, draft, context length, sampling and limits of the conversation, --load
    its sampling; options on the command line take precedence.
    """
    require_extra("chat", "a conversation")
    from edgespec.chat.conversation import Engines
    from edgespec.chat.recorder import load_conversation
    from edgespec.chat.settings import Settings, changed_settings
    from edgespec.speculation.acceptance import draw_settings

    given = {name for name in values if _is_given(context, name)}
    if "model_option" in given:
        given.add("model")
    if "load" in given and "resume" in given:
        raise UsageError("--load and --resume exclude each other: give one of them")
    saved = load_conversation(Path(values["load"])) if values["load"] else None
    stored = _open_stored(values["resume"], values["no_store"]) if "resume" in given else None
    if stored:
        _take_over(values, given, stored[1])
    options = make_engine_options(values)
    wanted = Settings(make_sampling(values), make_limits(values, "shift"), values["accept"])
    settings = wanted
    if saved:
        settings = changed_settings(wanted._replace(sampling=saved.sampling), wanted, given)
    if stored:
        settings = _settings(stored[1], wanted, given)
    draw_settings(settings.sampling, settings.accept)
    system = _valid_text(values["system"])
    with Engines(open_chat_engine, values["model"], options) as engines:
        from edgespec.chat.loop import converse

        say_small_once(values["model"])
        store, show = not values["no_store"], values["show"]
        good = converse(
            engines,
            settings,
            system=system,
            show=show,
            store=store,
            saved=saved,
            stored=stored,
            lookup=values["lookup_chats"],
        )
    return 0 if good else 1


def _open_stored(word: str, no_store: bool) -> tuple[Journal | None, Conversation]:
    """Open a conversation before the model is loaded, so that an error shows at once."""
    from edgespec.chat.archive import Archive

    archive = Archive()
    id = archive.latest() if word == _LATEST else archive.find(word)
    return (None, archive.load(id)) if no_store else archive.open(id)


def _take_over(values: dict[str, Any], given: set[str], conversation: Conversation) -> None:
    """Take model, draft and context length from the conversation, unless options name others."""
    known = conversation.facts.get("model", {})
    for option, name, kind in (
        ("model", "file", str),
        ("draft", "draft", str),
        ("ctx", "context", int),
    ):
        value = known.get(name)
        if not given & {"model", option} and type(value) is kind and value:
            values[option] = value


def _settings(conversation: Conversation, wanted: Settings, given: set[str]) -> Settings:
    from edgespec.chat.settings import changed_settings
    from edgespec.chat.stored import stored_settings

    known = stored_settings(conversation)
    return wanted if known is None else changed_settings(known, wanted, given)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _valid_text(system: str | None) -> str | None:
    try:
        (system or "").encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError("the system prompt is not UTF-8: convert it first") from None
    return system and system.strip()
