"""Chat templates that show tools, one for each way of writing calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.templates import ChatTemplate

TAGGED = """{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>
Answer with <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LISTED = """{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls[0].id | length != 9 %}{{ raise_exception('ids have nine') }}{% endif %}
{{- '[TOOL_CALLS][' + message.tool_calls[0].function | tojson + ']' }}
{%- else %}{{ message.content }}{% endif %}{% endfor %}"""

BARE = """{%- if tools %}Answer with {"name": function, "parameters": arguments}
{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '{"name": "' + call.function.name + '", "parameters": ' }}
{{- call.function.arguments | tojson }}}{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""

SILENT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"$ref": "#/$defs/city"},
                "days": {"type": "integer"},
            },
            "required": ["city", "days"],
            "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(scope="session")
def templates() -> dict[str, ChatTemplate]:
    """By the form they write calls in."""
    sources = {"tagged": TAGGED, "listed": LISTED, "bare": BARE, "silent": SILENT}
    return {
        name: ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        for name, source in sources.items()
    }


@pytest.fixture(scope="session")
def tools() -> list[dict[str, Any]]:
    """Two: `weather`, with a schema that refers to its own definitions, and `clock` without one."""
    return [WEATHER, CLOCK]


@pytest.fixture(scope="session")
def engine(default_model: Path) -> Iterator[Any]:
    from edgespec import Engine, EngineOptions

    options = EngineOptions(draft="ngram", threads=2, context=512, k=3, exact="bitwise")
    with Engine(default_model, options) as engine:
        yield engine


@pytest.fixture(scope="session")
def greedy() -> Callable[[int], dict[str, Any]]:
    """Arguments of `Engine.generate` for so many tokens without any choice."""
    from edgespec import GenerationLimits, SamplingParameters

    return lambda count: {
        "sampling": SamplingParameters(temperature=0.0),
        "limits": GenerationLimits(max_tokens=count),
    }
