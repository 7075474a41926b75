"""What a request says about its conversation reaches the chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edgespec import Engine, EngineOptions

TEMPLATE = """{{ enable_thinking }}{% for m in messages -%}
({{ m.role }}{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}: {{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}
{%- endfor %})
{% endfor %}{% if add_generation_prompt %}(assistant: {% endif %}"""
TOOLS = "Functions: {{ tools | tojson }} {{ messages[-1].content }}"
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def prompt(
    tmp_path_factory: pytest.TempPathFactory, serve: Callable[..., Any], built_models: Any
) -> Iterator[Callable[..., Any]]:
    """(messages, fields...) -> the prompt that the server made of them, or its error."""
    path = built_models.write_llama(
        tmp_path_factory.mktemp("models") / "two.gguf", template=TEMPLATE, tools=TOOLS
    )
    options = EngineOptions(draft="none", threads=2, context=512)
    with Engine(path, options) as engine, serve(engine=engine) as server:
        prompts: list[Any] = []
        generate = engine.generate

        def noting(prompt: Any, *args: Any, **keywords: Any) -> Any:
            prompts.append(prompt if isinstance(prompt, str) else engine.vocabulary.decode(prompt))
            return generate(prompt, *args, **keywords)

        engine.generate = noting  # type: ignore[method-assign]

        def posted(*messages: Any, **fields: Any) -> Any:
            body = {"messages": messages, "max_tokens": 1, **fields}
            answer = server.post("/v1/chat/completions", body)
            if answer.status_code != 200:
                return answer.json()["error"]["message"]
            return prompts[-1]

        yield posted


def test_variables_and_reasoning(prompt: Callable[..., Any]) -> None:
    thought = {"role": "assistant", "content": "b", "reasoning_content": "so"}
    assert prompt(USER, thought, USER, chat_template_kwargs={"enable_thinking": False}) == (
        "False(user: Hi)\n(assistant[so]: b)\n(user: Hi)\n(assistant: "
    )
    assert prompt(USER, thought | {"reasoning": "no"}).count("[so]") == 1
    taken = prompt(USER, chat_template_kwargs={"messages": []})
    assert "cannot be called messages" in taken


def test_a_final_message_is_continued(prompt: Callable[..., Any]) -> None:
    begun = {"role": "assistant", "content": "spring, summer,"}
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert prompt(USER, begun, **fields) == "(user: Hi)\n(assistant: spring, summer,"
    assert prompt(USER, begun, continue_final_message=True).endswith("summer,")
    assert prompt(USER, add_generation_prompt=False) == "(user: Hi)\n"
    both = prompt(USER, begun, continue_final_message=True, add_generation_prompt=True)
    assert "exclude each other" in both
    assert "last message of the assistant" in prompt(USER, continue_final_message=True)


def test_tools_have_a_template_of_their_own(prompt: Callable[..., Any]) -> None:
    assert prompt(USER, tools=[TOOL]).startswith("Functions: [")
    assert prompt(USER, tools=[]).startswith("(user: Hi)")


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ({"content": None}, ""),
        ({}, ""),
        ({"content": "x", "tool_calls": []}, "x"),
        ({"content": "x", "tool_calls": None}, "x"),
        ({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, "f{}"),
        ({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": None}}]}, "f{}"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, "f{}"),
    ],
)
def test_what_a_message_may_lack(
    message: dict[str, Any], written: str, prompt: Callable[..., Any]
) -> None:
    assert prompt(USER, {"role": "assistant", **message}, USER) == (
        f"(user: Hi)\n(assistant: {written})\n(user: Hi)\n(assistant: "
    )
