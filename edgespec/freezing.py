"""Where PyInstaller finds what edgespec needs in a program (the entry point `pyinstaller40`)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_folders"]


def hook_folders() -> list[str]:
    """Return the folders of hooks that come with edgespec."""
    return [str(Path(__file__).with_name("hooks"))]
