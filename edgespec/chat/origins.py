"""`--show`: colour text by where each token came from."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from edgespec.backend.lifetime import Closing
from edgespec.chat.characters import printable
from edgespec.runtime.cycle import Origin
from edgespec.runtime.stream import TokenChunk

__all__ = ["ORIGIN_STYLES", "OriginPrinter", "marked"]

ORIGIN_STYLES = {
    Origin.ACCEPTED: "green",
    Origin.CORRECTED: "bold red",
    Origin.BONUS: "cyan",
    Origin.PLAIN: "",
}
_MARKS = {
    Origin.ACCEPTED: ("[", "]"),
    Origin.CORRECTED: ("{", "}"),
    Origin.BONUS: ("<", ">"),
    Origin.PLAIN: ("", ""),
}


def marked(piece: TokenChunk) -> str:
    """Return a chunk between brackets that tell its origin, for output without colours."""
    before, after = _MARKS[piece.origin]
    return f"{before}{piece.text}{after}"


class OriginPrinter(Closing):
    """Prints chunks as they come, and ends the last line.

    Without colours (NO_COLOR, a pipe) brackets tell the origins apart.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._colours = self._console.is_terminal and not self._console.no_color

    def __call__(self, piece: TokenChunk) -> None:
        """Print one chunk."""
        text = printable(piece.text) if self._console.is_terminal else piece.text
        self._console.print(self._marked(text, piece.origin), end="")
        self._console.file.flush()

    def _marked(self, text: str, origin: Origin) -> Text:
        if self._colours:
            return Text(text, style=ORIGIN_STYLES[origin])
        before, after = _MARKS[origin]
        return Text(f"{before}{text}{after}")

    def close(self) -> None:
        """End the last line."""
        self._console.print()

    def legend(self) -> None:
        """Say on standard error what the colours mean."""
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        names = [self._marked(origin.value, origin) for origin in Origin]
        console.print(Text("origin of each token: ") + Text(" ").join(names))
