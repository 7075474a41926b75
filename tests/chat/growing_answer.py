"""Shows a long answer in the terminal it runs in, redrawing after every piece."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from edgespec.chat import view
from edgespec.runtime.decoder import Origin
from edgespec.runtime.piece import Piece

text = Path(sys.argv[1]).read_text("utf-8")
view._SHORTEST_PAUSE, view._RENDERING_SHARE = 0.0, 1e9
with view.MarkdownView(Console()) as show:
    for start in range(0, len(text), 5):
        show(Piece(text[start : start + 5], 0, Origin.PLAIN))
print("THE END")
