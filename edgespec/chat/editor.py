"""A message in the user's own editor."""

from __future__ import annotations

import os

import click

from edgespec.errors import EdgespecError

__all__ = ["edit_text", "has_editor"]


def has_editor() -> bool:
    """Whether the user has named one, by VISUAL or EDITOR."""
    return bool(os.environ.get("VISUAL") or os.environ.get("EDITOR"))


def edit_text(text: str) -> str | None:
    """The text as it was saved; None if it was not.

    Raises:
        EdgespecError: the editor failed.
    """
    try:
        return click.edit(text, extension=".md")
    except click.ClickException as error:
        raise EdgespecError(error.format_message()) from None
