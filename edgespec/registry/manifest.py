"""The manifest: the models that edgespec knows by name, and where to get each.

It is the file ``models/manifest.toml``. In a wheel that folder is inside the package, in a checkout
beside it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

from edgespec.errors import RegistryError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

__all__ = [
    "BundledSource",
    "HttpsSource",
    "HuggingFaceSource",
    "Manifest",
    "ManifestEntry",
    "Source",
    "WheelSource",
    "load_manifest",
    "models_folder",
    "parse_manifest",
]

_T = TypeVar("_T")
_MANIFEST = "manifest.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.!+]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class HuggingFaceSource:
    """A file in a Hugging Face repository."""

    repo: str
    file: str
    revision: str
    kind: str = "huggingface"


@dataclass(frozen=True)
class HttpsSource:
    """A file at an address; plain http is allowed for this machine only."""

    url: str
    kind: str = "https"


@dataclass(frozen=True)
class WheelSource:
    """A member of a wheel from the package index."""

    package: str
    version: str
    member: str
    kind: str = "wheel"


@dataclass(frozen=True)
class BundledSource:
    """A file that came with this installation, beside the manifest."""

    kind: str = "bundled"


Source = HuggingFaceSource | HttpsSource | WheelSource | BundledSource


@dataclass(frozen=True)
class ManifestEntry:
    """One model: what it is, what its file must be, and where to get it.

    Attributes:
        sha256: None where the checksum that Hugging Face publishes counts; *size* is approximate
            then.
        memory: bytes that answering takes with 4096 tokens of context, for models whose header
            is not here yet.
        drafts: what fits it; the first is the best.
    """

    name: str
    title: str
    file: str
    sha256: str | None
    size: int
    memory: int | None
    licence: str
    architecture: str
    quantization: str
    context_length: int
    chat: str
    drafts: tuple[str, ...]
    sources: tuple[Source, ...]
    default: bool


@dataclass(frozen=True)
class Manifest:
    """All known models, in the manifest's order; exactly one is the default."""

    entries: tuple[ManifestEntry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names."""
        return tuple(entry.name for entry in self.entries)

    @property
    def default(self) -> ManifestEntry:
        """The model that is used if none is named."""
        return next(entry for entry in self.entries if entry.default)

    def find(self, name: str) -> ManifestEntry | None:
        """Return the entry of that name, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)


@lru_cache(maxsize=1)
def load_manifest() -> Manifest:
    """Read the manifest that came with this installation.

    Raises RegistryError if it is missing or malformed.
    """
    path = models_folder() / _MANIFEST
    return parse_manifest(_read(path), str(path))


def models_folder() -> Path:
    """Return the folder of the manifest and of the files that come with it.

    Raises RegistryError if it is missing.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "models", package.parent / "models"):
        if (folder / _MANIFEST).is_file():
            return folder
    raise RegistryError("models/manifest.toml is missing: install edgespec again")


def parse_manifest(text: str, origin: str = "manifest") -> Manifest:
    """Parse a manifest's text; *origin* names it in messages.

    Raises RegistryError, naming the entry and the key, if anything is missing, unknown, of the
    wrong type or out of range.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RegistryError(f"{origin}: not valid TOML: {error}") from None
    table = _Table(document, origin)
    entries = tuple(_entry(item) for item in table.tables("models"))
    table.done()
    _check_whole(entries, origin)
    return Manifest(entries)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RegistryError(f"{path}: cannot be read: {error}") from None


def _entry(table: _Table) -> ManifestEntry:
    name = table.text("name", _matches(_NAME))
    table.where = f"{table.where} ({name})"
    entry = ManifestEntry(
        name=name,
        title=table.text("title"),
        file=table.text("file", _is_plain_gguf_name),
        sha256=table.text("sha256", _matches(_SHA256)) if table.has("sha256") else None,
        size=table.positive("size"),
        memory=table.positive("memory") if table.has("memory") else None,
        licence=table.text("licence"),
        architecture=table.text("architecture"),
        quantization=table.text("quantization"),
        context_length=table.positive("context_length"),
        chat=table.text("chat", lambda _: True),
        drafts=table.texts("drafts"),
        sources=tuple(_source(item) for item in table.tables("sources")),
        default=table.flag("default"),
    )
    table.done()
    if not entry.sources:
        raise RegistryError(f"{table.where}: needs at least one source")
    if entry.sha256 is None and any(source.kind != "huggingface" for source in entry.sources):
        raise RegistryError(f"{table.where}: only Hugging Face may stand in for a sha256")
    return entry


