"""Find a model in a Hugging Face repository: the files it has, and those of one quantization.

What the hub says is checked before it is used: the length of its answer, names, sizes, checksums.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from edgespec.errors import DownloadError
from edgespec.registry.fetch import hub_headers, hub_reason

__all__ = ["FILE", "REPOSITORY", "Listing", "RemoteFile", "choose", "list_files", "parts", "whole"]

REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
FILE = r"(?:[\w][\w.+ -]*/){0,8}[\w][\w.+ -]{0,250}\.gguf"

_MOST_BYTES = 16 << 20
_MOST_FILES = 20_000
_MOST_SIZE = 1 << 43
_MOST_PARTS = 999
_SECONDS = 10.0
_SHOWN = 500
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(FILE, re.ASCII)
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_QUANTIZATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|FP16|F32))(?=$|[-._/])"
)
_NO_MODEL = re.compile(r"(?:^|[-._/])(mmproj|imatrix)(?=$|[-._/])", re.IGNORECASE)
# The usual one first, then those near it in size, better before worse, and large ones last.
_ORDER = [
    "Q4_K_M",
    "Q4_K_S",
    "Q4_0",
    "Q4_1",
    "Q4_K_XL",
    "Q4_K_L",
    "IQ4_XS",
    "IQ4_NL",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_0",
    "Q5_1",
    "Q5_K_XL",
    "Q5_K_L",
    "Q6_K",
    "Q6_K_L",
    "Q6_K_XL",
    "Q8_0",
    "Q8_K_XL",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_XL",
    "IQ3_M",
    "Q3_K_S",
    "IQ3_S",
    "IQ3_XS",
    "IQ3_XXS",
    "Q2_K_L",
    "Q2_K_XL",
    "Q2_K",
    "MXFP4",
    "MXFP4_MOE",
    "F16",
    "FP16",
    "BF16",
    "F32",
]


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub describes it; ``sha256`` is None for one that is kept in git itself."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Listing:
    """The GGUF files of a repository at one commit."""

    commit: str
    files: dict[str, RemoteFile]


def list_files(repo: str) -> Listing:
    """Ask the hub for the files of a repository.

    Raises DownloadError if it cannot be asked within seconds, refuses, or its answer is not sound.
    """
    import httpx

    try:
        from huggingface_hub import constants

        url = f"{constants.ENDPOINT}/api/models/{repo}"
        headers = hub_headers()
        with (
            httpx.Client(timeout=_SECONDS, follow_redirects=True, headers=headers) as client,
            client.stream("GET", url, params={"blobs": "true"}) as response,
        ):
            if response.status_code != 200:
                raise DownloadError(_refusal(response.status_code))
            data = _read(response.iter_bytes())
    except DownloadError as error:
        raise DownloadError(f"{repo}: {error}") from None
    except Exception as error:
        raise DownloadError(f"{repo}: {hub_reason(error)}") from None
    return _parse(repo, data)


def choose(names: Iterable[str], quantization: str | None) -> tuple[str, ...]:
    """Return the file of a quantization, or all parts of it in their order.

    Without *quantization*, it is Q4_K_M, or what is there that is most like it.

    Raises DownloadError, naming what there is, if nothing fits or several models do.
    """
    sets: dict[str, list[tuple[str, ...]]] = {}
    for files in _wholes(names):
        sets.setdefault(_quantization(files[0]), []).append(files)
    if not sets:
        raise DownloadError("it has no whole GGUF model")
    wanted = quantization.upper() if quantization else min(sets, key=_rank)
    found = sets.get(wanted) or sets.get(f"UD-{wanted}")
    if not found:
        known = ", ".join(sorted((q or "one of no name" for q in sets), key=_rank))
        raise DownloadError(f"it has no {wanted}: it has {known[:_SHOWN]}")
    if len(found) > 1:
        several = ", ".join(files[0] for files in found)
        raise DownloadError(f"several of its files are {wanted or 'models'}: {several[:_SHOWN]}")
    return found[0]


def parts(name: str) -> tuple[str, ...]:
    """Return the names of all parts of the model that a file belongs to, in their order."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]) <= _MOST_PARTS:
        return (name,)
    count = int(match["count"])
    return tuple(f"{match['stem']}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1))


def whole(name: str, names: Iterable[str]) -> bool:
    """Return whether *name* begins a model all of whose parts are among *names*."""
    files = parts(name)
    return files[0] == name and set(files) <= set(names)


def _wholes(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the files of each whole model among names, without projectors and matrices."""
    known = set(names)
    for name in sorted(known):
        if whole(name, known) and not _NO_MODEL.search(name):
            yield parts(name)


def _quantization(name: str) -> str:
    """Return the quantization that a file's name, or else its folder's, gives; "" if none does."""
    match = _PART.fullmatch(name)
    stem = (match["stem"] if match else name.removesuffix(".gguf")).upper()
    folder, _, base = stem.rpartition("/")
    found = _QUANTIZATION.findall(base) or _QUANTIZATION.findall(folder)
    return str(found[-1]) if found else ""


def _rank(quantization: str) -> tuple[int, str]:
    plain = quantization.removeprefix("UD-")
    place = 2 * _ORDER.index(plain) if plain in _ORDER else 2 * len(_ORDER)
    return place + (plain != quantization), quantization


def _refusal(status: int) -> str:
    return {
        401: "no such repository, or it is private (HF_TOKEN)",
        403: "needs an accepted licence and a login (`hf auth login`)",
        404: "no such repository",
        429: "the hub wants fewer requests: wait a little",
    }.get(status, f"HTTP {status}")


def _read(chunks: Iterable[bytes]) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > _MOST_BYTES:
            raise DownloadError("the hub's list of files is too long")
    return bytes(data)


def _parse(repo: str, data: bytes) -> Listing:
    try:
        answer = json.loads(data)
        commit, entries = answer["sha"], answer["siblings"]
        if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
            raise ValueError("the commit")
        if not isinstance(entries, list) or len(entries) > _MOST_FILES:
            raise ValueError("the list of files")
        found = [file for entry in entries if (file := _file(entry))]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadError(
            f"{repo}: the hub's answer is not sound ({type(error).__name__})"
        ) from None
    return Listing(commit, {file.name: file for file in found})


def _file(entry: Any) -> RemoteFile | None:
    """Check the description of one file; None for one that no reference could name."""
    name, size, stored = entry["rfilename"], entry.get("size"), entry.get("lfs") or {}
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        return None
    sha256 = stored.get("sha256")
    if type(size) is not int or not 0 < size <= _MOST_SIZE:
        raise ValueError(f"the size of {name}")
    if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise ValueError(f"the checksum of {name}")
    return RemoteFile(name, size, sha256)
