"""Open a GGUF to read its header, after checking its first 24 bytes.

Those bytes reveal a file of another format, an older version or absurd counts before anything else
is read.
"""

from __future__ import annotations

import struct
from pathlib import Path

from edgespec.errors import ModelFileError
from edgespec.gguf.bounded_reader import BoundedReader, MalformedError, TruncatedError

__all__ = ["damaged", "open_gguf"]

_FIXED = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8
# Real models have some dozens of keys and some hundreds or thousands of tensors.
_MOST_PAIRS = 1 << 13
_MOST_TENSORS = 1 << 15
_FOREIGN = (
    (b"lmgg", "an old GGML file: convert it to GGUF"),
    (b"tjgg", "an old GGML file: convert it to GGUF"),
    (b"fmgg", "an old GGML file: convert it to GGUF"),
    (b"PK\x03\x04", "a zip archive or a PyTorch file: convert it to GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` where it came from"),
    (b"<", "a web page or XML, as a failed download leaves behind: download it again"),
    (b"{", "a JSON file: name the .gguf file instead"),
)


def open_gguf(path: Path) -> BoundedReader:
    """Read the header of *path*.

    Raises ModelFileError if it is missing, not a readable file, empty, not a GGUF, of another
    version or byte order, truncated, or if its counts and sizes are absurd.
    """
    size = _size(path)
    try:
        with path.open("rb") as file:
            start = file.read(_FIXED.size)
        _check_fixed(path, start, size)
        return BoundedReader(path)
    except TruncatedError as error:
        raise ModelFileError(f"{path} is truncated: {error}: download it again") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(f"{path} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise damaged(path, MalformedError("a name in it is not valid UTF-8")) from None
    except (
        ArithmeticError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        # It is not specified what the reader raises on nonsense: all of it means the same.
        raise damaged(path, error) from None


def damaged(path: Path, error: BaseException) -> ModelFileError:
    """Return the error for a file whose content makes no sense."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ModelFileError(f"{path} is damaged: {reason}: download it again or choose another file")


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a folder: name the .gguf file in it")
        if not path.exists():
            raise ModelFileError(f"no such file: {path}")
        if not path.is_file():
            raise ModelFileError(f"{path} is not a regular file")
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{path} cannot be read: {reason}") from None
    if size == 0:
        raise ModelFileError(f"{path} is empty: download it again")
    return size


def _check_fixed(path: Path, start: bytes, size: int) -> None:
    if not start.startswith(b"GGUF"):
        raise ModelFileError(f"{path} is not a GGUF file{_guess(start)}")
    if len(start) < _FIXED.size:
        raise TruncatedError(f"it has {size} bytes")
    _, version, tensors, pairs = _FIXED.unpack(start)
    if version & 0xFFFF == 0 and version:
        raise ModelFileError(f"{path} is big-endian: get or convert a little-endian GGUF")
    if version not in _VERSIONS:
        raise ModelFileError(
            f"{path} is GGUF version {version}, and only 2 and 3 are known: convert it again"
        )
    if tensors == 0:
        raise ModelFileError(f"{path} holds no tensors: it is a vocabulary or metadata only")
    if pairs > _MOST_PAIRS or tensors > _MOST_TENSORS:
        raise MalformedError(f"it claims {pairs:,} keys and {tensors:,} tensors")
    if pairs * _SMALLEST_PAIR + tensors * _SMALLEST_TENSOR > size - _FIXED.size:
        raise TruncatedError(f"{size:,} bytes cannot hold {pairs:,} keys and {tensors:,} tensors")


def _guess(start: bytes) -> str:
    known = next((what for magic, what in _FOREIGN if start.startswith(magic)), None)
    return f" but {known}" if known else ": choose a file in GGUF format"
