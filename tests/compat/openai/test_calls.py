"""Calls in the text of an answer, whole and as it comes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.compat.openai.calls import CallReader, read_calls

NAMES = frozenset({"clock", "get_weather"})
ROME = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
TIME = '{"name": "clock", "parameters": {}}'

ANSWERS = {
    f"<tool_call>\n{ROME}\n</tool_call>": ("", ["get_weather"]),
    f"<tool_call>{ROME}": ("", ["get_weather"]),
    f"Let me see. <tool_call>{ROME}</tool_call>\n<tool_call>{TIME}</tool_call>": (
        "Let me see. ",
        ["get_weather", "clock"],
    ),
    f"<tool_call>{ROME}</tool_call> and that is all": ("and that is all", ["get_weather"]),
    TIME: ("", ["clock"]),
    f" {TIME}; {ROME} ": ("", ["clock", "get_weather"]),
    f"<|python_tag|>{TIME}": ("", ["clock"]),
    f"[{ROME}, {TIME}]": ("", ["get_weather", "clock"]),
    f"[TOOL_CALLS][{ROME}]": ("", ["get_weather"]),
    f"[TOOL_CALLS] [{ROME}]": ("", ["get_weather"]),
    '[TOOL_CALLS]clock[ARGS]{"zone": 1}': ("", ["clock"]),
    'clock{"zone": 1}': ("", ["clock"]),
    '<tool_call>{"name": "clock", "arguments": "{\\"zone\\": 1}"}</tool_call>': ("", ["clock"]),
    '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call>"}}</tool_call>': (
        "",
        ["get_weather"],
    ),
    '{"name": "clock", "arguments": {"text": "two\nlines"}}': ("", ["clock"]),
}

TEXTS = [
    "",
    " \n",
    "clock",
    "clockwork oranges",
    "get",
    "A < b and <tool",
    "<tool_call>",
    "<tool_call>{}</tool_call>",
    '<tool_call>{"name": "sing", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "clock", "argu',
    '{"name": "clock", "arguments": {"zone": NaN}}',
    '{"name": ["clock"]}',
    '{"name": "clock"} is what I would call',
    '{"city": "Rome"}',
    f"I would write {ROME}",
    "[]",
    "[1, 2]",
    '{"name": "clock", "arguments": ' + "[" * 100_000,
    '{"name": "clock", "arguments": {"n": ' + "9" * 5000 + "}}",
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_calls(answer: str) -> None:
    text, calls = read_calls(answer, NAMES)
    assert (text, [call.name for call in calls]) == ANSWERS[answer]
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_call_is_text(text: str) -> None:
    assert read_calls(text, NAMES) == (text, [])


@pytest.mark.parametrize("answer", [*ANSWERS, *TEXTS[:-2]])
@given(data=st.data())
def test_the_pieces_do_not_matter(answer: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    reader = CallReader(NAMES)
    ends = [*cuts, len(answer)]
    shown = "".join(
        reader.feed(answer[start:end]) for start, end in zip([0, *cuts], ends, strict=True)
    )
    rest, calls = reader.finish()
    assert (shown + rest, calls) == read_calls(answer, NAMES)


def test_ordinary_text_is_not_held_back() -> None:
    reader = CallReader(NAMES)
    assert [reader.feed(piece) for piece in ("The ", "time <", "b> is ", "12")] == [
        "The ",
        "time ",
        "<b> is ",
        "12",
    ]


def test_numbers_too_large_stay_json() -> None:
    _, calls = read_calls('{"name": "clock", "arguments": {"n": -1e999}}', NAMES)
    assert json.loads(calls[0].arguments)["n"] < -1e308


def test_arguments_and_ids() -> None:
    _, calls = read_calls(f"{ROME} {TIME}", NAMES)
    first, second = (call.as_json() for call in calls)
    assert json.loads(first["function"]["arguments"]) == {"city": "Rome"}
    assert first["type"] == "function"
    assert first["id"] != second["id"]
