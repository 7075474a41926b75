"""Fetch a file from Hugging Face.

huggingface_hub finds the file, signs the request and knows its checksum. The bytes are fetched as
from any other address, so that they are counted, continued and bounded in the same way.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from edgespec.errors import DownloadError
from edgespec.registry.fetch_https import fetch_url
from edgespec.registry.manifest import HuggingFaceSource
from edgespec.registry.progress import Progress

__all__ = ["fetch_huggingface", "matching_file"]

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

    # It is exported lazily, which type checkers do not see.
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined,unused-ignore]

    try:
        url = hub.hf_hub_url(source.repo, source.file, revision=source.revision)
        found = hub.get_hf_file_metadata(url, timeout=_ANSWER_SECONDS)
        # A branch may move between an interruption and the continuation: name the commit.
        if found.commit_hash:
            url = hub.hf_hub_url(source.repo, source.file, revision=found.commit_hash)
        headers = {name: str(value) for name, value in build_hf_headers().items()}
    except Exception as error:
        # The HTTP library below, and so the errors that come through, depends on the version.
        raise DownloadError(_reason(error)) from None
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
        raise DownloadError(f"{repo}: {_reason(error)}") from None
    found = [file for file in files if fnmatchcase(file, pattern)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(found or (file for file in files if file.endswith(".gguf"))))
    many = f"{len(found)} files match" if found else "no file matches"
    raise DownloadError(f"{repo}: {many} {pattern!r}: it has {known[:_SHOWN] or 'no GGUF files'}")


def _reason(error: Exception) -> str:
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
