"""Optional packages: the extra that installs each, the line where one is missing, PyInstaller."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edgespec.errors import MissingExtraError

__all__ = ["EXTRAS", "has_extra", "hook_folders", "require_extra"]

EXTRAS = {
    "chat": ("rich", "prompt_toolkit"),
    "serve": ("starlette", "uvicorn", "pydantic", "prometheus_client"),
    "plot": ("matplotlib",),
    "distill": ("torch",),
}
"""The packages that each extra installs, by the names they are imported with."""


def has_extra(extra: str) -> bool:
    """Return whether every package of an extra is installed."""
    return not _missing(extra)


def require_extra(extra: str, what: str) -> None:
    """Check, before any work, that the packages of an extra are installed.

    Args:
        what: what needs them, as the subject of a sentence.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    missing = _missing(extra)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{what} needs {' and '.join(missing)}, which {verb} not installed: "
            f'pip install "edgespec[{extra}]"'
        )


def _missing(extra: str) -> list[str]:
    return [package for package in EXTRAS[extra] if importlib.util.find_spec(package) is None]


def hook_folders() -> list[str]:
    """Return the folders of hooks that come with edgespec."""
    return [str(Path(__file__).with_name("hooks"))]
