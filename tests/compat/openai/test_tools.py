"""What tools of a request lead to: the form found, refusals, and answers that are calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from edgespec.compat.openai.calls import read_calls
from edgespec.compat.openai.tools import call_form, plan_tools
from edgespec.errors import GrammarError, UsageError

QUESTION = {"role": "user", "content": "How is the weather in Rome?"}


@pytest.mark.parametrize(
    ("name", "opening", "arguments"),
    [
        ("tagged", "<tool_call>\n", "arguments"),
        ("listed", "[TOOL_CALLS][", "arguments"),
        ("bare", "", "parameters"),
    ],
)
def test_the_form_is_the_templates_own(
    templates: Any, tools: Any, name: str, opening: str, arguments: str
) -> None:
    form = call_form(templates[name], tools)
    assert (form.opening, form.arguments) == (opening, arguments)


@pytest.mark.parametrize("name", ["tagged", "listed", "bare"])
@pytest.mark.parametrize("choice", ["required", "clock", "weather"])
def test_a_forced_answer_is_a_call(
    engine: Any,
    greedy: Callable[[int], dict[str, Any]],
    templates: Any,
    tools: Any,
    name: str,
    choice: str,
) -> None:
    wanted = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    use = plan_tools(templates[name], tools, wanted)
    assert use is not None and use.grammar is not None
    prompt = templates[name].render([QUESTION], tools=use.tools)
    result = engine.generate(prompt, **greedy(80), grammar=use.grammar).result
    assert result.finish_reason == "stop"
    text, calls = read_calls(result.text, use.names)
    assert text == "" and len(calls) == 1
    arguments = json.loads(calls[0].arguments)
    if choice != "required":
        assert calls[0].name == choice
    if calls[0].name == "weather":
        assert arguments["city"] in ("Oslo", "Rome") and isinstance(arguments["days"], int)
    else:
        assert arguments == {}


def test_nothing_to_call(templates: Any, tools: Any) -> None:
    assert plan_tools(templates["tagged"], None) is None
    assert plan_tools(templates["tagged"], []) is None
    assert plan_tools(templates["silent"], tools, "none") is None
    use = plan_tools(templates["tagged"], tools)
    assert use is not None and use.grammar is None and use.names == {"weather", "clock"}


@pytest.mark.parametrize(
    ("changed", "choice", "words"),
    [
        ([{"type": "function"}], None, "function"),
        (["clock"], None, "function"),
        ([{"type": "retrieval", "function": {"name": "x"}}], None, "function"),
        ([{"function": {"name": 'a"b'}}], None, "letters"),
        ([{"function": {"name": "x" * 65}}], None, "letters"),
        ([{"function": {"name": "x"}}] * 2, None, "two tools"),
        ([{"function": {"name": f"x{i}"}} for i in range(129)], None, "128"),
        (None, "sometimes", "tool_choice"),
        (None, {"type": "function"}, "tool_choice"),
        (None, {"function": {"name": "sing"}}, "none of the tools"),
        ([], "required", "no tools"),
    ],
)
def test_wrong_tools(templates: Any, tools: Any, changed: Any, choice: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan_tools(templates["tagged"], tools if changed is None else changed, choice)


def test_a_template_without_tools_is_said_so(templates: Any, tools: Any, engine: Any) -> None:
    for template in (templates["silent"], engine.template):
        with pytest.raises(UsageError, match="knows no tools"):
            plan_tools(template, tools)


def test_parameters_that_make_no_grammar(templates: Any) -> None:
    bad = [{"function": {"name": "x", "parameters": {"type": "object", "properties": 7}}}]
    assert plan_tools(templates["tagged"], bad) is not None  # the template only shows it
    with pytest.raises(GrammarError):
        plan_tools(templates["tagged"], bad, "required")
