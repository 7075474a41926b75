"""What callers may pass as messages, and what templates see of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from edgespec.errors import UsageError

Render = Callable[..., str]


def test_parts_are_joined(render: Render) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", {"role": "user", "content": parts}) == "one\ntwo"


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": 1, "content": "x"},
        {"role": "user", "content": 1},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": "x", "extra": object()},
        {"role": "user", "content": b"x"},
        "user: x",
    ],
)
def test_messages_of_another_form_are_refused(message: Any, render: Render) -> None:
    with pytest.raises(UsageError):
        render("x", message)


def test_deep_input_is_refused(render: Render) -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(UsageError, match="too deeply"):
        render("x", {"role": "user", "content": "x", "extra": deep})


# -- arguments of tool calls ------------------------------------------------------------------


def calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


ARGUMENTS = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"


@pytest.mark.parametrize("arguments", [{}, {"city": "Zürich", "n": [1, None, 2.5]}])
def test_json_of_an_object_is_the_object(arguments: Any, render: Render) -> None:
    expected = json.dumps(arguments, ensure_ascii=False)
    assert render(ARGUMENTS, calling(arguments)) == expected
    assert render(ARGUMENTS, calling(json.dumps(arguments))) == expected
    assert render(ARGUMENTS, calling(json.dumps(arguments, indent=2))) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "[1]", "1", "null", '"{}"', "{", "{'a': 1}", '{"a": NaN}', "{} {}", "\ud800"),
        *('{"a":' + "[" * 45 + "]" * 45 + "}", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"),
    ],
    ids=lambda text: text[:9],
)
def test_any_other_text_stays(arguments: str, render: Render) -> None:
    assert render(ARGUMENTS, calling(arguments)) == json.dumps(arguments, ensure_ascii=False)


@pytest.mark.parametrize("calls", [None, "x", {}, ["x"], [{"function": "x"}], [{"function": {}}]])
def test_calls_of_another_form_stay(calls: Any, render: Render) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    expected = json.dumps(calls)
    assert render("{{ messages[0].tool_calls | tojson }}", message) == expected


def test_the_callers_call_is_not_changed(render: Render) -> None:
    message = calling('{"a": 1}')
    render(ARGUMENTS, message)
    assert message == calling('{"a": 1}')
