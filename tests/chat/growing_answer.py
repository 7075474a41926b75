"""Shows a long answer in the terminal it runs in, redrawing after every piece."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from edgespec.chat import view
from edgespec.chat.markdown import Folding
from edgespec.chat.view import MarkdownBody
from edgespec.runtime.cycle import Origin
from edgespec.runtime.stream import TokenChunk

kind, text = sys.argv[1], Path(sys.argv[2]).read_text("utf-8")
body = MarkdownBody(Folding(), origins=kind == "origins")
view._SHORTEST_PAUSE, view._RENDERING_SHARE = 0.0, 1e9
with view.LiveView(Console(), body, lambda: "THE STATUS") as show:
    show.reading(3, 9)
    for start in range(0, len(text), 5):
        show(TokenChunk(text[start : start + 5], 0, Origin.PLAIN))
print("THE END")
