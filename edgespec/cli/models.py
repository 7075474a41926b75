"""`edgespec models`: list, pull, info and remove."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.confirm import confirmed
from edgespec.errors import EdgespecError, RegistryError, UsageError
from edgespec.extras import has_extra

if TYPE_CHECKING:
    from edgespec.gguf.header import GGUFHeader
    from edgespec.registry.cache import ModelCache
    from edgespec.registry.manifest import ManifestEntry
    from edgespec.registry.progress import Progress

__all__ = ["models", "pull_progress"]

_TEMPLATE_LINES = 4
_TEMPLATE_WIDTH = 100


@click.group()
def models() -> None:
    """Models: what is known, what is here, and what is in a file."""


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
    """Download a model, unless it is here.

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
    facts, header = _facts(name)
    if template:
        _print_template(_template_of(name, header))
        return
    facts["drafts"] = _drafts(name, header, draft)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for line in _info_lines(facts):
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
    click.echo(f"removed {name}: {_megabytes(freed)} freed", err=True)


@contextmanager
def pull_progress(name: str) -> Iterator[Progress]:
    """A callback that shows a download on standard error.

    In a terminal it is a bar; elsewhere a line when bytes start to come and one when they end.
    Nothing is shown for a model that is already there.
    """
    if not (sys.stderr.isatty() and has_extra("chat")):
        yield from _lines(name)
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


def _lines(name: str) -> Iterator[Progress]:
    latest: list[int] = []

    def note(done: int, total: int | None) -> None:
        if not latest:
            size = f" ({_megabytes(total)})" if total else ""
            click.echo(f"downloading {name}{size} ...", err=True)
        latest[:] = [done]

    yield note
    if latest:
        click.echo(f"downloaded {name} ({_megabytes(latest[0])})", err=True)


def _facts(name: str) -> tuple[dict[str, Any], GGUFHeader | None]:
    """Everything known of a model, and its header if its file is here."""
    from edgespec.gguf.header import read_header
    from edgespec.registry.cache import default_cache
    from edgespec.registry.manifest import load_manifest
    from edgespec.registry.resolve import resolve

    cache = default_cache()
    entry = load_manifest().find(name)
    if entry is not None and not cache.holds(entry.file, entry.sha256):
        return _facts_of_entry(entry), None
    path = resolve(name, offline=True).path
    header = read_header(path)
    facts = _facts_of_header(header)
    facts["sha256"] = _checksum(path, cache)
    if entry is not None:
        facts |= {"title": entry.title, "licence": entry.licence, "chat": entry.chat}
    return {"model": name, "downloaded": True, **facts}, header


def _facts_of_entry(entry: ManifestEntry) -> dict[str, Any]:
    return {
        "model": entry.name,
        "downloaded": False,
        "title": entry.title,
        "licence": entry.licence,
        "chat": entry.chat,
        "path": None,
        "size_bytes": entry.size,
        "architecture": entry.architecture,
        "quantization": entry.quantization,
        "context_length": entry.context_length,
        "vocabulary_size": None,
        "chat_template": None,
        "sha256": entry.sha256,
    }


def _facts_of_header(header: GGUFHeader) -> dict[str, Any]:
    return {
        "path": str(header.path),
        "size_bytes": header.size_bytes,
        "name": header.name,
        "architecture": header.architecture,
        "quantization": header.quantization,
        "parameter_count": header.parameter_count,
        "context_length": header.context_length,
        "embedding_length": header.embedding_length,
        "block_count": header.block_count,
        "head_count": header.head_count,
        "head_count_kv": list(header.head_count_kv),
        "sliding_window": header.sliding_window,
        "vocabulary_size": header.vocabulary_size,
        "tokenizer": {"model": header.tokenizer_model, "pre": header.tokenizer_pre},
        "bos_token_id": header.bos_token_id,
        "eos_token_id": header.eos_token_id,
        "eot_token_id": header.eot_token_id,
        "chat_template": header.chat_template,
    }


def _checksum(path: Path, cache: ModelCache) -> str:
    """The recorded checksum of a cached file, which `holds` has just checked; else a fresh one."""
    from edgespec.registry.cache import sha256_of

    if path.is_relative_to(cache.folder):
        record = cache.record(path.relative_to(cache.folder).as_posix())
        if record is not None:
            return record.sha256
    try:
        return sha256_of(path)
    except OSError as error:
        raise RegistryError(f"{path} cannot be read: {error.strerror}") from None


