from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.chat.screen import begins_thinking
from edgespec.runtime.engine import Engine


@pytest.mark.parametrize(
    ("prompt", "thinks"),
    [("Is it? <think>\n", True), ("Is it? <think>", True), ("<think> Is it, or is it not?", False)],
)
def test_a_prompt_that_begins_the_reasoning(engine: Engine, prompt: str, thinks: bool) -> None:
    turn: Any = SimpleNamespace(stream=engine.generate(prompt))
    assert begins_thinking(engine, turn) is thinks
