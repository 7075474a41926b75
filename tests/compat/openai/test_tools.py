"""What tools of a request lead to: the form found, refusals, and answers that are calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec import GenerationLimits, SamplingParameters, grammar_from_schema
from edgespec.compat.openai.calls import CallReader, read_calls, whole_answer
from edgespec.compat.openai.tools import call_form, call_or, plan_tools
from edgespec.errors import GrammarError, UsageError
from edgespec.templates import ChatTemplate

QUESTION = {"role": "user", "content": "How is the weather in Rome?"}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (
            "tagged",
            ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", ("<tool_call>",)),
        ),
        ("listed", ('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]", ("[TOOL_CALLS]",))),
        ("bare", ('{"name": "', '", "parameters": ', "}", ())),
    ],
)
def test_the_form_is_the_templates_own(
    templates: Any, tools: Any, name: str, form: tuple[Any, ...]
) -> None:
    assert call_form(templates[name], tools) == form


def family(call: str, opening: str = "", closing: str = "", end: str = "<|end|>") -> ChatTemplate:
    """A template that writes calls in the form of one family of models."""
    return ChatTemplate(
        "{% if tools %}[tools]{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% if m.tool_calls %}"
        + opening
        + "{% for c in m.tool_calls %}{% set f = c.function %}"
        + call
        + "{% endfor %}"
        + closing
        + "{% endif %}"
        + end
        + "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
        bos_token="",
        eos_token="",
    )


VALUE = "{{ v if v is string else v | tojson }}"
PYTHON = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{{ ', ' if not loop.last }}{% endfor %})"
)
FAMILIES = {
    "hermes": family("<tool_call>\n{{ f | tojson }}\n</tool_call>\n"),
    "qwen coder": family(
        "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}"
        "<parameter={{ k }}>\n" + VALUE + "\n</parameter>\n{% endfor %}</function>\n</tool_call>\n"
    ),
    "llama": family('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'),
    "pythonic": family(PYTHON + "{{ ', ' if not loop.last }}", "[", "]"),
    "mistral": family("{{ f | tojson }}{{ ', ' if not loop.last }}", "[TOOL_CALLS][", "]", "</s>"),
    "mistral by name": family("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "gemma": family(
        "<start_function_call>call:{{ f.name }}{{ '{' }}"
        "{% for k, v in f.arguments | items %}{{ k }}:"
        "{% if v is string %}<escape>{{ v }}<escape>{% else %}{{ v | tojson }}{% endif %}"
        "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}<end_function_call>"
    ),
    "lfm": family(
        PYTHON + "{{ ', ' if not loop.last }}", "<|tool_call_start|>[", "]<|tool_call_end|>"
    ),
    "minicpm": family(
        "```python\n" + PYTHON + "\n```\n", "<|tool_call_start|>\n", "<|tool_call_end|>"
    ),
    "glm": family(
        "\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}"
        "<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>" + VALUE + "</arg_value>\n{% endfor %}</tool_call>"
    ),
    "deepseek": family(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n"
        "{{ f.arguments | tojson }}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "granite": family("{{ f | tojson }}{{ ', ' if not loop.last }}", "<|tool_call|>[", "]"),
    "phi": family(
        "{{ f | tojson }}{{ ', ' if not loop.last }}", "<|tool_call|>[", "]<|/tool_call|>"
    ),
    "own mark": family("<my_call>{{ f | tojson }}</my_call>"),
    "arguments as they are": family(
        '<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments }}}</tool_call>'
    ),
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {}, "more": {"type": ["object", "array"]}},
}
LEAVES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text("ab 'é\n{", max_size=6)
ARGUMENTS = st.fixed_dictionaries(
    {"text": st.text(st.sampled_from("ab é'\"\\{}[](),:\n=1"), max_size=20)},
    optional={
        "n": st.integers(-(2**60), 2**60) | st.booleans() | st.none(),
        "more": st.lists(LEAVES, max_size=3) | st.dictionaries(st.sampled_from("abc"), LEAVES),
    },
)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40)
@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=2), size=st.integers(1, 20))
def test_a_call_that_a_template_writes_is_read_back(
    name: str, arguments: list[dict[str, Any]], size: int
) -> None:
    template = FAMILIES[name]
    offered = [{"type": "function", "function": {"name": "run_it", "parameters": SCHEMA}}]
    use = plan_tools(template, offered)
    assert use is not None
    called = [
        {"type": "function", "function": {"name": "run_it", "arguments": json.dumps(one)}}
        for one in arguments
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": called}
    written = template.render([QUESTION, answer], tools=offered, add_generation_prompt=False)
    written = written.partition("<|assistant|>")[2].removesuffix("<|end|>").removesuffix("</s>")
    reader = CallReader(use.schemas, use.marks)
    pieces = [written[at : at + size] for at in range(0, len(written), size)]
    events = [event for piece in pieces for event in reader.feed(piece)]
    text, _, calls = whole_answer([*events, *reader.finish()])
    assert [json.loads(call.arguments) for call in calls] == arguments
    assert text == ""


@pytest.mark.parametrize(("bias", "called"), [(5.0, True), (-100.0, False)])
def test_a_call_or_an_answer_of_another_form(
    engine: Any, templates: Any, tools: Any, bias: float, called: bool
) -> None:
    use = plan_tools(templates["tagged"], tools)
    assert use is not None
    schema = '{"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}'
    grammar = call_or(templates["tagged"], use, grammar_from_schema(schema))
    first = engine.vocabulary.tokenize("<", add_special=False)[0]
    sampling = SamplingParameters(temperature=0.0, logit_bias={int(first): bias * 10})
    result = engine.generate("x", sampling, GenerationLimits(max_tokens=80), grammar=grammar).result
    text, calls = read_calls(result.text, use.names)
    assert (len(calls) == 1 and text == "") if called else json.loads(text) == {"n": 7}


def test_only_allowed_tools(templates: Any, tools: Any) -> None:
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        listed = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}

    use = plan_tools(templates["tagged"], tools, allowed("auto", "clock"))
    assert use is not None and use.names == {"clock"} and use.grammar is None
    assert use.tools == [tools[1]]
    use = plan_tools(templates["tagged"], tools, allowed("required", "clock"))
    assert use is not None and use.grammar is not None and "weather" not in use.grammar
    for wrong in (allowed("never", "clock"), allowed("auto"), allowed("auto", "sing")):
        with pytest.raises(UsageError, match="tool_choice"):
            plan_tools(templates["tagged"], tools, wrong)


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


def function(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def test_properties_of_any_alphabet_stay_with_their_tool(
    engine: Any, greedy: Callable[[int], dict[str, Any]], templates: Any
) -> None:
    tools = [function("weather", 城市={"enum": ["北京"]}), function("paint", 颜色={"enum": ["红"]})]
    for name, arguments in (("weather", {"城市": "北京"}), ("paint", {"颜色": "红"})):
        choice = {"type": "function", "function": {"name": name}}
        use = plan_tools(templates["tagged"], tools, choice)
        assert use is not None
        prompt = templates["tagged"].render([QUESTION], tools=use.tools)
        text = engine.generate(prompt, **greedy(80), grammar=use.grammar).result.text
        (call,) = read_calls(text, use.names)[1]
        assert call.name == name and json.loads(call.arguments) == arguments


def test_a_tool_that_cannot_be_used_is_named(templates: Any) -> None:
    tools = [function("f", q={"type": "string"}), function("g", id={"not": {"type": "string"}})]
    with pytest.raises(GrammarError, match=r"tool g: .*not at \$\.properties\.id"):
        plan_tools(templates["tagged"], tools, "required")


def test_strict_means_strict(templates: Any, tools: Any) -> None:
    """What cannot be enforced is refused for a strict tool, and not held for others."""
    odd = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    function = {"name": "odd", "parameters": odd}
    tool = {"type": "function", "function": function}
    use = plan_tools(templates["tagged"], [tools[0], tool])
    assert use is not None and use.held is not None and use.grammar is None
    assert set(use.held.grammars) == {("json", b"weather")}
    strict = {"type": "function", "function": {**function, "strict": True}}
    with pytest.raises(GrammarError, match=r"tool odd: .* not at"):
        plan_tools(templates["tagged"], [tools[0], strict])
    free = {"type": "function", "function": {"name": "free", "strict": True, "parameters": {}}}
    free["function"]["parameters"] = {"type": "object"}  # type: ignore[index]
    with pytest.raises(GrammarError, match="tool free is strict, and its parameters cannot"):
        plan_tools(family("<function={{ f.name }}>"), [free])
    forced = plan_tools(templates["tagged"], [tools[0]], "required")
    assert forced is not None and forced.held is None
