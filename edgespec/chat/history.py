"""Earlier messages, kept in a file as long as that works."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from platformdirs import user_data_path
from prompt_toolkit.history import FileHistory

from edgespec.chat.characters import sendable

__all__ = ["MessageHistory", "history_file"]


def history_file() -> Path:
    """Where messages are remembered, in the user's data folder."""
    return user_data_path("edgespec", appauthor=False) / "chat_history"


class MessageHistory(FileHistory):
    """A history whose file may be unusable: then messages are remembered until the end only.

    Args:
        path: None for no file at all.

    Attributes:
        problem: why the file is not used, until someone has said so.
    """

    def __init__(self, path: Path | None) -> None:
        self.problem: str | None = None
        self._usable = path is not None
        super().__init__(path or os.devnull)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.open("r+b").close()
        except OSError as error:
            self._give_up(error)

    def load_history_strings(self) -> Iterable[str]:
        """Messages of earlier conversations, newest first."""
        try:
            return list(super().load_history_strings()) if self._usable else []
        except OSError as error:
            self._give_up(error)
            return []

    def store_string(self, string: str) -> None:
        """Add a message to the file."""
        if not self._usable:
            return
        try:
            super().store_string(sendable(string))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._usable = False
        self.problem = f"{self.filename!s}: {error.strerror or error}"