def _source(table: _Table) -> Source:
    kind = table.text("kind")
    source: Source
    if kind == "huggingface":
        source = HuggingFaceSource(
            repo=table.text("repo", _matches(_REPO)),
            file=table.text("file", _is_inner_path),
            revision=table.text("revision"),
        )
    elif kind == "https":
        source = HttpsSource(table.text("url", _is_safe_url))
    elif kind == "wheel":
        source = WheelSource(
            package=table.text("package", _matches(_PACKAGE)),
            version=table.text("version", _matches(_VERSION)),
            member=table.text("member", _is_inner_path),
        )
    elif kind == "bundled":
        source = BundledSource()
    else:
        raise RegistryError(
            f"{table.where}: unknown kind {kind!r} (huggingface, https, wheel or bundled)"
        )
    table.done()
    return source


def _check_whole(entries: tuple[ManifestEntry, ...], origin: str) -> None:
    if sum(entry.default for entry in entries) != 1:
        raise RegistryError(f"{origin}: exactly one model must have default = true")
    for what in ("name", "file"):
        seen: set[str] = set()
        for entry in entries:
            value = getattr(entry, what)
            if value.lower() in seen:  # file systems may ignore case
                raise RegistryError(f"{origin}: two models have the {what} {value!r}")
            seen.add(value.lower())
    known = {entry.name for entry in entries}
    for entry in entries:
        for draft in entry.drafts:
            if draft not in known or draft == entry.name:
                raise RegistryError(f"{origin}: {entry.name}: {draft!r} cannot be its draft")


class _Table:
    """A TOML table that is read key by key, and that reports keys nobody read."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = dict(values)
        self.where = where

    def text(self, key: str, accept: Callable[[str], bool] = bool) -> str:
        value = self._take(key, str)
        if not accept(value):
            raise RegistryError(f"{self.where}: {key} = {value!r} is not acceptable")
        return value

    def has(self, key: str) -> bool:
        return key in self._values

    def positive(self, key: str) -> int:
        value = self._take(key, int)
        if isinstance(value, bool) or value < 1:
            raise RegistryError(f"{self.where}: {key} must be a positive whole number")
        return value

    def flag(self, key: str) -> bool:
        return self._take(key, bool) if key in self._values else False

    def texts(self, key: str) -> tuple[str, ...]:
        values: list[object] = self._take(key, list)
        if not all(isinstance(value, str) for value in values):
            raise RegistryError(f"{self.where}: {key} must be a list of strings")
        return tuple(str(value) for value in values)

    def tables(self, key: str) -> list[_Table]:
        values: list[object] = self._take(key, list)
        found = []
        for number, value in enumerate(values, 1):
            where = f"{self.where}: {key} {number}"
            if not isinstance(value, dict):
                raise RegistryError(f"{where} must be a table")
            found.append(_Table(value, where))
        return found

    def done(self) -> None:
        if self._values:
            raise RegistryError(f"{self.where}: unknown key {min(self._values)!r}")

    def _take(self, key: str, kind: type[_T]) -> _T:
        if key not in self._values:
            raise RegistryError(f"{self.where}: {key} is missing")
        value = self._values.pop(key)
        if not isinstance(value, kind):
            raise RegistryError(
                f"{self.where}: {key} must be {_KINDS[kind]}, not {type(value).__name__}"
            )
        return value


_KINDS: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
}


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda value: pattern.fullmatch(value) is not None


def _is_plain_gguf_name(value: str) -> bool:
    return value.endswith(".gguf") and not value.startswith(".") and not set(value) & set("/\\:\0")


def _is_inner_path(value: str) -> bool:
    """Return whether this is a relative path to a GGUF file inside a repository or archive."""
    path = PurePosixPath(value)
    inside = not path.is_absolute() and not {"..", "."} & set(value.split("/"))
    return inside and path.suffix == ".gguf" and not set(value) & set("\\:\0")


def _is_safe_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
        host = parts.hostname
    except ValueError:
        return False
    secure = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    return bool(host) and secure and not parts.username
