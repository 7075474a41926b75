from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.chat.reasoning import Folding, split_thought


def _folded(text: str, sizes: list[int], *, thinking: bool = False) -> str:
    folding, shown, at = Folding(thinking=thinking), "", 0
    for size in [*sizes, len(text)]:
        shown += folding.feed(text[at : at + size])
        at += size
    return shown + folding.finish()


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("plain", "", "plain"),
        ("<think>\nso\n</think>\n\nanswer", "so", "answer"),
        ("\n <think>so</think>answer <think> is a mark", "so", "answer <think> is a mark"),
        ("<think>never ends", "never ends", ""),
        ("<think></think>answer", "", "answer"),
        ("the mark <think> and </think>", "", "the mark <think> and </think>"),
        ("<thinking>", "", "<thinking>"),
        ("<", "", "<"),
        ("", "", ""),
    ],
)
@given(sizes=st.lists(st.integers(1, 9)))
def test_the_same_is_folded_in_any_pieces(
    text: str, thought: str, answer: str, sizes: list[int]
) -> None:
    assert split_thought(text) == (thought, answer)
    assert _folded(text, sizes) == answer


@given(sizes=st.lists(st.integers(1, 9)))
def test_reasoning_that_the_prompt_began(sizes: list[int]) -> None:
    text = "so\n</think>\n\nanswer"
    assert split_thought(text) == ("so", "answer")
    assert _folded(text, sizes, thinking=True) == "answer"
