"""Chat templates: what realistic ones give, and that hostile ones end soon, in one line."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edgespec.backend import Model, ModelOptions
from edgespec.errors import TemplateError, UsageError
from edgespec.registry.header import read_header
from edgespec.runtime.template import ChatTemplate

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


def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(
        source, bos_token="<s>", eos_token="</s>", now=lambda: datetime(2024, 7, 26)
    )


def render(source: str, *messages: Any, **arguments: Any) -> str:
    return compiled(source).render(messages or [USER], **arguments)


# -- realistic templates ----------------------------------------------------------------------


def test_chatml() -> None:
    assert render(CHATML, USER) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(CHATML, SYSTEM, USER, ANSWER, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )


def test_llama3_with_date_and_generation_block() -> None:
    head = "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: "
    user = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    tail = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert render(LLAMA3, SYSTEM, USER) == (f"{head}26 Jul 2024\n\nBe brief.<|eot_id|>{user}{tail}")
    assert render(LLAMA3, USER, date_string="today") == f"{head}today\n\n<|eot_id|>{user}{tail}"


def test_gemma_gets_the_system_text_in_the_first_user_message() -> None:
    assert render(GEMMA, SYSTEM, USER) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


def test_folding_does_not_hide_another_refusal() -> None:
    with pytest.raises(TemplateError, match="System role not supported"):
        render(GEMMA, SYSTEM, USER, USER)
    with pytest.raises(TemplateError, match="System role not supported"):
        render(GEMMA, SYSTEM)


def test_mistral() -> None:
    assert render(MISTRAL, SYSTEM, USER, ANSWER, USER) == (
        "<s>[INST] Hi[/INST] Hello.</s>[INST] Be brief.\n\nHi[/INST]"
    )
    with pytest.raises(TemplateError, match=r"refuses .* roles must alternate.*--raw"):
        render(MISTRAL, USER, USER)


def test_qwen_with_tools() -> None:
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
        ("\x00\ud800{{ '\udc80' }}{{ '𝄞é' }}", "\x00\ud800\udc80𝄞é"),
    ],
)
def test_what_templates_use(source: str, expected: str) -> None:
    assert render(source) == expected


def test_parts_are_joined() -> None:
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
def test_messages_of_another_form_are_refused(message: Any) -> None:
    with pytest.raises(UsageError):
        render("x", message)


def test_deep_input_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(UsageError, match="too deeply"):
        render("x", {"role": "user", "content": "x", "extra": deep})


def test_long_conversations_fit() -> None:
    turns = [USER, {**ANSWER, "content": "word " * 200}] * 500
    for source in (CHATML, LLAMA3, GEMMA, MISTRAL, QWEN):
        assert len(render(source, *turns)) > 500_000


def test_one_long_message_fits() -> None:
    message = {"role": "user", "content": "𝄞 text\n" * 500_000}
    for source in (CHATML, LLAMA3, GEMMA, MISTRAL, QWEN):
        assert len(render(source, message)) > 3_000_000


def test_looking_at_a_long_message_is_free() -> None:
    looks = "{% if m.content == 'x' or 'y' in m.content or m.get('content') is none %}{% endif %}"
    source = "{% for m in messages %}" + looks * 40 + "{{ m.content }}{% endfor %}"
    assert len(render(source, {"role": "user", "content": "word " * 400_000})) == 2_000_000


def test_threads_share_a_template() -> None:
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


def test_a_template_can_be_used_again_after_a_failure() -> None:
    template = compiled(
        "{% if messages[0].content == 'x' %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}ok"
    )
    with pytest.raises(TemplateError, match="takes too long"):
        template.render([{"role": "user", "content": "x"}])
    assert template.render([USER]) == "ok"


def test_messages_are_not_changed() -> None:
    messages = [dict(SYSTEM), dict(USER)]
    compiled(GEMMA).render(messages)
    assert messages == [SYSTEM, USER]


# -- hostile templates ------------------------------------------------------------------------

BIG = "{% set x = 'aaaaaaaa' * 100000 %}"
LOOP = "{% for i in range(99999) %}"


def repeated(expression: str, start: str = "'abcdefgh'") -> str:
    assign = f"{{% set ns = namespace(x={start}) %}}"
    return f"{assign}{{% for i in range(64) %}}{{% set ns.x = {expression} %}}{{% endfor %}}"


def looped(body: str, times: int = 1) -> str:
    return LOOP * times + body + "{% endfor %}" * times


NEST = repeated("[ns.x, ns.x]")

HOSTILE = {
    "class": "{{ ''.__class__ }}",
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "item escape": "{{ ''['__class__'] }}",
    "attr filter": "{{ ''|attr('__class__') }}",
    "map attribute": "{{ ['']|map(attribute='__class__')|list }}",
    "join attribute": "{{ ['']|join(attribute='__class__') }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "macro internals": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "loop internals": "{% for i in [1] %}{{ loop._iterable }}{% endfor %}",
    "method internals": "{{ ''.join.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "joiner": "{{ joiner()() }}",
    "format attack": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map attack": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format width": "{{ '{:999999999}'.format(1) }}",
    "percent width": "{{ '%999999999d' % 1 }}",
    "format filter": "{{ '%999999999d'|format(1) }}",
    "fromkeys": "{{ dict.fromkeys(range(99999)) }}",
    "mutation": "{{ messages.append(1) }}",
    "mutation of a message": "{{ messages[0].update({'role': 'system'}) }}",
    "mutation by item": "{% set messages[0].role = 'x' %}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends 'x' %}",
    "nested loops": looped("", 3),
    "nested loops with output": looped("aaaaaaaaaa", 2),
    "nested loops in a block": "{% set y %}" + looped("aaaa", 2) + "{% endset %}",
    "filtered loop": BIG + LOOP + "{% for c in x if x in x %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "huge range": "{{ range(10 ** 9)|list }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "power tower": repeated("ns.x ** 9", "9"),
    "squares": repeated("ns.x * ns.x", "9"),
    "huge int": BIG + "{% set n = x|int(base=16) %}{{ n % (n // 3) }}",
    "round": "{{ 1.5|round(10 ** 9, 'ceil') }}",
    "double +": repeated("ns.x + ns.x"),
    "double ~": repeated("ns.x ~ ns.x"),
    "double join": repeated("ns.x|join(ns.x)"),
    "double join method": repeated("ns.x.join([ns.x, ns.x])"),
    "double replace": repeated("ns.x|replace('a', 'aaaa')"),
    "double replace method": repeated("ns.x.replace('', 'aaaa')"),
    "double *": repeated("ns.x * 2"),
    "double list": repeated("[ns.x, ns.x]"),
    "double list +": repeated("(ns.x|list) + (ns.x|list)"),
    "double tuple": repeated("(ns.x, ns.x)"),
    "double dict": repeated("{1: ns.x, 2: ns.x}"),
    "double dict call": repeated("dict(a=ns.x, b=ns.x)"),
    "double tojson": repeated("[ns.x, ns.x]|tojson"),
    "double string": repeated("[ns.x, ns.x]|string"),
    "double set block": "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 64,
    "double macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    + repeated("m(ns.x)"),
    "double filter block": "{% macro m(x) %}{% filter upper %}{{ x }}{{ x }}{% endfilter %}"
    "{% endmacro %}" + repeated("m(ns.x)"),
    "nested list": NEST + "{{ ns.x }}",
    "nested compare": NEST + "{% set y = ns.x %}" + NEST + "{{ y == ns.x }}",
    "nested hash": NEST.replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    "nested varargs": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}"
    "{{ varargs }}{% endif %}{% endmacro %}{{ m(50, 'a') }}",
    "namespace cycle": "{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns, ns] %}"
    "{{ (ns.y|string) * 1000000 }}",
    "many names": BIG + "".join(f"{{% set a{i} = x ~ {i} %}}" for i in range(2000)),
    "many slices": BIG + "".join(f"{{% set a{i} = x[{i}:] %}}" for i in range(2000)),
    "many lists": "{% set ns = namespace(x=[]) %}" + looped("{% set ns.x = ns.x + [[i]] %}"),
    "repeat": "{{ 'a' * 10 ** 10 }}",
    "repeat list": "{{ [1] * 10 ** 10 }}",
    "repeat reversed": "{{ 10 ** 10 * 'a' }}",
    "ljust": "{{ ''.ljust(10 ** 10) }}",
    "center": "{{ ''|center(10 ** 10) }}",
    "zfill": "{{ ''.zfill(10 ** 10) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 10) }}",
    "indent": "{{ 'a\nb'|indent(10 ** 10) }}",
    "indent by text": BIG + "{{ ('\n' * 100000)|indent(x) }}",
    "tojson indent": "{{ [1]|tojson(indent=10 ** 10) }}",
    "tojson separators": BIG + "{{ ([1] * 1000)|tojson(separators=(x, x)) }}",
    "join of many": BIG + "{{ range(99999)|map('default', x)|join(x) }}",
    "batch": "{{ [1]|batch(10 ** 9, 'x')|list }}",
    "wordwrap": BIG + "{{ x|wordwrap(1) }}",
    "urlize": BIG + "{{ x|urlize }}",
    "slow rfind": BIG + "{{ x.rfind('b' + x[1:400000]) }}",
    "slow strip": BIG + "{{ x.strip('b' * 400000) }}",
    "slow trim": BIG + "{{ x|trim('b' * 400000) }}",
    "slow tests": BIG + "{{ x|select('in', 'b' + x)|list }}" * 50,
    "slow comparisons": BIG + looped("{% if 'ab' in x %}{% endif %}" * 50),
    "slow equality": BIG + "{% set y = x[1:] ~ 'a' %}" + looped("{% if x == y %}{% endif %}" * 50),
    "slow titles": BIG + looped("{% set y = (x|title)[:1] %}" * 50),
    "slow splits": BIG + looped("{% set y = x.split('b')[0][:1] %}" * 50),
    "slow regular use": BIG + looped("{{ x|upper|lower|capitalize|trim|replace('b', 'c')|first }}"),
    "list of methods": BIG + "{{ [x.join, x.replace, x.find] * 30000 }}" * 9,
    "list of macros": "{% macro N() %}{% endmacro %}{{ [N] * 90000 }}".replace("N", "m" * 9999),
    "list of numbers": "{{ [2 ** 2000] * 90000 }}",
    "double items": repeated("{1: ns.x, 2: ns.x}.items()"),
    "double values": repeated("{1: ns.x, 2: ns.x}.values()"),
    "double items filter": repeated("{1: ns.x, 2: ns.x}|items|list"),
    "hook by name": "{{ x|#made }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "tree recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(40) }}",
    "block recursion": "{% block a %}{{ self.a() }}{% endblock %}",
    "caller recursion": "{% macro m() %}{% set c = caller %}{% call m() %}{{ c() }}{% endcall %}"
    "{% endmacro %}{% call m() %}x{% endcall %}",
    "enormous output": BIG + LOOP + "{{ x }}{% endfor %}",
    "enormous block": BIG + "{% set y %}" + LOOP + "{{ x }}{% endfor %}{% endset %}",
    "enormous constant": "{% set y %}" + LOOP + "a" * 9999 + "{% endfor %}{% endset %}",
    "autoescape": BIG + "{% autoescape true %}" + looped("{{ x ~ '<' }}") + "{% endautoescape %}",
    "large source": "a" * 300_000,
    "complex source": "{{x~x}}" * 30_000,
    "long sum": "{{" + "x+" * 10_000 + "x}}",
    "deep parentheses": "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
    "deep lists": "{{" + "[" * 500 + "]" * 500 + "}}",
    "deep loops": "{% for i in [1] %}" * 40 + "{% endfor %}" * 40,
    "open block": "{% if x %}",
    "unknown tag": "{% foo %}",
    "unknown filter": "{{ 1|foo }}",
    "unknown test": "{{ 1 is foo }}",
    "unknown function": "{{ foo() }}",
    "bad characters": "{{ \udc80 }}",
    "surrogate names": "{% set \ud800x = 1 %}",
    "undefined attribute": "{{ a.b.c }}",
    "wrong types": "{{ 'a' + 1 }}",
    "division by zero": "{{ 1 / 0 }}",
    "undefined as JSON": "{{ x|tojson }}",
    "long date": "{{ strftime_now('%Y' * 1000) }}",
    "terminal escapes": "{{ raise_exception('\x1b[2J\x07\n\nred' * 1000) }}",
    "not a text": "{{ raise_exception([1, 2]) }}",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template(name: str) -> None:
    started = time.thread_time()
    with pytest.raises(TemplateError) as caught:
        render(HOSTILE[name])
    assert time.thread_time() - started < 2.5
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 400
    assert text.startswith("the chat template of this model ")
    assert "--raw" in text


def test_hostile_templates_need_little_memory() -> None:
    pytest.importorskip("resource", reason="limits on memory are set the POSIX way")
    program = textwrap.dedent(
        """
        import importlib.util, resource, sys
        spec = importlib.util.spec_from_file_location("hostile", sys.argv[1])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        module.render("x")
        before = peak()  # KiB, bytes on macOS
        for name, source in module.HOSTILE.items():
            try:
                module.render(source)
            except module.TemplateError:
                pass
        print((peak() - before) / (1 if sys.platform == "darwin" else 1024))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, __file__], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) / 1024 < 200


def test_the_words_of_a_refusal_are_passed_on() -> None:
    with pytest.raises(TemplateError, match=r"refuses this conversation \(no tools, please\)"):
        render("{{ raise_exception('no\ntools, please') }}")


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
