"""Every error edgespec raises on purpose, as one tree.

A message is one line that says what was wrong and what to do. ``exit_status`` is what the
command line ends with: 2 when the call was wrong, 1 when the run failed.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "CancelledError",
    "ChecksumError",
    "ContextFullError",
    "DownloadError",
    "EdgespecError",
    "EndedError",
    "GrammarError",
    "InsufficientMemoryError",
    "MissingExtraError",
    "ModelFileError",
    "ModelLoadError",
    "NumericalError",
    "PairingError",
    "RegistryError",
    "TemplateError",
    "UnknownModelError",
    "UnsupportedError",
    "UsageError",
]


class EdgespecError(Exception):
    """Base of every error raised on purpose."""

    exit_status = 1


class UsageError(EdgespecError, ValueError):
    """An argument is out of its range, or two arguments contradict each other."""

    exit_status = 2


class UnsupportedError(UsageError, NotImplementedError):
    """Something that another library's interface has and edgespec does not."""


class MissingExtraError(EdgespecError):
    """A package that only some commands need is not installed."""


class ModelFileError(EdgespecError):
    """A file is not a GGUF this runtime can use: missing, truncated, foreign, absurd."""

    exit_status = 2


class PairingError(EdgespecError):
    """A draft does not fit its target."""

    exit_status = 2


class GrammarError(EdgespecError):
    """A grammar or JSON schema does not compile."""

    exit_status = 2


class TemplateError(EdgespecError):
    """A chat template is missing, does not compile, or misbehaves."""


class BackendError(EdgespecError):
    """The native library refused or failed."""


class ModelLoadError(BackendError):
    """The native library could not load a model that looked sound."""


class InsufficientMemoryError(BackendError):
    """Weights, KV cache and compute buffers would not fit into free memory."""


class NumericalError(BackendError):
    """A model produced NaN or +inf logits."""


class CancelledError(EdgespecError):
    """The caller cancelled a load, a prefill or a generation."""

    exit_status = 130


class EndedError(CancelledError):
    """A function of the caller's that watches a generation ended it."""


class ContextFullError(EdgespecError):
    """A prompt does not fit into the context."""

    exit_status = 2


class RegistryError(EdgespecError):
    """The model registry or its cache folder cannot do what was asked."""


class UnknownModelError(RegistryError):
    """No such name in the registry, and no such file."""

    exit_status = 2


class DownloadError(RegistryError):
    """No source of a model could be fetched."""


class ChecksumError(DownloadError):
    """Fetched bytes are not the published ones."""
