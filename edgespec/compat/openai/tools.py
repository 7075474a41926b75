"""Tools: what a request offers to the model, and the calls that its answer makes of them.

Models write calls as text, each family in its own form. The form is found by letting the model's
chat template write a call. Calls are read in all forms, because models do not always keep to
theirs.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from edgespec.backend import grammar_from_schema
from edgespec.errors import TemplateError, UsageError
from edgespec.templates import ChatTemplate

__all__ = [
    "NO_TOOLS",
    "CallForm",
    "ToolCall",
    "ToolUse",
    "call_form",
    "call_grammar",
    "call_id",
    "plan_tools",
]

Tool = Mapping[str, Any]

_MOST_TOOLS = 128
_NAME = r"[A-Za-z0-9_.-]{1,64}"
_GBNF_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[A-Za-z][A-Za-z0-9-]*')


@dataclass(frozen=True)
class ToolCall:
    """A call that a model asks for.

    Attributes:
        name: of a tool that was offered.
        arguments: a JSON text, as in OpenAI's interface; not checked against any schema.
    """

    name: str
    arguments: str

    def as_json(self) -> dict[str, Any]:
        """Return the entry of ``tool_calls``, with a new id."""
        return {
            "id": call_id(),
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def call_id() -> str:
    """Return a new id of a call. Some templates require nine letters or digits."""
    return secrets.token_hex(5)[:9]


class CallForm(NamedTuple):
    """How a model's text says that a tool is called.

    Attributes:
        opening, closing: the text around the JSON of a call.
        arguments: the key of the arguments in that JSON.
    """

    opening: str
    closing: str
    arguments: str


TAGGED = CallForm("<tool_call>\n", "\n</tool_call>", "arguments")
LISTED = CallForm("[TOOL_CALLS][", "]", "arguments")
BARE = CallForm("", "", "parameters")


class ToolUse(NamedTuple):
    """What a request's tools mean for the generation.

    Attributes:
        tools: for the chat template; None hides them from the model.
        names: of the tools that an answer may call.
        grammar: GBNF of an answer that is a call; None if the model may decide.
        schemas: of the parameters of each, as far as they are known.
        marks: texts that a call follows, as the chat template has shown.
    """

    tools: Sequence[Tool] | None
    names: frozenset[str]
    grammar: str | None
    schemas: Mapping[str, Any] = MappingProxyType({})
    marks: tuple[str, ...] = ()


NO_TOOLS = ToolUse(None, frozenset(), None)


def plan_tools(
    template: ChatTemplate, tools: Sequence[Tool] | None, choice: Any = None
) -> ToolUse | None:
    """Read ``tools`` and ``tool_choice`` of a request; return None if there is nothing to call.

    Args:
        template: of the model.
        tools: as in OpenAI's interface: ``{"type": "function", "function": {"name": ...,
            "description": ..., "parameters": JSON Schema}}``.
        choice: "none", "auto" (as None), "required" (one call of any tool), or
            ``{"type": "function", "function": {"name": ...}}``.

    Raises:
        UsageError: a tool or the choice is not of that form, or the template does not support
            tools.
        GrammarError: the parameters of a tool that has to be called make no grammar.
    """
    names = _names(tools or ())
    wanted = _wanted(choice, names)
    if not tools or wanted == "none":
        return None
    form = call_form(template, tools)
    grammar = None
    if wanted != "auto":
        called = [t for t in tools if wanted in ("required", t["function"]["name"])]
        grammar = call_grammar(form, called)
    return ToolUse(tools, frozenset(names), grammar)


def _names(tools: Sequence[Tool]) -> list[str]:
    if len(tools) > _MOST_TOOLS:
        raise UsageError(f"there are {len(tools)} tools: {_MOST_TOOLS} are the most")
    names = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or tool.get("type", "function") != "function":
            raise UsageError('a tool has to be {"type": "function", "function": {"name": ...}}')
        if not re.fullmatch(_NAME, name):
            raise UsageError(f"tool {name[:80]!r}: use up to 64 letters, digits, _ . - as its name")
        if name in names:
            raise UsageError(f"there are two tools called {name}")
        names.append(name)
    return names


def _wanted(choice: Any, names: Sequence[str]) -> str:
    """Return "none", "auto", "required", or the name of the tool to call."""
    if choice in (None, "none", "auto"):
        return choice or "auto"
    if choice == "required":
        if not names:
            raise UsageError("tool_choice is 'required', but there are no tools: send some")
        return "required"
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise UsageError(
            "tool_choice has to be 'none', 'auto', 'required', or "
            '{"type": "function", "function": {"name": ...}}'
        )
    if name not in names:
        raise UsageError(f"tool_choice names {name[:80]!r}, which is none of the tools")
    return name


# -- the model's form -----------------------------------------------------------------------


def call_form(template: ChatTemplate, tools: Sequence[Tool]) -> CallForm:
    """Find the form in which a model that was trained with this template calls these tools.

    Raises:
        UsageError: the template does not show tools to the model.
    """
    question = {"role": "user", "content": "?"}
    shown = template.render([question], tools=tools)
    if shown == template.render([question]):
        raise UsageError(
            "the chat template of this model knows no tools: leave them out, or take a model that "
            "was trained to call functions"
        )
    text = shown + _written_call(template, question)
    if "<tool_call>" in text:
        return TAGGED
    if "[TOOL_CALLS]" in text:
        return LISTED
    return BARE if '"parameters": {"probe"' in text else BARE._replace(arguments="arguments")


def _written_call(template: ChatTemplate, question: Mapping[str, Any]) -> str:
    """Return a call as the template writes it into a conversation; empty if it cannot."""
    call = ToolCall("probe", '{"probe": 1}').as_json()
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        return template.render([question, answer], add_generation_prompt=False)
    except TemplateError:
        return ""


def call_grammar(form: CallForm, tools: Sequence[Tool]) -> str:
    """Return the GBNF of an answer that is exactly one call of one of these tools.

    Raises:
        GrammarError: the schema of a tool's parameters makes no grammar.
    """
    calls, rules = [], []
    for number, tool in enumerate(tools):
        function = tool["function"]
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        prefix = f"tool{number}-"
        rules.append(_with_prefix(grammar_from_schema(json.dumps(schema)), prefix))
        head = f'{{"name": "{function["name"]}", "{form.arguments}": '
        calls.append(f'{json.dumps(head)} {prefix}root "}}"')
    root = f"{json.dumps(form.opening)} ( {' | '.join(calls)} ) {json.dumps(form.closing)}"
    return "\n".join([f"root ::= {root}", *rules])


def _with_prefix(grammar: str, prefix: str) -> str:
    """Rename rules, so that those of several schemas can be in one grammar."""

    def renamed(match: re.Match[str]) -> str:
        word = match.group()
        return word if word[0] in '"[' else prefix + word

    return _GBNF_WORDS.sub(renamed, grammar)
