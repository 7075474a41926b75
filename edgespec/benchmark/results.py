"""Keep results on disk, a line for each pair, so that a later run can continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgespec.errors import EdgespecError, UsageError

__all__ = ["Results"]

_FORMAT = "edgespec-bench 1"


class Results:
    """Lines of a file, or of memory only.

    The first line has the settings and the machine; every other line is a pair: a task at a
    temperature in a round, with what both sides did.

    Args:
        path: continued if it exists and has the same settings; None keeps nothing.
        settings: what pairs of one file have in common.
        facts: of the machine; a file that is continued keeps those of its first run.

    Raises:
        UsageError: the file is something else, or has other settings.
        EdgespecError: it cannot be written.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], facts: dict[str, Any]) -> None:
        self.path = path
        self.head: dict[str, Any] = {"format": _FORMAT, "settings": settings, "machine": facts}
        self.pairs: list[dict[str, Any]] = []
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            self._continue(path, settings)
        else:
            self._append(self.head)

    def add(self, pair: dict[str, Any]) -> None:
        """Keep a pair.

        Raises:
            EdgespecError: it cannot be written.
        """
        self.pairs.append(pair)
        if self.path is not None:
            self._append(pair)

    def has(self, task: str, temperature: float, round_: int) -> bool:
        """Return whether this pair was measured before."""
        wanted = (task, temperature, round_)
        return any((p["task"], p["temperature"], p["round"]) == wanted for p in self.pairs)

    @property
    def model(self) -> str:
        """The target's name."""
        return str(self.head["settings"]["model"])

    @property
    def measured(self) -> list[dict[str, Any]]:
        """Pairs with both sides, without tasks that did not fit into the context."""
        return [pair for pair in self.pairs if "skipped" not in pair]

    def _append(self, line: dict[str, Any]) -> None:
        assert self.path is not None
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            reason = error.strerror or error
            raise EdgespecError(f"cannot write {self.path}: {reason}") from None

    def _continue(self, path: Path, settings: dict[str, Any]) -> None:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"{path} is not a results file: give another --out") from None
        lines = list(_objects(text))
        if not lines or lines[0].get("format") != _FORMAT:
            raise UsageError(f"{path} is not a results file: give another --out")
        known = lines[0].get("settings")
        other = {k for k in settings if not isinstance(known, dict) or known.get(k) != settings[k]}
        if other:
            raise UsageError(
                f"{path} has results with another {', '.join(sorted(other))}: give another --out"
            )
        self.head, self.pairs = lines[0], lines[1:]
        if not text.endswith("\n"):  # a crash left half a line
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            return
        if isinstance(value, dict):
            yield value
