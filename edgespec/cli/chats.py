"""`edgespec chats`: stored conversations."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.options import confirmed
from edgespec.extras import require_extra

if TYPE_CHECKING:
    from edgespec.chat.events import Conversation

__all__ = ["chats"]

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
    from edgespec.chat.characters import printable
    from edgespec.chat.recorder import as_markdown

    click.echo(printable(as_markdown(_load(id))), nl=False)


@chats.command()
@click.argument("id")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export(id: str, file: Path, force: bool) -> None:
    """Write a conversation to FILE.

    The ending of FILE is the format: .json, which `edgespec chat --load` reads, or .md.
    """
    from edgespec.chat.recorder import exporter
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
    from edgespec.chat.characters import printable

    return repr(printable(one.title[:40]))


def _warn(line: str) -> None:
    click.echo(f"edgespec: {line}", err=True)


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
