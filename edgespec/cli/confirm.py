"""A question before something is deleted."""

from __future__ import annotations

import sys

import click

from edgespec.errors import UsageError

__all__ = ["confirmed"]


def confirmed(question: str) -> bool:
    """Whether the user says yes.

    Raises:
        UsageError: nobody is there to answer.
        click.Abort: Ctrl-C or Ctrl-D in a terminal.
    """
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # behind the question
        raise UsageError("nobody answered, nothing was deleted: --yes does not ask") from None
