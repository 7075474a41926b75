"""`edgespec models`: list, pull, info and remove."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.model_info import (
    draft_verdicts,
    info_lines,
    model_facts,
    shown_line,
    template_of,
)
from edgespec.cli.opening import megabytes, pull_progress
from edgespec.cli.options import confirmed
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.registry.cache import ModelCache
    from edgespec.registry.manifest import ManifestEntry

__all__ = ["models"]

_HOLDERS = ("run", "chat", "serve", "bench", "tune", "verify")


@click.group()
def models() -> None:
    """List, download, describe and remove models; also: list, pull, rm, ps."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(as_json: bool) -> None:
    """Show the known models, and everything that was downloaded."""
    from edgespec.registry.cache import default_cache
    from edgespec.registry.manifest import load_manifest

    cache = default_cache()
    manifest = load_manifest()
    rows = [_entry_row(entry, cache) for entry in manifest.entries]
    known = {entry.file for entry in manifest.entries}
    for record in cache.records():
        if record.file not in known:
            rows.append(_row(record.name, record.size, "", "", True, path=cache.path(record.file)))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for line in _table(rows):
        click.echo(line)


@models.command()
@click.argument("name")
def pull(name: str) -> None:
    """Download a model, unless it is on this machine.

    NAME is one of `edgespec models list`, or hf:OWNER/REPO/FILE.gguf.
    """
    from edgespec.registry.resolve import resolve

    with pull_progress(name) as progress:
        model = resolve(name, progress=progress)
    if model.entry is None and not name.startswith("hf:"):
        raise UsageError(f"{name} is on this machine already: there is nothing to pull")
    click.echo(str(model.path))


@models.command()
@click.argument("name")
@click.option("--draft", metavar="MODEL", help="Say whether and why this draft fits.")
@click.option("--template", is_flag=True, help="Print the whole chat template, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(name: str, draft: str | None, template: bool, as_json: bool) -> None:
    """Show what is known of a model.

    NAME may also be hf:OWNER/REPO/FILE.gguf, or a path.
    """
    if template and as_json:
        raise UsageError("--template and --json exclude each other: the JSON has the template")
    facts, header = model_facts(name)
    if template:
        _print_template(template_of(name, header))
        return
    facts["drafts"] = draft_verdicts(name, header, draft)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for line in info_lines(facts):
        click.echo(line)


@models.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Delete the downloaded model NAME."""
    from edgespec.registry.cache import default_cache
    from edgespec.registry.resolve import cached_file

    cache, file = default_cache(), cached_file(name)
    if not yes and not confirmed(f"Delete {cache.path(file)}?"):
        click.echo("kept", err=True)
        return
    freed = cache.remove(file)
    click.echo(f"removed {name}: {megabytes(freed)} freed", err=True)


@models.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ps(as_json: bool) -> None:
    """Show which edgespec processes of yours hold a model now."""
    rows = [*_running()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    cells = [("PID", "MEMORY", "COMMAND")]
    cells += [(str(r["pid"]), megabytes(r["memory_bytes"]), shown_line(r["command"])) for r in rows]
    for line in _aligned(cells):
        click.echo(line)


def _running() -> Iterator[dict[str, Any]]:
    """Yield the processes, without the options of their commands: a key may be among them."""
    import psutil

    me = psutil.Process()
    for process in psutil.process_iter():
        try:
            if process.pid == me.pid or process.uids().real != me.uids().real:
                continue
            words, memory = process.cmdline(), process.memory_info().rss
        except psutil.Error:  # it has ended, or is another user's
            continue
        command = _command(words)
        if command and command[0] in _HOLDERS:
            text = " ".join(takewhile(lambda word: not word.startswith("-"), command))
            yield {"pid": process.pid, "memory_bytes": memory, "command": text}


def _command(words: list[str]) -> list[str]:
    """Return what follows the program's name in a command line; nothing if it is another one."""
    for place, word in enumerate(words[:4]):
        if Path(word).name == "edgespec" or Path(word).parts[-2:] == ("edgespec", "__main__.py"):
            return words[place + 1 :]
    return []


def _print_template(text: str) -> None:
    """Print a template: unchanged to a pipe, without control characters to a terminal."""
    if sys.stdout.isatty():
        text = "\n".join(shown_line(line) for line in text.split("\n"))
    click.echo(text, color=True)


def _entry_row(entry: ManifestEntry, cache: ModelCache) -> dict[str, Any]:
    path = cache.path(entry.file)
    row = _row(entry.name, entry.size, entry.licence, entry.quantization, path.is_file(), path=path)
    return row | {"default": entry.default}


def _row(
    name: str, size: int, licence: str, quantization: str, downloaded: bool, *, path: Path
) -> dict[str, Any]:
    return {
        "name": name,
        "size_bytes": size,
        "licence": licence,
        "quantization": quantization,
        "downloaded": downloaded,
        "path": str(path) if downloaded else None,
        "default": False,
    }


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    cells = [("NAME", "SIZE", "LICENCE", "QUANTIZATION", "DOWNLOADED")]
    for row in rows:
        name = row["name"] + (" (default)" if row["default"] else "")
        here = "yes" if row["downloaded"] else "no"
        size = megabytes(row["size_bytes"])
        cells.append((name, size, row["licence"] or "-", row["quantization"] or "-", here))
    return _aligned(cells)


def _aligned(cells: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()
