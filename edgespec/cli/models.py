"""`edgespec models`: list, pull, info, remove, and what a model file says about itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.opening import megabytes, pull_progress
from edgespec.cli.options import confirmed
from edgespec.errors import EdgespecError, RegistryError, UsageError

if TYPE_CHECKING:
    from edgespec.gguf.header import GGUFHeader
    from edgespec.registry.cache import ModelCache
    from edgespec.registry.manifest import ManifestEntry

__all__ = ["draft_verdicts", "info_lines", "model_facts", "models", "shown_line", "template_of"]

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
    from edgespec.registry.fetch import parts
    from edgespec.registry.manifest import load_manifest
    from edgespec.registry.resolve import elsewhere, present
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


_TEMPLATE_LINES = 4
_TEMPLATE_WIDTH = 100


def model_facts(name: str) -> tuple[dict[str, Any], GGUFHeader | None]:
    """Return everything known of a model, and its header if its file is here."""
    from edgespec.gguf.header import read_header
    from edgespec.registry.cache import default_cache
    from edgespec.registry.manifest import load_manifest
    from edgespec.registry.resolve import present, resolve

    cache = default_cache()
    entry = load_manifest().find(name)
    if entry is not None and present(entry) is None:
        return _facts_of_entry(entry), None
    path = resolve(name, offline=True).path
    header = read_header(path)
    facts = _facts_of_header(header)
    facts["sha256"] = _checksum(path, cache)
    if entry is not None:
        facts |= {"title": entry.title, "licence": entry.licence, "chat": entry.chat}
    return {"model": name, "downloaded": True, **facts, "memory": _memory(header)}, header


def _memory(header: GGUFHeader) -> dict[str, Any]:
    """Return what answering takes: weights are held once, whoever's kernels multiply them."""
    from edgespec.runtime.memory import estimate
    from edgespec.runtime.options import EngineOptions
    from edgespec.runtime.plan import BATCH

    context = EngineOptions().context_for(header.context_length)
    needed = estimate(
        header, context=context, batch=BATCH, outputs=1, flash_attention=False, repack=False
    )
    return {"context": context, "bytes": needed.required, "account": str(needed)}


def _published_memory(entry: ManifestEntry) -> dict[str, Any] | None:
    if entry.memory is None:
        return None
    account = f"about {entry.memory / 1e9:.1f} GB"
    return {"context": 4096, "bytes": entry.memory, "account": account}


def template_of(name: str, header: GGUFHeader | None) -> str:
    """Return the chat template of a model.

    Raises:
        RegistryError: it is not downloaded, or has none.
    """
    if header is None:
        raise RegistryError(f"{name} is not downloaded: run `edgespec models pull {name}` first")
    if header.chat_template is None:
        raise RegistryError(f"{name} has no chat template")
    return header.chat_template


def draft_verdicts(name: str, header: GGUFHeader | None, draft: str | None) -> list[dict[str, Any]]:
    """Say whether the named draft fits, or each draft that the manifest knows."""
    from edgespec.registry.manifest import load_manifest

    if draft is not None:
        return [_verdict(name, header, draft)]
    entry = load_manifest().find(name)
    found = []
    for known in entry.drafts if entry else ():
        try:
            found.append(_verdict(name, header, known))
        except (
            EdgespecError
        ) as error:  # the user did not ask for this one: show the error and continue
            found.append({"draft": known, "fits": None, "reason": str(error)})
    return found


def info_lines(facts: dict[str, Any]) -> Iterator[str]:
    """Yield lines for people, one for each fact."""
    if not facts["downloaded"]:
        hint = f"run `edgespec models pull {facts['model']}`"
        yield f"{facts['model']} is not downloaded ({hint}); this is what is known of it:"
    for label, key, show in _SHOWN:
        if facts.get(key) is not None:
            yield f"{label + ':':<15} {shown_line(show(facts[key]))}"
    if facts["downloaded"]:
        yield from _template_lines(facts["chat_template"])
    for verdict in facts["drafts"]:
        # A refusal says itself that the draft does not fit.
        word = {True: "fits: ", False: "", None: "not checked: "}[verdict["fits"]]
        yield f"{'draft:':<15} {verdict['draft']}: {word}{verdict['reason']}"


