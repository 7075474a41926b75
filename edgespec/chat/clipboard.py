"""Copy text to the clipboard of the desktop, and of the terminal, which works over ssh too."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable

from edgespec.errors import UsageError

__all__ = ["copy_text"]

_MOST_BYTES = 74_994
"""In one escape sequence: terminals take up to 100,000 bytes of Base64."""

_PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    (None, ("pbcopy",)),
)
_PATIENCE_S = 5.0


def copy_text(text: str, send: Callable[[str], None] | None) -> str:
    """Copy a text in every way that is possible, and return which ways those were.

    Args:
        send: sends a control sequence to the terminal; None if it accepts none.

    Raises:
        UsageError: there is no way.
    """
    data = text.encode("utf-8", "replace")
    ways = []
    program = _program()
    if program is not None and _run(program, data):
        ways.append(program[0])
    if send is not None and len(data) <= _MOST_BYTES:
        send(f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\a")
        ways.append("the terminal")
    if not ways:
        why = "no clipboard is known here" if send is None else "it is too long for the terminal"
        raise UsageError(f"{why}: /write FILE writes a file")
    return " and ".join(ways)


def _program() -> tuple[str, ...] | None:
    for variable, command in _PROGRAMS:
        if (variable is None or os.environ.get(variable)) and shutil.which(command[0]):
            return command
    return None


def _run(command: tuple[str, ...], data: bytes) -> bool:
    try:
        done = subprocess.run(
            command,
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
