"""Calls in the text of an answer, whole and as it comes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.compat.openai.calls import (
    Answer,
    Arguments,
    CallBegin,
    CallReader,
    Text,
    Thought,
    opened_thought,
    read_answer,
    read_calls,
    whole_answer,
)

SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"$ref": "#/$defs/days"},
            "where": {"type": ["object", "null"]},
        },
        "$defs": {"days": {"type": "integer"}},
    },
    "clock": None,
}
BERGEN = {"city": 'Bergen "é" {', "days": 2, "where": {"of": [True, None, 1.5, "a'b"]}}
_JSON = json.dumps(BERGEN, ensure_ascii=False)
_CALL = f'{{"name": "get_weather", "arguments": {_JSON}}}'
_WHERE = json.dumps(BERGEN["where"])
_PYTHON = 'get_weather(city=\'Bergen "é" {\', days=2, where={"of": [True, None, 1.5, "a\'b"]})'
_IN_TAGS = (
    '<parameter=city>\nBergen "é" {\n</parameter>\n<parameter=days>\n2\n</parameter>\n'
    f"<parameter=where>\n{_WHERE}\n</parameter>"
)
_NAMED_TAGS = _IN_TAGS.replace("=city", ' name="city"').replace("=days", ' name="days"')
_NAMED_TAGS = _NAMED_TAGS.replace("=where", ' name="where"')
_GEMMA = (
    '{city:<escape>Bergen "é" {<escape>,days:2,where:{of:[true,null,1.5,<escape>a\'b<escape>]}}'
)
FORMS = {
    "tag": f"<tool_call>\n{_CALL}\n</tool_call>",
    "tag of a list": f"<tool_call>[{_CALL}]</tool_call>",
    "plural tag": f"<tool_calls>[{_CALL}]</tool_calls>",
    "tools tag": f"<tools>\n{_CALL}\n</tools>",
    "xml": f"<tool_call>\n<function=get_weather>\n{_IN_TAGS}\n</function>\n</tool_call>",
    "xml alone": f"<function=get_weather>\n{_IN_TAGS}\n</function>",
    "function tag": f"<function=get_weather>{_JSON}</function>",
    "invoke": f'<minimax:tool_call>\n<invoke name="get_weather">\n{_NAMED_TAGS}\n</invoke>\n'
    "</minimax:tool_call>",
    "minicpm": '<function name="get_weather">'
    + _NAMED_TAGS.replace("parameter", "param")
    + "</function>",
    "pairs": "<tool_call>get_weather\n<arg_key>city</arg_key>\n"
    "<arg_value>Bergen \"é\" {</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>where</arg_key>\n"
    f"<arg_value>{_WHERE}</arg_value>\n</tool_call>",
    "glm 4": f"get_weather\n{_JSON}",
    "bare": f'{{"name": "get_weather", "parameters": {_JSON}}}',
    "llama": f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {_JSON}}}',
    "pythonic": f"[{_PYTHON}]",
    "python": f"<|tool_call_start|>[{_PYTHON}]<|tool_call_end|>",
    "python fenced": f"<|tool_call_start|>\n```python\n{_PYTHON}\n```\n<|tool_call_end|>",
    "tool code": f"```tool_code\n{_PYTHON}\n```",
    "positions": f"[{_PYTHON.replace('city=', '')}]",
    "mistral": f"[TOOL_CALLS][{_CALL[:-1]}, \"id\": \"abc123456\"}}]",
    "mistral by name": f"[TOOL_CALLS]get_weather[ARGS]{_JSON}",
    "mistral with an id": f"[TOOL_CALLS]get_weather[CALL_ID]abc123456[ARGS]{_JSON}",
    "gemma": f"<start_function_call>call:get_weather{_GEMMA}<end_function_call>",
    "gemma 4": f"<|tool_call>call:get_weather{_GEMMA}<tool_call|>".replace("<escape>", '<|"|>'),
    "granite": f"<|tool_call|>[{_CALL}]",
    "phi": f"<|tool_call|>[{_CALL}]<|/tool_call|>",
    "functools": f"functools[{_CALL}]",
    "deepseek": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    f"```json\n{_JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek 3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    f"{_JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    f"<|tool_call_argument_begin|>{_JSON}<|tool_call_end|><|tool_calls_section_end|>",
    "command": f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "get_weather", '
    f'"parameters": {_JSON}}}]<|END_ACTION|>',
    "harmony": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    + _JSON,
    "harmony behind its reasoning": "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
    f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{_JSON}<|call|>",
    "harmony, role first": "<|start|>assistant to=functions.get_weather<|channel|>commentary json"
    f"<|message|>{_JSON}<|call|>",
    "fence": f"```json\n{_CALL}\n```",
    "fenced list": f"```json\n[\n{_CALL}\n]\n```",
    "fenced tag": f"```xml\n<tool_call>\n{_CALL}\n</tool_call>\n```",
    "openai": f'{{"type": "function", "function": {_CALL}}}',
    "text": '{"name": "get_weather", "arguments": ' + json.dumps(_JSON) + "}",
    "arguments first": f'<tool_call>{{"arguments": {_JSON}, "name": "get_weather"}}</tool_call>',
    "other key": _CALL.replace('"arguments"', '"input"'),
    "behind reasoning": f"<think>hm</think>\n\n<tool_call>\n{_CALL}\n</tool_call>",
    "a brace too many": f"<tool_call>\n{_CALL}}}\n</tool_call>",
    "a brace too few": f"<tool_call>\n{_CALL[:-1]}\n</tool_call>",
    "python's words": "<tool_call>{'name': 'get_weather', 'arguments': "
    "{'city': 'Bergen \"é\" {', 'days': 2, 'where': {'of': [True, None, 1.5, 'a\\'b'],}}}"
    "</tool_call>",
}  # fmt: skip
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
    '{"name": "clock", "arguments": {"zone": not}}',
    '<tool_call>{"name": "clock", "arguments": {"zone": ',
    '{"name": ["clock"]}',
    '{"name": "clock"} is what I would call',
    '{"city": "Rome"}',
    f"I would write {ROME}",
    "[]",
    "[1, 2]",
    '{"name": "clock", "colour": "red"}',
    '{"name": "clock", "description": "tells the time", "parameters": {"type": "object"}}',
    '{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}',
    "clock {of the tower}",
    "clock(tower) is near",
    "[clock, tower]",
    "```python\nprint(1)\n```",
    '```json\n{"city": "Rome"}\n```',
    "<function=sing>\n</function>",
    "[TOOL_CALLS]sing[ARGS]{}",
    '{"name": "clock", "arguments": ' + "[" * 100_000,
    '{"name": "clock", "arguments": {"n": ' + "[" * 5000 + "}}",
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


@pytest.mark.parametrize("answer", [*ANSWERS, *TEXTS[:-2], *FORMS.values()])
def test_the_pieces_do_not_matter(answer: str) -> None:
    whole = read_answer(answer, CallReader(SCHEMAS))
    for size in range(1, 1 + min(len(answer), 40)):
        pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
        assert in_pieces(pieces) == whole


@given(
    answer=st.text(alphabet='<|tool_call>{}[]()"`\n\\: ,=name1fF/think', max_size=60),
    data=st.data(),
)
def test_no_text_is_lost_or_fails(answer: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(answer)))
    whole = read_answer(answer, CallReader(SCHEMAS))
    assert in_pieces([answer[:cut], answer[cut:]]) == whole
    if not whole.calls and not whole.reasoning and "<think" not in answer:
        assert whole.text == answer


def in_pieces(pieces: list[str]) -> Answer:
    reader = CallReader(SCHEMAS)
    events = [event for piece in pieces for event in reader.feed(piece)]

    return whole_answer([*events, *reader.finish()])


def test_ordinary_text_is_not_held_back() -> None:
    reader = CallReader(NAMES)
    shown = [
        "".join(event.text for event in reader.feed(piece) if isinstance(event, Text))
        for piece in ("The ", "time <", "b> is ", "12", "\n", "cl", "oth")
    ]
    assert shown == ["The ", "time ", "<b> is ", "12", "\n", "", "cloth"]


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    text, calls = read_calls(FORMS[form], SCHEMAS)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get_weather", BERGEN)]
    assert text == ""


@pytest.mark.parametrize(
    "form", ["tag", "bare", "fence", "mistral", "python", "xml", "pairs", "gemma", "harmony"]
)
def test_arguments_stream(form: str) -> None:
    reader = CallReader(SCHEMAS)
    parts = [
        event
        for char in FORMS[form]
        for event in reader.feed(char)
        if isinstance(event, (CallBegin, Arguments))
    ]
    assert parts[0] == CallBegin(0, "get_weather")
    assert len(parts) > 8
    assert json.loads("".join(part.text for part in parts[1:] if isinstance(part, Arguments)))


def test_several_calls() -> None:
    for text in (
        "[get_weather(city='Oslo'), clock()]",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
        "\n<tool_call>clock\n</tool_call>",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]clock[ARGS]{}',
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```\n'
        '```json\n{"name": "clock", "arguments": {}}\n```',
    ):
        shown, calls = read_calls(text, SCHEMAS)
        assert [call.name for call in calls] == ["get_weather", "clock"], text
        assert json.loads(calls[0].arguments) == {"city": "Oslo"}
        assert shown == ""


def test_parameters_in_tags_have_the_types_of_their_schema() -> None:
    text = (
        "<function=get_weather>\n<parameter=city>\n12\n\n</parameter>\n<parameter=days>\n12\n"
        "</parameter>\n<parameter=other>\nTrue\n</parameter>\n</function>"
    )
    _, calls = read_calls(text, SCHEMAS)
    assert json.loads(calls[0].arguments) == {"city": "12\n", "days": 12, "other": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>so</think>\n\nNo.", ("No.", "so")),
        ("<think>\n so \n</think>No.", ("No.", "so")),
        ("<think></think>No.", ("No.", "")),
        ("<think>so", ("", "so")),
        ("[THINK]so[/THINK]No.", ("No.", "so")),
        ("I <think> so", ("I <think> so", "")),
        (f"<think><tool_call>{ROME}</tool_call> or not</think>No.", ("No.", None)),
        (f"Hm.\n<think><tool_call>{ROME}</tool_call></think>No.", ("Hm.\nNo.", None)),
        ("<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>No.",
         ("No.", "so")),
    ],
)  # fmt: skip
def test_reasoning(text: str, expected: tuple[str, str | None]) -> None:
    for size in (1, 3, 1000):
        reader = CallReader(SCHEMAS)
        events = [e for at in range(0, len(text), size) for e in reader.feed(text[at : at + size])]
        events += reader.finish()
        assert not any(isinstance(event, CallBegin) for event in events)
        assert "".join(e.text for e in events if isinstance(e, Text)) == expected[0]
        thought = "".join(e.text for e in events if isinstance(e, Thought))
        assert expected[1] in (thought, None)


def test_reasoning_that_the_prompt_began() -> None:
    closing = opened_thought("<|assistant|>\n<think>\n")
    assert closing == "</think>" and opened_thought("Use <think>, please.") == ""
    answer = read_answer("so\n</think>\n\nNo.", CallReader(closing=closing))
    assert (answer.text, answer.reasoning) == ("No.", "so")


def test_numbers_too_large_stay_json() -> None:
    _, calls = read_calls('{"name": "clock", "arguments": {"n": -1e999}}', NAMES)
    assert json.loads(calls[0].arguments)["n"] < -1e308


def test_arguments_and_ids() -> None:
    _, calls = read_calls(f"{ROME} {TIME}", NAMES)
    first, second = (call.as_json() for call in calls)
    assert json.loads(first["function"]["arguments"]) == {"city": "Rome"}
    assert first["type"] == "function"
    assert first["id"] != second["id"]


@pytest.mark.parametrize(
    "begun",
    [
        "<tool_call>",
        "[TOOL_CALLS] [",
        "<tool_call><function=clock>",
        '<tool_call>{"name": "clock",',
        '<tool_call>{"name": "clock", "arguments": {"a": [1,',
        "clock",
        "[clock(",
        '{"name": "clock"}',
        "```json",
        "<think>so",
        "<|channel|>commentary to=functions.clock<|message|>",
    ],
)
def test_blanks_cost_no_more_the_more_there_are(begun: str) -> None:
    """A model that writes them for ever; each piece was compared with all before it."""
    reader = CallReader(SCHEMAS)
    began = time.monotonic()
    events = reader.feed(begun)
    for _ in range(20_000):
        events += reader.feed("\n ")
    events += reader.finish()
    assert time.monotonic() - began < 20
    assert whole_answer(events)
