"""From a request to a generation that is ready to run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from edgespec.backend import grammar_from_schema, grammar_of_json
from edgespec.compat.openai.responses import (
    ChatChunks,
    Chunks,
    TextChunks,
    chat_completion,
    text_completion,
)
from edgespec.compat.openai.tools import ToolUse, plan_tools
from edgespec.errors import UsageError
from edgespec.runtime.stream import GenerationLimits, Result, Stream
from edgespec.sampling.parameters import SamplingParameters
from edgespec.server.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
    ObjectFormat,
    SchemaFormat,
)

if TYPE_CHECKING:
    from edgespec.runtime.engine import Engine

__all__ = ["Defaults", "Job", "prepare"]

_FORBIDDEN = -100.0  # this and less forbid a token, as in OpenAI's interface

_FILTERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)


@dataclass(frozen=True)
class Defaults:
    """What applies to requests that do not specify it.

    Attributes:
        sampling: the filters.
        accept: the acceptance rule.
        seed: of every answer; None for a random one each time.
    """

    sampling: SamplingParameters
    accept: str = "auto"
    seed: int | None = None


class Job(NamedTuple):
    """A generation that is ready to run.

    Attributes:
        stream: yields the answer's token chunks.
        chunks: turns them into objects.
        whole: makes the object of the finished answer.
        seed: of its draws.
    """

    stream: Stream
    chunks: Chunks
    whole: Callable[[Result], dict[str, Any]]
    seed: int


def prepare(engine: Engine, request: GenerationRequest, defaults: Defaults) -> Job:
    """Render, tokenize and compile what a request needs. Takes processor time.

    Raises:
        UsageError, TemplateError, GrammarError: the request cannot be carried out.
    """
    sampling = _sampling(request, defaults)
    if isinstance(request, ChatRequest):
        return _prepare_chat(engine, request, sampling, defaults.accept)
    assert isinstance(request, CompletionRequest)
    return _prepare_completion(engine, request, sampling, defaults.accept)


def _prepare_chat(
    engine: Engine, request: ChatRequest, sampling: SamplingParameters, accept: str
) -> Job:
    logprobs = bool(request.logprobs)
    if request.top_logprobs is not None and not logprobs:
        raise UsageError("top_logprobs needs logprobs: set that to true")
    tools = plan_tools(engine.template, request.tools, request.tool_choice)
    prompt = engine.template.render(
        [_as_template_message(message) for message in request.messages],
        tools=tools.tools if tools else None,
        **request.rendering(),
    )
    most = request.max_completion_tokens
    stream = engine.generate(
        prompt,
        sampling,
        _limits(request, request.max_tokens if most is None else most),
        accept=accept,
        grammar=_grammar(request, tools),
        logprobs=(request.top_logprobs or 0) if logprobs else None,
    )
    vocabulary = engine.vocabulary
    return Job(
        stream,
        ChatChunks(engine.model_name, vocabulary, tools, logprobs=logprobs),
        lambda result: chat_completion(result, vocabulary, tools, logprobs=logprobs),
        sampling.seed,
    )


def _prepare_completion(
    engine: Engine, request: CompletionRequest, sampling: SamplingParameters, accept: str
) -> Job:
    prompt = _single(request.prompt)
    if request.echo and not isinstance(prompt, str):
        raise UsageError("echo needs a prompt that is text")
    echo = prompt if request.echo and isinstance(prompt, str) else ""
    if echo and request.logprobs is not None:
        raise UsageError("echo and logprobs exclude each other: a prompt has no log-probabilities")
    limits = _limits(request, request.max_tokens)
    stream = engine.generate(prompt, sampling, limits, accept=accept, logprobs=request.logprobs)
    vocabulary, logprobs = engine.vocabulary, request.logprobs is not None
    return Job(
        stream,
        TextChunks(engine.model_name, vocabulary, logprobs=logprobs, echo=echo),
        lambda result: text_completion(result, vocabulary, logprobs=logprobs, echo=echo),
        sampling.seed,
    )


def _sampling(request: GenerationRequest, defaults: Defaults) -> SamplingParameters:
    given = {name: getattr(request, name) for name in _FILTERS}
    given = {name: value for name, value in given.items() if value is not None}
    if "seed" not in given:
        given["seed"] = secrets.randbits(32) if defaults.seed is None else defaults.seed
    if request.logit_bias is not None:
        given["logit_bias"] = {
            int(token): bias if bias > _FORBIDDEN else float("-inf")
            for token, bias in request.logit_bias.items()
        }
    return replace(defaults.sampling, **given)


def _limits(request: GenerationRequest, max_tokens: int | None) -> GenerationLimits:
    stop = request.stop or ()
    return GenerationLimits(max_tokens, (stop,) if isinstance(stop, str) else tuple(stop))


def _grammar(request: ChatRequest, tools: ToolUse | None) -> str | None:
    wanted = request.response_format
    if not isinstance(wanted, (ObjectFormat, SchemaFormat)):
        return tools.grammar if tools else None
    if tools:
        raise UsageError(
            f"response_format {wanted.type} and tools exclude each other: leave one out, or set "
            "tool_choice to none"
        )
    if isinstance(wanted, ObjectFormat):
        return grammar_of_json()
    return grammar_from_schema(json.dumps(wanted.json_schema.json_schema))


def _as_template_message(message: Message) -> dict[str, Any]:
    """Convert a message for the chat template; the role "developer" was "system" before."""
    plain = message.model_dump(exclude_none=True)
    plain.setdefault("content", "")
    if message.role == "developer":
        plain["role"] = "system"
    return plain


def _single(prompt: str | list[str] | list[int] | list[list[int]]) -> str | list[int]:
    """Return the only prompt of a request."""
    if isinstance(prompt, str):
        return prompt
    nested = [one for one in prompt if not isinstance(one, int)]
    if not nested:
        tokens = [one for one in prompt if isinstance(one, int)]
        if any(not 0 <= token < 2**31 for token in tokens):
            raise UsageError("a token of the prompt is not in the vocabulary")
        return tokens
    if len(prompt) > 1:
        raise UsageError(f"there are {len(prompt)} prompts: send one in each request")
    return _single(nested[0])