def shown_line(text: str) -> str:
    """Return a file's text without characters that would steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


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
        "memory": _published_memory(entry),
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
        "mtp": None if header.mtp is None else asdict(header.mtp),
        "vocabulary_size": header.vocabulary_size,
        "tokenizer": {"model": header.tokenizer_model, "pre": header.tokenizer_pre},
        "bos_token_id": header.bos_token_id,
        "eos_token_id": header.eos_token_id,
        "eot_token_id": header.eot_token_id,
        "chat_template": header.chat_template,
    }


def _checksum(path: Path, cache: ModelCache) -> str:
    """Return the checksum of a file: the recorded one if `holds` has just checked it."""
    from edgespec.registry.cache import sha256_of

    if path.is_relative_to(cache.folder):
        record = cache.record(path.relative_to(cache.folder).as_posix())
        if record is not None:
            return record.sha256
    try:
        return sha256_of(path)
    except OSError as error:
        raise RegistryError(f"{path} cannot be read: {error.strerror}") from None


def _verdict(name: str, header: GGUFHeader | None, draft: str) -> dict[str, Any]:
    from edgespec.errors import ModelLoadError, PairingError
    from edgespec.gguf.header import read_header
    from edgespec.registry.resolve import resolve
    from edgespec.runtime.plan import pair, pair_vocabularies

    if header is None:
        return {"draft": draft, "fits": None, "reason": f"{name} is not downloaded"}
    other = read_header(resolve(draft, offline=True).path)
    verdict: dict[str, Any] = {"draft": draft, "fits": False}
    try:
        pairing = pair(header, other)
        return {
            **verdict,
            "fits": True,
            "reason": pairing.reason + _trained(other, header),
            "shared_vocabulary": pairing.shared_vocabulary,
        }
    except PairingError as error:
        verdict["reason"] = str(error)
        if other.drafts_only:
            return verdict
    try:
        _, shared = pair_vocabularies(header, other)
    except PairingError as error:
        return {**verdict, "reason": str(error)}
    except ModelLoadError:
        return verdict
    assert shared is not None
    reason = f"another tokenizer, but {shared}{_trained(other, header)}"
    return {**verdict, "fits": True, "reason": reason, "shared_vocabulary": len(shared.target)}


def _trained(draft: GGUFHeader, target: GGUFHeader) -> str:
    """Say if a draft was trained on shorter texts than the target."""
    if not 0 < draft.context_length < target.context_length:
        return ""
    return (
        f"; it was trained on {draft.context_length} tokens, the target on {target.context_length}"
    )


def _template_lines(template: str | None) -> Iterator[str]:
    if template is None:
        yield f"{'template:':<15} none"
        return
    lines = [shown_line(line) for line in template.splitlines()]
    for number, line in enumerate(lines[:_TEMPLATE_LINES]):
        shown = line if len(line) <= _TEMPLATE_WIDTH else line[: _TEMPLATE_WIDTH - 3] + "..."
        yield f"{'' if number else 'template:':<15} {shown}"
    if len(lines) > _TEMPLATE_LINES or max(map(len, lines), default=0) > _TEMPLATE_WIDTH:
        yield f"{'':<15} (--template shows all of it)"


def _mtp_line(mtp: dict[str, Any]) -> str:
    """Say whether the layers that predict further tokens can draft."""
    size = f"{mtp['count']}, {megabytes(mtp['size_bytes'])}"
    if mtp["unusable"] is not None:
        return f"{size}; not usable: {mtp['unusable']}"
    return f"{size}; --draft mtp drafts with the first"


def _count(number: int) -> str:
    return f"{number:,}"


_SHOWN = (
    ("model", "title", str),
    ("name in file", "name", str),
    ("path", "path", str),
    ("size", "size_bytes", megabytes),
    ("licence", "licence", str),
    ("architecture", "architecture", str),
    ("parameters", "parameter_count", _count),
    ("quantization", "quantization", str),
    ("context", "context_length", lambda tokens: f"{tokens:,} tokens"),
    ("sliding window", "sliding_window", lambda tokens: f"{tokens:,} tokens"),
    ("MTP layers", "mtp", lambda mtp: _mtp_line(mtp)),
    ("memory", "memory", lambda need: f"{need['account']}, {need['context']:,} tokens of context"),
    ("vocabulary", "vocabulary_size", lambda tokens: f"{tokens:,} tokens"),
    ("notes", "chat", str),
    ("sha256", "sha256", str),
)
