"""What realistic chat templates give."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.backend import Model, ModelOptions
from edgespec.errors import TemplateError
from edgespec.gguf.header import read_header
from edgespec.templates import ChatTemplate

Compile = Callable[[str], ChatTemplate]
Render = Callable[..., str]

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello."}

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}"""

QWEN = """{%- macro call(item) %}
{{- '<tool_call>\n{"name": "' ~ item.name ~ '", "arguments": ' ~ (item.arguments | tojson) ~ '}' }}
{{- '\n</tool_call>' }}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ content }}
    {%- for tool_call in message.tool_calls or [] %}
        {{- call(tool_call.function if tool_call.function else tool_call) }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def test_chatml(render: Render) -> None:
    assert render(CHATML, USER) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(CHATML, SYSTEM, USER, ANSWER, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )


def test_llama3_with_date_and_generation_block(render: Render) -> None:
    head = "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: "
    user = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    tail = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert render(LLAMA3, SYSTEM, USER) == (f"{head}26 Jul 2024\n\nBe brief.<|eot_id|>{user}{tail}")
    assert render(LLAMA3, USER, date_string="today") == f"{head}today\n\n<|eot_id|>{user}{tail}"


def test_gemma_gets_the_system_text_in_the_first_user_message(render: Render) -> None:
    assert render(GEMMA, SYSTEM, USER) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


def test_the_reason_shown_is_that_of_the_last_form(render: Render) -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render(GEMMA, SYSTEM, USER, ANSWER, ANSWER | {"role": "tool"})
    with pytest.raises(TemplateError, match="System role not supported"):
        render(GEMMA, SYSTEM)


def test_mistral(render: Render) -> None:
    assert render(MISTRAL, SYSTEM, USER, ANSWER, USER) == (
        "<s>[INST] Hi[/INST] Hello.</s>[INST] Be brief.\n\nHi[/INST]"
    )
    assert render(MISTRAL, USER, USER) == "<s>[INST] Hi\n\nHi[/INST]"
    assert render(GEMMA, SYSTEM, USER, USER) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(TemplateError, match=r"refuses .* roles must alternate.*--raw"):
        render(MISTRAL, ANSWER, USER)


def test_qwen_with_tools(render: Render) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "<é & 'x'>"}}
    call = {"function": {"name": "f", "arguments": {"city": "Zürich", "n": 2}}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    thought = {"role": "assistant", "content": "<think>hm</think>\n\nDone."}
    assert render(QWEN, USER, asked, thought, tools=[tool]) == (
        "<|im_start|>system\n# Tools\n<tools>\n"
        '{"type": "function", "function": {"name": "f", "description": "<é & \'x\'>"}}'
        "\n</tools><|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"city": "Zürich", "n": 2}}'
        "\n</tool_call><|im_end|>\n<|im_start|>assistant\nDone.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages | map(attribute='content') | join(', ') }}", "Hi"),
        ("{% for m in messages %}{{ loop.length }}{{ loop.last }}{% endfor %}", "1True"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for k, v in {'b': 1, 'a': [2]} | dictsort %}{{ k }}{{ v }}{% endfor %}", "a[2]b1"),
        (
            "{% set x = [1] + [2, 3] %}{{ x[1:] }}{{ x[::-1] }}{{ 2 * 3 ** 2 % 5 }}",
            "[2, 3][3, 2, 1]3",
        ),
        ("{{ 'a.b'.replace('.', '-') }}{{ ','.join(['x', 'y']) }}{{ 'a b' | title }}", "a-bx,yA B"),
        ("{{ 'x\ny' | indent(2, true) }}", "  x\n  y"),
        ("{{ {'a': [1, 'é']} | tojson(indent=2) }}", '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
        ("{{ {'a': 1}.items() | list }}{{ {'a': 1}.keys() }}", "[('a', 1)]['a']"),
        ("{{ 1 < 2 < 3 }}{{ 1 < 2 > 3 }}{{ 'a' in 'abc' }}", "TrueFalseTrue"),
        ("{% set ns = namespace(a='x') %}{% set ns.a = ns.a ~ 1 ~ none %}{{ ns.a }}", "x1None"),
        ("{{ messages[0].missing is defined }}{{ messages[0].get('x', 'y') }}", "Falsey"),
        ("{% macro f(a, b='z') %}{{ a ~ b }}{% endmacro %}{{ f('y') | upper }}", "YZ"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}", "a1"),
        ("{{ ['b', 'a'] | sort | first }}{{ 'abc'[-1] }}{{ -7 // 2 }}", "ac-4"),
        ("{{ tools }}{{ add_generation_prompt }}{{ eos_token | safe }}", "NoneTrue</s>"),
        ("{{ 2.55|round(1) }} {{ 7|round(-1)|int }} {{ 1.01|round(method='ceil') }}", "2.5 10 2.0"),
        ('{{ \'<a & "b">\' | e }}{{ "\'" | escape }}', "&lt;a &amp; &#34;b&#34;&gt;&#39;"),
        ("\x00\ud800{{ '\udc80' }}{{ '𝄞é' }}", "\x00\ud800\udc80𝄞é"),
    ],
)
def test_what_templates_use(source: str, expected: str, render: Render) -> None:
    assert render(source) == expected


def test_long_conversations_fit(render: Render) -> None:
    turns = [USER, {**ANSWER, "content": "word " * 200}] * 500
    for source in (CHATML, LLAMA3, GEMMA, MISTRAL, QWEN):
        assert len(render(source, *turns)) > 500_000


def test_one_long_message_fits(render: Render) -> None:
    message = {"role": "user", "content": "𝄞 text\n" * 500_000}
    for source in (CHATML, LLAMA3, GEMMA, MISTRAL, QWEN):
        assert len(render(source, message)) > 3_000_000


def test_looking_at_a_long_message_is_free(render: Render) -> None:
    looks = "{% if m.content == 'x' or 'y' in m.content or m.get('content') is none %}{% endif %}"
    source = "{% for m in messages %}" + looks * 40 + "{{ m.content }}{% endfor %}"
    assert len(render(source, {"role": "user", "content": "word " * 400_000})) == 2_000_000


def test_threads_share_a_template(compiled: Compile) -> None:
    template = compiled(CHATML)
    results: list[str] = []

    def work(name: str) -> None:
        for _ in range(20):
            text = template.render([{"role": "user", "content": name}])
            results.append("" if f"user\n{name}<" in text else text)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [""] * 80


def test_messages_are_not_changed(compiled: Compile) -> None:
    messages = [dict(SYSTEM), dict(USER)]
    compiled(GEMMA).render(messages)
    assert messages == [SYSTEM, USER]


# -- a real model -----------------------------------------------------------------------------


def test_as_llama_cpp_renders_it(default_model: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    header = read_header(default_model)
    assert header.chat_template
    template = ChatTemplate(header.chat_template, bos_token="<|im_start|>", eos_token="<|im_end|>")
    messages = [
        {"role": role, "content": f"{role} says\n {number} é 𝄞  "}
        for number, role in enumerate(("system", "user", "assistant", "user"))
    ]
    native = (llama_cpp.llama_chat_message * len(messages))(
        *(
            llama_cpp.llama_chat_message(
                role=message["role"].encode(), content=message["content"].encode()
            )
            for message in messages
        )
    )
    space = ctypes.create_string_buffer(4096)
    for prompt in (False, True):
        length = llama_cpp.llama_chat_apply_template(
            header.chat_template.encode(), native, len(messages), prompt, space, len(space)
        )
        expected = space.raw[:length].decode()
        assert template.render(messages, add_generation_prompt=prompt) == expected


def test_from_model(default_model: Path) -> None:
    with Model(default_model, ModelOptions(vocabulary_only=True)) as model:
        template = ChatTemplate.from_model(model.header, model.vocabulary)
        text = template.render([USER])
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
