"""From tokens to text that may be shown: whole characters, and nothing past a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from edgespec.errors import UsageError

__all__ = ["TextAssembler"]


class TextAssembler:
    """Feeds on the bytes of one token at a time and releases text that nothing later can take back.

    Bytes of an unfinished character wait for the next token; text that may be the beginning of a
    stop string waits until it is or is not one. A stop string is cut off.

    Args:
        stop: stop strings, none empty.

    Raises:
        UsageError: a stop string is empty.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if not all(stop):
            raise UsageError("a stop string is empty: leave it out or give it a character")
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """The text that a token releases; empty if it has to wait, or after a stop string."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(piece)
        return self._release()

    def finish(self) -> str:
        """What is still held: a half stop string is text, a half character is U+FFFD."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        text = self._release()
        if not self.stopped:
            text, self._held = text + self._held, ""
        return text

    def _release(self) -> str:
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
