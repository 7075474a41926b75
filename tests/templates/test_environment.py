"""What Jinja's own environment has, templates have too: the same results, from Jinja itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.errors import UsageError
from edgespec.templates import ChatTemplate, check_names

Render = Callable[..., str]

AS_JINJA = (
    "{{ [3, 1]|min }}{{ [3, 1]|max }}{{ [3, 1]|sum }}{{ messages|sum(attribute='n') }}",
    "{% for r, g in messages|groupby('role') %}{{ r }}{{ g|length }}{% endfor %}",
    "{% for g in messages|groupby('role') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}",
    "{% for b in range(5)|batch(2, 'x') %}{{ b|join }};{% endfor %}",
    "{% for b in range(5)|batch(2) %}{{ b|join }};{% endfor %}{{ []|batch(2, 'x')|list }}",
    "{% for b in range(7)|slice(3) %}{{ b|join }};{% endfor %}",
    "{% for b in range(7)|slice(3, 'x') %}{{ b|join }};{% endfor %}",
    "{{ 'a b-c d'|wordcount }}{{ 'a b c d e f g h i j'|truncate(9) }}{{ 'a b c'|wordwrap(1) }}",
    "{{ 'ab'|center(7) }}|{{ 'ab'.center(7, '*') }}|{{ '3'.zfill(2) }}|{{ 'a'.ljust(3) }}|",
    "{{ 'a'.rjust(3) }}{{ 'a\tb'.expandtabs(4) }}{{ 'aB'.swapcase() }}{{ 'ß'.casefold() }}",
    "{{ '%s-%02d-%5.1f%%' % ('a', 3, 2.25) }}{{ '%(a)s' % {'a': [1]} }}{{ '%d' % 3 }}",
    "{{ '%s, %s!'|format('Hello', name) }}{{ '%(a)s'|format(a=1) }}",
    "{{ '{}-{b:>4}-{0[0]!r}'.format('xy', b=2) }}{{ '{a}'.format_map({'a': 1}) }}",
    "{{ 1000|filesizeformat }}{{ 'a b'|urlencode }}{{ '<b>x</b>'|striptags }}{{ {'a': 1}|pprint }}",
    "{{ messages[0]|attr('get') is defined }}{{ 'x'|attr('nothing') is defined }}",
    "{% set j = joiner(',') %}{{ j() }}a{{ j() }}b",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{% for m in messages recursive %}{{ m.role }}{{ loop.depth }}"
    "{% if m.inner %}({{ loop(m.inner) }}){% endif %}{% endfor %}",
    "{{ messages[0].copy().role }}{{ [1, 2].copy() }}{{ (5).bit_length() }}",
    "{{ '{\n'|indent(4, first=true) }}x{{ 'a\n\nb\n'|indent(2) }}",
    "{{ 'a\n\nb'|indent('> ', true, true) }}",
    "{{ ''|indent }}{{ '\n'|indent(1) }}{{ 'a'|indent(2, true) }}",
)


@pytest.mark.parametrize("source", AS_JINJA)
def test_the_result_is_jinjas(source: str, render: Render) -> None:
    messages = [
        {"role": "user", "content": "Hi", "n": 2},
        {"role": "tool", "content": "", "n": 3, "inner": [{"role": "a"}, {"role": "b"}]},
        {"role": "user", "content": "Ho", "n": 4},
    ]
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    expected = jinja.from_string(source).render(messages=messages, name="x")
    assert render(source, *messages, name="x") == expected


def test_texts_are_never_escaped_for_html(render: Render) -> None:
    assert render("{{ '<b>'|urlize ~ '<' }}{{ '<'|forceescape ~ '<' }}") == "&lt;b&gt;<&lt;<"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "continue_final_message"])
def test_names_that_are_taken(name: str) -> None:
    with pytest.raises(UsageError, match=f"cannot be called {name}"):
        check_names({"enable_thinking": True, name: 1})


def test_a_template_for_tools(render: Render) -> None:
    def made(source: str, other: ChatTemplate | None = None) -> ChatTemplate:
        return ChatTemplate(source, bos_token="", eos_token="", with_tools=other)

    template = made("plain {{ a }}", made("tools {{ a }} {{ tools|length }}"))
    message = {"role": "user", "content": "x"}
    assert template.render([message], a=1) == "plain 1"
    assert template.render([message], a=1, tools=[]) == "plain 1"
    assert template.render([message], a=1, tools=[{}]) == "tools 1 1"
    assert template.mentions("tools") and not template.mentions("enable_thinking")


CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content | trim }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize("begun", ["spring, summer,", "spring ", ""])
def test_a_final_message_is_continued(begun: str, render: Render) -> None:
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": begun}]
    expected = f"<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n{begun}"
    assert render(CHATML, *messages, continue_final_message=True) == expected
    closed = render(CHATML, *messages, add_generation_prompt=False)
    assert closed == f"{expected.rstrip(' ')}<|im_end|>\n"


def test_what_cannot_be_continued(render: Render) -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    for last in (
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ):
        with pytest.raises(UsageError, match="last message of the assistant"):
            render(CHATML, last, continue_final_message=True)
