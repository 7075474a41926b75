"""Fetch a file into a partial file, over https or from Hugging Face, and list what that has.

A download that was interrupted is continued only if the server confirms, by the strong ETag it
gave the first time, that the file is still the same. For Hugging Face, huggingface_hub finds the
file, signs the request and knows its checksum; the bytes come the same way as from any address,
so that they are counted, continued and bounded the same way.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import ChecksumError, DownloadError
from edgespec.files import read_at_most
from edgespec.registry.cache import validator_path
from edgespec.registry.manifest import HuggingFaceSource

if TYPE_CHECKING:
    import httpx

__all__ = [
    "FILE",
    "REPOSITORY",
    "Listing",
    "Progress",
    "RemoteFile",
    "choose",
    "fetch_huggingface",
    "fetch_url",
    "hub_headers",
    "hub_reason",
    "list_files",
    "matching_file",
    "parts",
    "silent",
    "whole",
]

_log = logging.getLogger("edgespec.registry")
_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0
_ATTEMPTS = 4
_MOST_RECORD_BYTES = 1 << 20


def fetch_url(
    url: str,
    partial: Path,
    *,
    size: int | None,
    progress: Progress,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Download *url* into *partial*; after a lost connection, continue.

    Raises DownloadError if the server cannot be reached, refuses, or the connection keeps failing;
    ChecksumError if it sends more than *size* bytes; OSError if *partial* cannot be written. After
    an interruption or a failure, *partial* stays and the next call continues it.
    """
    import httpx  # costs a tenth of a second, and only downloads need it

    timeout = httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
    with httpx.Client(timeout=timeout, follow_redirects=True, headers=headers) as client:
        for attempt in range(1, _ATTEMPTS + 1):
            before = _length(partial)
            try:
                if _transfer(client, url, partial, size, progress):
                    return
            except ChecksumError:
                _forget(partial)
                raise
            except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
                reason = str(error) or type(error).__name__
                if attempt == _ATTEMPTS or _length(partial) <= before:
                    raise DownloadError(f"the connection failed ({reason})") from None
                _log.info("%s broke off (%s): continuing", url, reason)
    raise DownloadError("the server could neither continue the download nor start it again")


def _transfer(
    client: httpx.Client, url: str, partial: Path, size: int | None, progress: Progress
) -> bool:
    """Make one request: ask for what is missing, and write what comes.

    Returns False if *partial* could not be continued: it was deleted, and the next request starts
    from the beginning.
    """
    start, asking = _resumption(url, partial)
    # Identity: a compressed body could not be continued, nor compared with the size.
    asking["Accept-Encoding"] = "identity"
    with client.stream("GET", url, headers=asking) as response:
        status = response.status_code
        if status not in (200, 206, 416):
            raise DownloadError(f"HTTP {status} {response.reason_phrase}".strip())
        if status == 200:
            start = 0
        elif not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
            _forget(partial)
            return False
        total = size if size is not None else _announced(response, start)
        _remember(url, partial, response)
        _write(response, partial, start, total, progress)
    return True


def _write(
    response: httpx.Response, partial: Path, start: int, total: int | None, progress: Progress
) -> None:
    done = start
    with partial.open("r+b" if start else "wb") as file:
        file.seek(start)
        file.truncate()
        progress(done, total)
        # Write as it comes: with larger chunks, a broken connection would lose the last one.
        for chunk in response.iter_raw():
            done += len(chunk)
            if total is not None and done > total:
                raise ChecksumError(f"the server sent more than the published {total:,} bytes")
            file.write(chunk)
            progress(done, total)


def _resumption(url: str, partial: Path) -> tuple[int, dict[str, str]]:
    """Return where to continue, and the headers that ask for it."""
    try:
        known = json.loads(read_at_most(validator_path(partial), _MOST_RECORD_BYTES))
        etag = known["etag"] if known["url"] == url else None
    except (OSError, ValueError, KeyError, TypeError):
        etag = None
    start = _length(partial)
    if not isinstance(etag, str) or start == 0:
        return 0, {}
    return start, {"Range": f"bytes={start}-", "If-Range": etag}