def _template_of(name: str, header: GGUFHeader | None) -> str:
    if header is None:
        raise RegistryError(f"{name} is not downloaded: run `edgespec models pull {name}` first")
    if header.chat_template is None:
        raise RegistryError(f"{name} has no chat template")
    return header.chat_template


def _print_template(text: str) -> None:
    """Exactly as it is for a pipe; in a terminal without what would steer it."""
    if sys.stdout.isatty():
        text = "\n".join(_printable(line) for line in text.split("\n"))
    click.echo(text, color=True)


def _drafts(name: str, header: GGUFHeader | None, draft: str | None) -> list[dict[str, Any]]:
    """Whether the named draft fits, or each draft the manifest knows."""
    from edgespec.registry.manifest import load_manifest

    if draft is not None:
        return [_verdict(name, header, draft)]
    entry = load_manifest().find(name)
    found = []
    for known in entry.drafts if entry else ():
        try:
            found.append(_verdict(name, header, known))
        except EdgespecError as error:  # the user did not ask for this one: say it, and go on
            found.append({"draft": known, "fits": None, "reason": str(error)})
    return found


def _verdict(name: str, header: GGUFHeader | None, draft: str) -> dict[str, Any]:
    from edgespec.errors import ModelLoadError, PairingError
    from edgespec.gguf.header import read_header
    from edgespec.registry.resolve import resolve
    from edgespec.runtime.drafting import pair
    from edgespec.runtime.loading import pair_vocabularies

    if header is None:
        return {"draft": draft, "fits": None, "reason": f"{name} is not downloaded"}
    other = read_header(resolve(draft, offline=True).path)
    verdict: dict[str, Any] = {"draft": draft, "fits": False}
    try:
        pairing = pair(header, other)
        return {
            **verdict,
            "fits": True,
            "reason": pairing.reason,
            "shared_vocabulary": pairing.shared_vocabulary,
        }
    except PairingError as error:
        verdict["reason"] = str(error)
        if other.reduced or other.eagle:
            return verdict
    try:
        _, shared = pair_vocabularies(header, other)
    except PairingError as error:
        return {**verdict, "reason": str(error)}
    except ModelLoadError:
        return verdict
    assert shared is not None
    reason = f"another tokenizer, but {shared}"
    return {**verdict, "fits": True, "reason": reason, "shared_vocabulary": len(shared.target)}


def _info_lines(facts: dict[str, Any]) -> Iterator[str]:
    if not facts["downloaded"]:
        hint = f"run `edgespec models pull {facts['model']}`"
        yield f"{facts['model']} is not downloaded ({hint}); this is what is known of it:"
    for label, key, show in _SHOWN:
        if facts.get(key) is not None:
            yield f"{label + ':':<15} {_printable(show(facts[key]))}"
    if facts["downloaded"]:
        yield from _template_lines(facts["chat_template"])
    for verdict in facts["drafts"]:
        # A refusal says itself that the draft does not fit.
        word = {True: "fits: ", False: "", None: "not checked: "}[verdict["fits"]]
        yield f"{'draft:':<15} {verdict['draft']}: {word}{verdict['reason']}"


def _template_lines(template: str | None) -> Iterator[str]:
    if template is None:
        yield f"{'template:':<15} none"
        return
    lines = [_printable(line) for line in template.splitlines()]
    for number, line in enumerate(lines[:_TEMPLATE_LINES]):
        shown = line if len(line) <= _TEMPLATE_WIDTH else line[: _TEMPLATE_WIDTH - 3] + "..."
        yield f"{'' if number else 'template:':<15} {shown}"
    if len(lines) > _TEMPLATE_LINES or max(map(len, lines), default=0) > _TEMPLATE_WIDTH:
        yield f"{'':<15} (--template shows all of it)"


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
        size = _megabytes(row["size_bytes"])
        cells.append((name, size, row["licence"] or "-", row["quantization"] or "-", here))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _printable(text: str) -> str:
    """A file's text without what would steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _count(number: int) -> str:
    return f"{number:,}"


_SHOWN = (
    ("model", "title", str),
    ("name in file", "name", str),
    ("path", "path", str),
    ("size", "size_bytes", _megabytes),
    ("licence", "licence", str),
    ("architecture", "architecture", str),
    ("parameters", "parameter_count", _count),
    ("quantization", "quantization", str),
    ("context", "context_length", lambda tokens: f"{tokens:,} tokens"),
    ("sliding window", "sliding_window", lambda tokens: f"{tokens:,} tokens"),
    ("vocabulary", "vocabulary_size", lambda tokens: f"{tokens:,} tokens"),
    ("notes", "chat", str),
    ("sha256", "sha256", str),
)
