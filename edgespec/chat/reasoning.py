"""Tell the reasoning between <think> and </think> from the answer that follows it."""

from __future__ import annotations

from time import perf_counter
from typing import Literal

__all__ = ["OPENING", "Folding", "split_thought"]

OPENING = "<think>"
_CLOSING = "</think>"


class Folding:
    """Takes the reasoning out of a text that comes in pieces.

    Only at the beginning: an answer may speak of these marks.

    Args:
        thinking: the prompt opened the reasoning already.

    Attributes:
        pieces: of reasoning so far, about one for each token.
        empty: whether all of the reasoning was blank.
    """

    def __init__(self, *, thinking: bool = False) -> None:
        self.pieces = 0
        self.empty = True
        self._state: Literal["undecided", "thinking", "between", "answer"]
        self._state = "thinking" if thinking else "undecided"
        self._held = ""
        self._started: float | None = None
        self._ended = 0.0

    @property
    def thinking(self) -> bool:
        """Return whether the text is inside the reasoning at the moment."""
        return self._state == "thinking"

    @property
    def summary(self) -> str:
        """Return how long the reasoning is, and how long it took."""
        seconds = self._ended - (self._started or self._ended)
        return f"{self.pieces} token{'' if self.pieces == 1 else 's'}, {seconds:.0f} s"

    def feed(self, text: str) -> str:
        """Take more text; return the part that certainly belongs to the answer."""
        self._held += text
        self._ended = perf_counter()
        self._started = self._started or self._ended
        if self._state == "undecided":
            self._decide()
        if self._state == "thinking":
            self._think()
        if self._state == "between":
            self._held = self._held.lstrip()
            self._state = "answer" if self._held else "between"
        return self._release() if self._state == "answer" else ""

    def finish(self) -> str:
        """Return the text that was held back because it might have become a mark."""
        return self._release() if self._state == "undecided" else ""

    def _decide(self) -> None:
        start = self._held.lstrip()
        if start.startswith(OPENING):
            self._state, self._held = "thinking", start[len(OPENING) :]
        elif not OPENING.startswith(start):
            self._state = "answer"

    def _think(self) -> None:
        self.pieces += 1
        thought, mark, behind = self._held.partition(_CLOSING)
        if not _CLOSING.startswith(thought.strip()):
            self.empty = False
        if mark:
            self._state, self._held = "between", behind
        else:
            self._held = self._held[1 - len(_CLOSING) :]

    def _release(self) -> str:
        text, self._held = self._held, ""
        return text


def split_thought(text: str) -> tuple[str, str]:
    """Return the reasoning of a finished answer, empty if there is none, and the answer itself."""
    before, mark, answer = text.partition(_CLOSING)
    opened = before.lstrip().startswith(OPENING)
    if opened or (mark and OPENING not in before):
        return before.lstrip().removeprefix(OPENING).strip(), answer.lstrip()
    return "", text
