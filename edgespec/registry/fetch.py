"""Fetch a file into a partial file, over https or from Hugging Face.

A download that was interrupted is continued only if the server confirms, by the strong ETag it
gave the first time, that the file is still the same. For Hugging Face, huggingface_hub finds the
file, signs the request and knows its checksum; the bytes come the same way as from any address,
so that they are counted, continued and bounded the same way.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import ChecksumError, DownloadError
from edgespec.files import read_at_most
from edgespec.registry.cache import validator_path
from edgespec.registry.manifest import HuggingFaceSource

if TYPE_CHECKING:
    import httpx

__all__ = [
    "Progress",
    "fetch_huggingface",
    "fetch_url",
    "hub_headers",
    "hub_reason",
    "matching_file",
    "silent",
]

_log = logging.getLogger("edgespec.registry")
_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0
_ATTEMPTS = 4
_MOST_BYTES = 1 << 20


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
        known = json.loads(read_at_most(validator_path(partial), _MOST_BYTES))
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
