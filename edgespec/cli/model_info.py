"""What `edgespec models info` finds out about a model, and the lines that say it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli.opening import megabytes
from edgespec.errors import EdgespecError, RegistryError

if TYPE_CHECKING:
    from edgespec.gguf.header import GGUFHeader
    from edgespec.registry.cache import ModelCache
    from edgespec.registry.manifest import ManifestEntry

__all__ = ["draft_verdicts", "info_lines", "model_facts", "shown_line", "template_of"]


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
    from edgespec.runtime.plan import BATCH, EngineOptions

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
        if other.reduced or other.eagle:
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
    ("memory", "memory", lambda need: f"{need['account']}, {need['context']:,} tokens of context"),
    ("vocabulary", "vocabulary_size", lambda tokens: f"{tokens:,} tokens"),
    ("notes", "chat", str),
    ("sha256", "sha256", str),
)