def _remember(url: str, partial: Path, response: httpx.Response) -> None:
    etag = response.headers.get("etag", "")
    if etag.startswith('"'):  # a weak one (W/"...") does not promise the same bytes
        text = json.dumps({"url": url, "etag": etag})
        validator_path(partial).write_text(text, encoding="utf-8")
    else:
        validator_path(partial).unlink(missing_ok=True)


def _forget(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    validator_path(partial).unlink(missing_ok=True)


def _announced(response: httpx.Response, start: int) -> int | None:
    length = response.headers.get("content-length", "")
    return start + int(length) if length.isdecimal() else None


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


_ANSWER_SECONDS = 5.0
_SHOWN = 500  # characters of names in a message
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_huggingface(
    source: HuggingFaceSource, partial: Path, *, size: int | None, progress: Progress
) -> str | None:
    """Download into *partial*; return the sha256 that the host publishes, if any.

    Raises DownloadError if the host cannot be reached within seconds or refuses, ChecksumError if
    the file is not *size* bytes long, OSError if *partial* cannot be written.
    """
    import huggingface_hub as hub  # slow to import, and only downloads need it

    try:
        url = hub.hf_hub_url(source.repo, source.file, revision=source.revision)
        found = hub.get_hf_file_metadata(url, timeout=_ANSWER_SECONDS)
        # A branch may move between an interruption and the continuation: name the commit.
        if found.commit_hash:
            url = hub.hf_hub_url(source.repo, source.file, revision=found.commit_hash)
        headers = hub_headers()
    except Exception as error:
        # The HTTP library below, and so the errors that come through, depends on the version.
        raise DownloadError(hub_reason(error)) from None
    fetch_url(url, partial, size=size or found.size, progress=progress, headers=headers)
    etag = found.etag or ""
    return etag if _SHA256.fullmatch(etag) else None


def matching_file(repo: str, pattern: str) -> str:
    """Return the one file of a repository whose path matches a shell pattern.

    A pattern without ``*``, ``?`` and ``[`` is a path; the host is not asked whether it exists.

    Raises:
        DownloadError: the host cannot be asked, or no file or several match.
    """
    if not set("*?[") & set(pattern):
        return pattern
    import huggingface_hub as hub

    try:
        files = hub.HfApi().list_repo_files(repo)
    except Exception as error:
        raise DownloadError(f"{repo}: {hub_reason(error)}") from None
    found = [file for file in files if fnmatchcase(file, pattern)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(found or (file for file in files if file.endswith(".gguf"))))
    many = f"{len(found)} files match" if found else "no file matches"
    raise DownloadError(f"{repo}: {many} {pattern!r}: it has {known[:_SHOWN] or 'no GGUF files'}")


def hub_headers() -> dict[str, str]:
    """Return the headers of a request to Hugging Face, the user's token among them.

    Raises OfflineModeIsEnabled if the environment forbids requests.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    # It is exported lazily, which type checkers do not see.
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined,unused-ignore]

    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled("HF_HUB_OFFLINE")
    return {name: str(value) for name, value in build_hf_headers().items()}


def hub_reason(error: Exception) -> str:
    """Say in a few words what an error of a request to Hugging Face means."""
    known = {
        "GatedRepoError": "needs an accepted licence and a login (`hf auth login`)",
        "RepositoryNotFoundError": "no such repository, or it is private",
        "RevisionNotFoundError": "no such revision",
        "EntryNotFoundError": "no such file in the repository",
        "RemoteEntryNotFoundError": "no such file in the repository",
        "OfflineModeIsEnabled": "offline mode is set in the environment",
    }
    status = getattr(getattr(error, "response", None), "status_code", None)
    fallback = f"HTTP {status}" if status else f"cannot be reached ({type(error).__name__})"
    return known.get(type(error).__name__, fallback)


Progress = Callable[[int, "int | None"], None]
"""Called with the number of bytes so far, and the total if it is known."""


def silent(done: int, total: int | None) -> None:
    """Report nothing."""


REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
FILE = r"(?:[\w][\w.+ -]*/){0,8}[\w][\w.+ -]{0,250}\.gguf"

_MOST_BYTES = 16 << 20
_MOST_FILES = 20_000
_MOST_SIZE = 1 << 43
_MOST_PARTS = 999
_SECONDS = 10.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
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
