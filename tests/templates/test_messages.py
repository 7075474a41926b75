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


# -- content ----------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [{"role": "user", "content": None}, {"role": "user"}])
def test_no_content_is_an_empty_text(message: Any, render: Render) -> None:
    assert (
        render("({{ messages[0].content }}{{ '<' in messages[0].content }})", message) == "(False)"
    )


PARTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", [PARTS, PARTS.replace("p.text", "p['text'] + ''")])
def test_a_template_that_takes_only_parts_gets_them(source: str, render: Render) -> None:
    messages = [{"role": "user", "content": text} for text in ("one", "two", None)]
    assert render(source, *messages) == "one;two;"


def test_reasoning_has_each_of_its_names(render: Render) -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        message = {"role": "assistant", "content": "x", name: "so"}
        for known in ("reasoning_content", "reasoning", "thinking"):
            assert render("{{ messages[0]." + known + " }}", message) == "so"


def test_a_developer_is_the_system(render: Render) -> None:
    assert render("{{ messages[0].role }}", {"role": "developer", "content": "x"}) == "system"


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
        *("[1]", "1", '"{}"', "{", "{'a': 1}", '{"a": NaN}', "{} {}", "\ud800"),
        *('{"a":' + "[" * 45 + "]" * 45 + "}", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"),
    ],
    ids=lambda text: text[:9],
)
def test_any_other_text_stays(arguments: str, render: Render) -> None:
    assert render(ARGUMENTS, calling(arguments)) == json.dumps(arguments, ensure_ascii=False)


@pytest.mark.parametrize("arguments", [None, "", " ", "null", "{}"])
def test_no_arguments_are_an_empty_object(arguments: Any, render: Render) -> None:
    assert render(ARGUMENTS, calling(arguments)) == "{}"


def test_templates_that_write_arguments_as_they_are_get_their_json(render: Render) -> None:
    source = "{{ messages[-1].content }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    for written in ("'(' + c.function.arguments + ')'", "'(' ~ c.function.arguments ~ ')'"):
        text = render(source + "{{ " + written + " }}{% endfor %}{% endfor %}", calling({"a": "é"}))
        assert text == '({"a": "é"})'


@pytest.mark.parametrize("calls", [None, [], {}, ""])
def test_no_calls_are_left_out(calls: Any, render: Render) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    assert render("{{ messages[0].tool_calls is defined }}", message) == "False"


@pytest.mark.parametrize(
    "calls", ["x", ["x"], [{"function": "x"}], [{"function": {"arguments": 1}}]]
)
def test_calls_of_another_form_stay(calls: Any, render: Render) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    expected = json.dumps(calls)
    assert render("{{ messages[0].tool_calls | tojson }}", message) == expected


def test_the_callers_call_is_not_changed(render: Render) -> None:
    message = calling('{"a": 1}')
    render(ARGUMENTS, message)
    assert message == calling('{"a": 1}')
