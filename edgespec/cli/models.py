"""`edgespec models`: list, pull, info and remove."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

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

__all__ = ["models"]

_HOLDERS = ("run", "chat", "serve", "bench", "tune", "verify")


@click.group()
def models() -> None:
    """List, download, describe and remove models; also: list, pull, rm, ps."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(as_json: bool) -> None:
    """Show models with a name, what was downloaded, and what other programs have.

    MEMORY is what answering takes with 4096 tokens of context, TOKENS/S what to expect of this
    machine at most without speculation. DRAFT is what can propose tokens beside prompt lookup.
    """
    rows = [*_rows()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for line in _table(rows):
        click.echo(line)


@models.command()
@click.argument("name")
def pull(name: str) -> None:
    """Download a model, unless it is on this machine.

    NAME is one of `edgespec models list`, hf:OWNER/REPO/FILE.gguf, or hf:OWNER/REPO[:Q4_K_M],
    which finds the file.
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

    NAME is whatever MODEL may be elsewhere: a name, hf:OWNER/REPO[:Q4_K_M], a path.
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
    from edgespec.registry.resolve import cached_files

    cache, files = default_cache(), cached_files(name)
    more = f" and {len(files) - 1} more parts" if len(files) > 1 else ""
    if not yes and not confirmed(f"Delete {cache.path(files[0])}{more}?"):
        click.echo("kept", err=True)
        return
    freed = sum(cache.remove(file) for file in files)
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


def _rows() -> Iterator[dict[str, Any]]:
    from edgespec.registry.cache import default_cache
    from edgespec.registry.elsewhere import elsewhere
    from edgespec.registry.fetch import parts
    from edgespec.registry.manifest import load_manifest
    from edgespec.registry.resolve import present
    from edgespec.runtime.memory import expected_speed, memory_bandwidth
    from edgespec.runtime.processors import default_threads

    cache, manifest = default_cache(), load_manifest()
    bandwidth = memory_bandwidth(default_threads())
    shown: set[Path] = set()
    for entry in manifest.entries:
        path = present(entry)
        owner = "" if path is None or path.is_relative_to(cache.folder) else "another program"
        shown.add(cache.path(entry.file) if path is None else path)
        drafts = entry.memory is not None  # a head answers nothing by itself
        yield _row(entry.name, entry.size, path, owner) | {
            "licence": entry.licence,
            "quantization": entry.quantization,
            "memory_bytes": entry.memory,
            "tokens_per_second": expected_speed(entry.size, bandwidth) if drafts else None,
            "draft": entry.drafts[0] if entry.drafts else None,
            "default": entry.default,
        }
    sizes = {record.file: record.size for record in cache.records()}
    for record in cache.records():
        files, path = parts(record.file), cache.path(record.file)
        if path not in shown and files[0] == record.file:
            size = sum(sizes.get(file, 0) for file in files)
            yield _row(record.name, size, path, "") | _speed(size, bandwidth)
    for found in elsewhere():
        if found.path not in shown:
            size = found.size
            yield _row(found.name, size, found.path, found.owner) | _speed(size, bandwidth)


def _speed(size: int, bandwidth: int) -> dict[str, float]:
    from edgespec.runtime.memory import expected_speed

    return {"tokens_per_second": expected_speed(size, bandwidth)}


def _row(name: str, size: int, path: Path | None, owner: str) -> dict[str, Any]:
    return {
        "name": name,
        "size_bytes": size,
        "licence": "",
        "quantization": "",
        "memory_bytes": None,
        "tokens_per_second": None,
        "draft": None,
        "downloaded": path is not None,
        "path": None if path is None else str(path),
        "owner": owner,
        "default": False,
    }


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    cells = [("NAME", "SIZE", "MEMORY", "TOKENS/S", "LICENCE", "DRAFT", "HERE")]
    for row in rows:
        speed = row["tokens_per_second"]
        cells.append(
            (
                shown_line(row["name"]) + (" (default)" if row["default"] else ""),
                _size(row["size_bytes"]),
                _size(row["memory_bytes"]) if row["memory_bytes"] else "-",
                f"{float(f'{speed:.2g}'):g}" if speed else "-",
                row["licence"] or "-",
                row["draft"] or "-",
                row["owner"] or ("yes" if row["downloaded"] else "no"),
            )
        )
    return _aligned(cells)


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _aligned(cells: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()
