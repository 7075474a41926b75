"""`edgespec chat` and `edgespec chats`: a conversation in the terminal, and stored ones."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgespec.cli.opening import open_chat_engine, say_small_once
from edgespec.cli.options import (
    confirmed,
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

__all__ = ["chat", "chats"]

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
    from edgespec.chat.archive import load_conversation
    from edgespec.chat.conversation import Engines
    from edgespec.chat.settings import Settings, changed_settings
    from edgespec.speculation.draws import draw_settings

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


_NARROWEST, _WIDEST = 40, 160


@click.group()
def chats() -> None:
    """Manage stored conversations. `edgespec chat --resume ID` continues one.

    ID is what the list shows, or a number of the list without words.
    """


@chats.command("list")
@click.argument("words", nargs=-1)
@click.option("-n", "most", type=click.IntRange(min=1), help="Show at most this many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_chats(words: tuple[str, ...], most: int | None, as_json: bool) -> None:
    """Show conversations, the one used last first.

    With WORDS, only those that have all of them.
    """
    require_extra("chat", "a list of conversations")
    from edgespec.chat.archive import Archive
    from edgespec.chat.events import list_lines, matches

    found = (one for one in Archive().conversations(_warn) if not words or matches(one, words))
    listed = [*islice(found, most)]
    if as_json:
        click.echo(json.dumps([_row(one) for one in listed], ensure_ascii=False, indent=2))
        return
    for line in list_lines(listed, _width()):
        click.echo(line)
    if not listed:
        _warn("no conversation has all these words" if words else "no conversation is stored yet")


@chats.command()
@click.argument("words", nargs=-1, required=True)
def search(words: tuple[str, ...]) -> None:
    """Show the messages that have all WORDS."""
    require_extra("chat", "a list of messages")
    from edgespec.chat.archive import Archive
    from edgespec.chat.events import hit_lines, hits, list_lines

    width = _width()
    found = False
    for one in Archive().conversations(_warn):
        if next(hits(one, words), None):
            found = True
            for line in (*list_lines([one], width, number=False), *hit_lines(one, words, width)):
                click.echo(line)
    if not found:
        _warn("no message has all these words")


@chats.command()
@click.argument("id")
def show(id: str) -> None:
    """Print a conversation as Markdown."""
    from edgespec.chat.archive import as_markdown
    from edgespec.chat.markdown import printable

    click.echo(printable(as_markdown(_load(id))), nl=False)


@chats.command()
@click.argument("id")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export(id: str, file: Path, force: bool) -> None:
    """Write a conversation to FILE.

    The ending of FILE is the format: .json, which `edgespec chat --load` reads, or .md.
    """
    from edgespec.chat.archive import exporter
    from edgespec.files import write_new_file

    write = exporter(file)
    text = write(_load(id))
    write_new_file(file, text.encode("utf-8"), force=force, hint="--force")


@chats.command()
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(id: str, yes: bool) -> None:
    """Delete a conversation."""
    from edgespec.chat.archive import Archive
    from edgespec.chat.recorder import CacheShelf

    archive = Archive()
    id = archive.find(id)
    if not yes and not confirmed(f"Delete {id}, {_title(archive.load(id))}?"):
        click.echo("kept", err=True)
        return
    archive.remove(id)
    CacheShelf().remove(id)


def _load(id: str) -> Conversation:
    from edgespec.chat.archive import Archive

    archive = Archive()
    return archive.load(archive.find(id))


def _row(one: Conversation) -> dict[str, object]:
    return {
        "id": one.id,
        "title": one.title,
        "created": one.created,
        "updated": one.updated,
        "messages": one.messages,
        "unanswered": one.unanswered,
        "model": one.model,
    }


def _title(one: Conversation) -> str:
    from edgespec.chat.markdown import printable

    return repr(printable(one.title[:40]))


def _warn(line: str) -> None:
    click.echo(f"edgespec: {line}", err=True)


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
