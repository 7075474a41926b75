"""The example in the README, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"


def test_the_example(server: Any, capsys: Any) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (example,) = (block for block in blocks if "from openai import" in block)
    exec(example.replace("http://127.0.0.1:8080", server.url), {})
    shown, figures = capsys.readouterr().out.strip().rsplit("\n", 1)
    text = shown[: len(shown) // 2]
    assert text and shown == f"{text}\n{text}"  # whole and streamed
    assert "acceptance_rate" in figures
