"""Fetch a file over https into a partial file; continue an interrupted download.

A download is continued only if the server confirms, by the strong ETag that it sent at first, that
the file is still the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import ChecksumError, DownloadError
from edgespec.registry.cache import validator_path
from edgespec.registry.progress import Progress

if TYPE_CHECKING:
    import httpx

__all__ = ["fetch_url"]

_log = logging.getLogger("edgespec.registry")
_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0
_ATTEMPTS = 4


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
        known = json.loads(validator_path(partial).read_text(encoding="utf-8"))
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
