"""Tools: what a request offers to the model, and the calls that its answer makes of them.

Models write calls as text, each family in its own form. The form is found by letting the model's
chat template write a call. Calls are read in all forms, because models do not always keep to
theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from edgespec.compat.openai.calls import THOUGHTS, ToolCall
from edgespec.errors import GrammarError, TemplateError, UsageError
from edgespec.grammars import (
    PartGrammars,
    choice_of_calls,
    grammar_from_schema,
    grammars_of_arguments,
    is_lark,
    taught_forms,
)
from edgespec.templates import ChatTemplate

__all__ = [
    "NO_TOOLS",
    "CallForm",
    "ToolUse",
    "call_form",
    "call_grammar",
    "call_or",
    "plan_tools",
]

Tool = Mapping[str, Any]

_MOST_TOOLS = 128
_NAME = r"[A-Za-z0-9_.-]{1,64}"


class CallForm(NamedTuple):
    """How a model's text says that a tool is called.

    Attributes:
        opening: the text in front of the name.
        middle: the text between the name and the JSON of the arguments.
        closing: the text behind them.
        marks: texts that only calls begin with.
    """

    opening: str
    middle: str
    closing: str
    marks: tuple[str, ...] = ()


TAGGED = CallForm('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
LISTED = CallForm('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]")
BARE = CallForm('{"name": "', '", "parameters": ', "}")


class ToolUse(NamedTuple):
    """What a request's tools mean for the generation.

    Attributes:
        tools: for the chat template; None hides them from the model.
        names: of the tools that an answer may call.
        grammar: of an answer that is a call; None if the model may decide.
        schemas: of the parameters of each, as far as they are known.
        marks: texts that a call follows, as the chat template has shown.
        held: where the model may decide, what the arguments of its calls obey.
    """

    tools: Sequence[Tool] | None
    names: frozenset[str]
    grammar: str | None
    schemas: Mapping[str, Any] = MappingProxyType({})
    marks: tuple[str, ...] = ()
    held: PartGrammars | None = None


NO_TOOLS = ToolUse(None, frozenset(), None)


def plan_tools(
    template: ChatTemplate, tools: Sequence[Tool] | None, choice: Any = None
) -> ToolUse | None:
    """Read ``tools`` and ``tool_choice`` of a request; return None if there is nothing to call.

    Args:
        template: of the model.
        tools: as in OpenAI's interface: ``{"type": "function", "function": {"name": ...,
            "description": ..., "parameters": JSON Schema}}``.
        choice: "none", "auto" (as None), "required" or "any" (one call of any tool),
            ``{"type": "function", "function": {"name": ...}}``, or ``{"type": "allowed_tools",
            "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}``; tools that are not
            allowed are not shown to the model.

    Raises:
        UsageError: a tool or the choice is not of that form, or the template does not support
            tools.
        GrammarError: the parameters of a tool that has to be called, or is strict, make no grammar.
    """
    names = _names(tools or ())
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed, choice = _allowed(choice, names)
        tools = [tool for tool in tools or () if tool["function"]["name"] in allowed]
        names = [name for name in names if name in allowed]
    wanted = _wanted(choice, names)
    if not tools or wanted == "none":
        return None
    shown, written = _probe(template, tools)
    form = _form_of(template, tools, shown, written)
    grammar = held = None
    if wanted == "auto":
        held = _held(tools, taught_forms(shown + written))
    else:
        called = [t for t in tools if wanted in (_ANY, t["function"]["name"])]
        grammar = call_grammar(form, called)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    return ToolUse(tools, frozenset(names), grammar, schemas, form.marks, held)


def _held(tools: Sequence[Tool], forms: frozenset[str]) -> PartGrammars | None:
    """Return what the arguments of these tools obey, as far as that can be enforced.

    Args:
        tools: those that may be called.
        forms: in which the model may write calls.

    Raises:
        GrammarError: that of a tool that says it is strict cannot; the message names it.
    """
    schemas = {}
    for tool in tools:
        function = tool["function"]
        try:
            schemas[function["name"]] = parameters_of(function)
        except GrammarError:
            if function.get("strict"):
                raise
    held = grammars_of_arguments(schemas, THOUGHTS, forms)
    for name in (tool["function"]["name"] for tool in tools if tool["function"].get("strict")):
        if held is None or not forms <= held.forms(name):
            raise GrammarError(
                f"tool {name} is strict, and its parameters cannot be enforced in the form in "
                "which this model calls tools: list all of them in properties"
            )
    return held


_ANY = "*"  # which no tool can be called


def _allowed(choice: Mapping[str, Any], names: Sequence[str]) -> tuple[set[str], str]:
    """Return the names and the mode of ``allowed_tools``."""
    given = choice.get("allowed_tools", choice)
    tools = given.get("tools") if isinstance(given, Mapping) else None
    mode = given.get("mode", "auto") if isinstance(given, Mapping) else None
    if not isinstance(tools, Sequence) or not tools or mode not in ("auto", "required"):
        raise UsageError(
            'tool_choice has to be {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or '
            '"required", "tools": [...]}}'
        )
    return {_named(tool, names) for tool in tools}, mode


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
    """Return "none", "auto", `_ANY`, or the name of the tool to call."""
    if choice in (None, "none", "auto"):
        return choice or "auto"
    if choice in ("required", "any"):
        if not names:
            raise UsageError("tool_choice is 'required', but there are no tools: send some")
        return _ANY
    return _named(choice, names)


def _named(choice: Any, names: Sequence[str]) -> str:
    """Return the name of a tool in a choice."""
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise UsageError(
            "tool_choice has to be 'none', 'auto', 'required', 'allowed_tools', or "
            '{"type": "function", "function": {"name": ...}}'
        )
    if name not in names:
        raise UsageError(f"tool_choice names {name[:80]!r}, which is none of the tools")
    return name


# -- the model's form -----------------------------------------------------------------------


def call_form(template: ChatTemplate, tools: Sequence[Tool]) -> CallForm:
    """Find the form in which a model that was trained with this template calls these tools.

    It is the text that the template makes of a call, where the arguments in it are JSON. Otherwise
    it is one of the forms that most models know.

    Raises:
        UsageError: the template does not show tools to the model.
    """
    return _form_of(template, tools, *_probe(template, tools))


_QUESTION = {"role": "user", "content": "?"}


def _probe(template: ChatTemplate, tools: Sequence[Tool]) -> tuple[str, str]:
    """Return what the template writes of a question with tools, and of a call behind it.

    Raises:
        UsageError: it does not show tools to the model.
    """
    shown = template.render([_QUESTION], tools=tools)
    if shown == template.render([_QUESTION]):
        raise UsageError(
            "the chat template of this model knows no tools: leave them out, or take a model that "
            "was trained to call functions"
        )
    return shown, _written_call(template, _QUESTION, tools)


def _form_of(template: ChatTemplate, tools: Sequence[Tool], shown: str, written: str) -> CallForm:
    learned = _learned(written, _written(template, _QUESTION, tools, content=_WORD))
    if learned:
        return learned
    text = shown + written
    marks = _marks(written.partition(_NAME_PROBE)[0]) if _NAME_PROBE in written else ()
    if "<tool_call>" in text:
        return TAGGED._replace(marks=marks)
    if "[TOOL_CALLS]" in text:
        return LISTED._replace(marks=marks)
    return BARE._replace(marks=marks) if '"parameters"' in text else _WITH_ARGUMENTS


_NAME_PROBE, _WORD = "probe_name", "probe_word"
_WITH_ARGUMENTS = BARE._replace(middle='", "arguments": ')
_ARGUMENTS = re.compile(r'\{\s*"probe_key"\s*:\s*1\s*\}')
_MARK = re.compile(r"(<[^<>\s]{1,60}>|\[[A-Z_]{2,40}\])[^\w<>]*(?:\"name\"[^\w<>]*)?$")
_CLOSERS = re.compile(r"[\s}\]]*")


def _learned(written: str, plain: str) -> CallForm | None:
    """Learn the form of a call from the one that a template has written.

    Args:
        written: the assistant's message with a call.
        plain: the assistant's message that is `_WORD`, for the end of a turn.
    """
    opening, name, rest = written.partition(_NAME_PROBE)
    arguments = _ARGUMENTS.search(rest)
    if not name or arguments is None or _WORD in opening:
        return None
    closing, end = rest[arguments.end() :], plain.partition(_WORD)[2].strip()
    if end and end in closing:
        closing = closing[: closing.index(end)]
    else:
        found = _CLOSERS.match(closing)
        closing = found[0] if found else ""
    middle = rest[: arguments.start()]
    return CallForm(opening, middle, closing.rstrip(), _marks(opening))


def _marks(opening: str) -> tuple[str, ...]:
    found = _MARK.search(opening)
    return (found[1],) if found and "think" not in found[1].lower() else ()


def _written_call(
    template: ChatTemplate, question: Mapping[str, Any], tools: Sequence[Tool]
) -> str:
    """Return a call as the template writes it behind the opening of an answer."""
    call = ToolCall(_NAME_PROBE, '{"probe_key": 1}').as_json()
    return _written(template, question, tools, content="", tool_calls=[call])


def _written(
    template: ChatTemplate, question: Mapping[str, Any], tools: Sequence[Tool], **message: Any
) -> str:
    """Return what the template adds to a question for an answer; empty if it cannot."""
    answer = {"role": "assistant", **message}
    try:
        begun = template.render([question], tools=tools)
        text = template.render([question, answer], tools=tools, add_generation_prompt=False)
    except TemplateError:
        return ""
    pairs = enumerate(zip(begun, text, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), len(begun))
    return text[same:]


def call_grammar(form: CallForm, tools: Sequence[Tool]) -> str:
    """Return the grammar of an answer that is exactly one call of one of these tools.

    Raises:
        GrammarError: the parameters of a tool cannot be enforced; the message names it.
    """
    calls = []
    for tool in tools:
        function = tool["function"]
        calls.append((function["name"] + form.middle, parameters_of(function)))
    return choice_of_calls(form.opening, calls, form.closing)


def call_or(template: ChatTemplate, use: ToolUse, grammar: str) -> str:
    """Return the grammar of an answer that is a call, or obeys a schema's grammar if it is none.

    A call that has to be made replaces the other grammar; one in GBNF replaces the calls.

    Raises:
        GrammarError: the parameters of a tool cannot be enforced; the message names it.
    """
    if use.grammar is not None or not use.tools or not is_lark(grammar):
        return use.grammar or grammar
    call = call_grammar(call_form(template, use.tools), use.tools)
    head, _, one = call.partition("\n")
    other = grammar.partition("\n")[2]
    rules = [one.replace("start:", "call:", 1), other.replace("start:", "answer:", 1)]
    return "\n".join([head, "start: call | answer", *rules])


def parameters_of(function: Mapping[str, Any]) -> Any:
    """Return the schema of a function's arguments, which are an object.

    Raises:
        GrammarError: it cannot be enforced; the message names the function.
    """
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    try:
        grammar_from_schema(schema)
    except GrammarError as error:
        raise GrammarError(f"tool {function.get('name')}: {error}") from None
    return schema
