"""From a request to a generation that is ready to run."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from edgespec.backend import PLAIN
from edgespec.compat.openai.calls import MARKS, opened_thought
from edgespec.compat.openai.responses import (
    ChatChunks,
    Chunks,
    TextChunks,
    TextLogprobs,
    chat_completion,
    text_completion,
)
from edgespec.compat.openai.tools import ToolUse, call_or, plan_tools
from edgespec.errors import EdgespecError, GrammarError, UsageError
from edgespec.grammars import PartGrammars, grammar_from_schema, grammar_of_json
from edgespec.runtime.options import NO_LIMIT
from edgespec.runtime.stream import GenerationLimits, Result, Stream
from edgespec.sampling.parameters import SamplingParameters
from edgespec.server.errors import ApiError
from edgespec.server.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
    ObjectFormat,
    SchemaFormat,
    TemplateRequest,
)
from edgespec.speculation.acceptance import repeatable_rule

if TYPE_CHECKING:
    from edgespec.drafters import EarlierTexts
    from edgespec.runtime.engine import Engine

__all__ = ["Choice", "Defaults", "Job", "as_template_messages", "prepare", "render"]

_FORBIDDEN = -100.0  # this and less forbid a token, as in OpenAI's interface
_SEEDS = 2**64
_RANDOM_SEED = -1
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

_FILTERS = {
    **{
        name: name
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma"),
            *("repeat_penalty", "frequency_penalty", "presence_penalty"),
            *("dynatemp_range", "dynatemp_exponent", "xtc_probability", "xtc_threshold"),
            *("dry_multiplier", "dry_base", "dry_allowed_length"),
            *("mirostat", "mirostat_tau", "mirostat_eta", "seed"),
        )
    },
    "repeat_last_n": "penalty_window",
    "dry_penalty_last_n": "dry_window",
}
"""Fields of a request -> attributes of `SamplingParameters`."""


@dataclass(frozen=True)
class Defaults:
    """What applies to requests that do not specify it.

    Attributes:
        sampling: the filters.
        accept: the acceptance rule.
        seed: of every answer; None for a random one each time.
        max_tokens: of an answer; None for no limit but the context.
        overflow: what a full context does, as in `GenerationLimits`.
        allow_loops: go on where an answer only repeats itself.
    """

    sampling: SamplingParameters
    accept: str = "auto"
    seed: int | None = None
    max_tokens: int | None = None
    overflow: Literal["stop", "shift"] = "stop"
    allow_loops: bool = False

    def limits(self) -> GenerationLimits:
        """Return what ends an answer.

        Raises:
            UsageError: a value is out of range.
        """
        return GenerationLimits(
            self.max_tokens, overflow=self.overflow, allow_loops=self.allow_loops
        )


class Choice(NamedTuple):
    """One answer of a request.

    Attributes:
        stream: yields its token chunks.
        chunks: turns them into objects.
        whole: makes the object of the finished answer.
        seed: of its draws.
    """

    stream: Stream
    chunks: Chunks
    whole: Callable[[Result], dict[str, Any]]
    seed: int


@dataclass(eq=False)
class Job:
    """The answers of a request, ready to be generated one after the other.

    Attributes:
        choices: in the order of the prompts; each prompt has as many as `n` says.
        n: number of answers of each prompt.
        facts: of how they are generated, to be told with each of them.
    """

    choices: list[Choice]
    n: int
    facts: dict[str, Any]

    def cancel(self) -> None:
        """End all of them."""
        for choice in self.choices:
            choice.stream.cancel()


def prepare(
    engine: Engine,
    request: GenerationRequest,
    defaults: Defaults,
    recent: EarlierTexts | None = None,
) -> Job:
    """Render, tokenize and compile what a request needs. Takes processor time.

    Args:
        recent: earlier answers that prompt lookup may copy from; these are added.

    Raises:
        ApiError, UsageError, TemplateError, GrammarError: the request cannot be carried out.
    """
    sampling = _sampling(request, defaults, engine.vocabulary.size)
    if isinstance(request, ChatRequest):
        make = _chat(engine, request, defaults)
        makers = [make]
    else:
        assert isinstance(request, CompletionRequest)
        makers = [_completion(engine, request, one, defaults) for one in request.prompts()]
    n = request.n or 1
    choices: list[Choice] = []
    for make in makers:
        for _ in range(n):
            choices.append(make(replace(sampling, seed=(sampling.seed + len(choices)) % _SEEDS)))
    for choice in choices:
        choice.stream.recent = recent
    return Job(choices, n, {"exactness": engine.exactness_of(choices[0].stream).as_json()})


def render(engine: Engine, request: TemplateRequest) -> str:
    """Return a conversation as the chat template writes it.

    Raises:
        TemplateError, UsageError: it cannot.
    """
    text = engine.template.render(
        as_template_messages(request.messages),
        tools=request.tools,
        **request.rendering(),
    )
    return text.replace(PLAIN, "")


_Maker = Callable[[SamplingParameters], Choice]


def _chat(engine: Engine, request: ChatRequest, defaults: Defaults) -> _Maker:
    logprobs = bool(request.logprobs)
    if request.top_logprobs is not None and not logprobs:
        raise _wrong("top_logprobs", "needs logprobs: set that to true")
    tools = plan_tools(engine.template, request.tools, request.tool_choice)
    messages = as_template_messages(request.messages)
    shown = tools.tools if tools else None
    variables = {**_effort(engine, request), **request.rendering()}
    prompt = engine.template.render(messages, tools=shown, **variables)
    tokens = engine.tokenize(prompt)
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    limits = _limits(request, name, defaults)
    grammar: str | PartGrammars | None = _grammar(engine, request, tools)
    k = _most_proposals(engine, request)
    _check_length(engine, len(tokens), "messages")
    model, vocabulary = engine.model_name, engine.vocabulary
    begun = messages[-1]["content"] if request.continue_final_message else ""
    closing = opened_thought(prompt, begun)
    if grammar is None and tools and tools.held:
        grammar = replace(tools.held, aside=closing)
    marks = engine.shown_tokens(MARKS.union(tools.marks if tools else ()))

    def make(sampling: SamplingParameters) -> Choice:
        with _about(_constraint(request) or "tools", (GrammarError,)):
            stream = engine.generate(
                tokens,
                sampling,
                limits,
                accept=repeatable_rule(defaults.accept),
                grammar=grammar,
                logprobs=(request.top_logprobs or 0) if logprobs else None,
                k=k,
            )
        stream.shown = marks
        reading: dict[str, Any] = {"logprobs": logprobs, "closing": closing}
        return Choice(
            stream,
            ChatChunks(model, vocabulary, tools, **reading),
            lambda result: chat_completion(result, vocabulary, tools, **reading),
            sampling.seed,
        )

    return make


def _completion(
    engine: Engine, request: CompletionRequest, prompt: str | list[int], defaults: Defaults
) -> _Maker:
    vocabulary, logprobs = engine.vocabulary, request.logprobs is not None
    silent = request.max_tokens == 0 and bool(request.echo)
    limits = _limits(request, "max_tokens", defaults, silent=silent)
    grammar, k = _grammar(engine, request, None), _most_proposals(engine, request)
    with _about("prompt"):
        tokens = _tokens(engine, prompt)
    if request.suffix:
        with _about("suffix"):
            tokens = vocabulary.gap(prompt, request.suffix)
    _check_length(engine, len(tokens), "prompt")
    echo = _echo(engine, prompt, tokens, request) if request.echo else {}

    def make(sampling: SamplingParameters) -> Choice:
        with _about(_constraint(request) or "prompt", (GrammarError,)):
            stream = engine.generate(
                tokens,
                sampling,
                limits,
                accept=repeatable_rule(defaults.accept),
                grammar=grammar,
                logprobs=request.logprobs,
                k=k,
            )
        if silent:
            stream.skip()
        return Choice(
            stream,
            TextChunks(engine.model_name, vocabulary, logprobs=logprobs, **echo),
            lambda result: text_completion(result, vocabulary, logprobs=logprobs, **echo),
            sampling.seed,
        )

    return make


def _echo(
    engine: Engine, prompt: str | list[int], tokens: list[int], request: CompletionRequest
) -> dict[str, Any]:
    """Return the arguments for a text that begins with its prompt."""
    text = prompt if isinstance(prompt, str) else engine.vocabulary.decode(prompt)
    if request.suffix:
        raise _wrong("echo", "cannot be had together with a suffix: leave one out")
    if request.logprobs is None:
        return {"echo": text}
    likely = engine.score(tokens, request.logprobs)
    told = TextLogprobs(engine.vocabulary).prompt(tokens, likely)
    return {"echo": text, "echo_logprobs": told}


def _sampling(request: GenerationRequest, defaults: Defaults, size: int) -> SamplingParameters:
    sampling = defaults.sampling
    seed = defaults.seed if request.seed is None else request.seed
    if seed is None or seed == _RANDOM_SEED:
        seed = secrets.randbits(32)
    given = {name: getattr(request, name) for name in _FILTERS if name != "seed"}
    for name, value in {**given, "seed": seed}.items():
        if value is not None:
            with _about(name):
                sampling = replace(sampling, **{_FILTERS[name]: value})
    if request.logit_bias is not None:
        bias = {
            int(token): value if value > _FORBIDDEN else float("-inf")
            for token, value in request.logit_bias.items()
        }
        with _about("logit_bias"):
            sampling = replace(sampling, logit_bias=bias)
        if bias and max(bias) >= size:
            raise _wrong("logit_bias", f"names token {max(bias)}: the vocabulary has {size}")
    return sampling


def _limits(
    request: GenerationRequest, name: str, defaults: Defaults, *, silent: bool = False
) -> GenerationLimits:
    """Return the limits.

    Args:
        name: of the field with the most tokens.
        silent: nothing is to be generated.
    """
    stop = request.stop or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    limits = replace(defaults.limits(), stop=tuple(filter(None, stops)))
    most = getattr(request, name)
    if silent or most == NO_LIMIT:
        limits = replace(limits, max_tokens=None)
    elif most is not None:
        with _about(name):
            limits = replace(limits, max_tokens=most)
    if request.edgespec is None or request.edgespec.allow_loops is None:
        return limits
    return replace(limits, allow_loops=request.edgespec.allow_loops)


def _most_proposals(engine: Engine, request: GenerationRequest) -> int | None:
    """Return how many proposals a cycle may have; None for as many as the server's."""
    wanted = request.edgespec
    if wanted is None:
        return None
    if wanted.draft == "none":
        return 0
    if wanted.draft not in (None, "auto", engine.drafter_name):
        raise _wrong(
            "edgespec.draft",
            f"is {wanted.draft[:80]!r}: it is none, auto or this server's {engine.drafter_name}",
        )
    if wanted.k is not None and not 0 <= wanted.k <= engine.largest_k:
        raise _wrong("edgespec.k", f"has to be between 0 and {engine.largest_k} on this server")
    return wanted.k


def _effort(engine: Engine, request: ChatRequest) -> dict[str, Any]:
    """Return the template's variables for ``reasoning_effort``."""
    effort = request.reasoning_effort
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise _wrong("reasoning_effort", f"is {effort[:80]!r}: it is one of {', '.join(_EFFORTS)}")

    known = any(map(engine.template.mentions, ("reasoning_effort", "enable_thinking")))
    if effort != "none" and not known:
        raise _wrong("reasoning_effort", "is not known to this model's chat template: leave it out")
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _constraint(request: GenerationRequest) -> str | None:
    """Return the name of the field that says what the answer has to obey.

    Raises:
        ApiError: there are two.
    """
    form = request.response_format
    given = {
        "response_format": isinstance(form, (ObjectFormat, SchemaFormat)),
        "json_schema": request.json_schema is not None,
        "grammar": bool(request.grammar),
    }
    names = [name for name, is_there in given.items() if is_there]
    if len(names) > 1:
        raise _wrong(names[1], f"and {names[0]} exclude each other: leave one out")
    return names[0] if names else None


def _grammar(engine: Engine, request: GenerationRequest, tools: ToolUse | None) -> str | None:
    name, form = _constraint(request), request.response_format
    if name is None:
        return tools.grammar if tools else None
    if name == "grammar":
        if tools:
            raise _wrong(
                name, "and tools exclude each other: leave one out, or set tool_choice to none"
            )
        return request.grammar
    schema = request.json_schema
    if isinstance(form, SchemaFormat):
        schema = form.json_schema.json_schema
    elif isinstance(form, ObjectFormat):
        schema = form.json_schema
    with _about(name):
        grammar = grammar_of_json() if schema is None else grammar_from_schema(json.dumps(schema))
    with _about("tools"):
        return call_or(engine.template, tools, grammar) if tools else grammar


def as_template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Convert messages for the chat template; the role "developer" was "system" before."""
    converted = []
    for message in messages:
        plain = message.model_dump(exclude_none=True)
        plain.setdefault("content", "")
        if message.role == "developer":
            plain["role"] = "system"
        converted.append(plain)
    return converted


def _tokens(engine: Engine, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        tokens: list[int] = engine.tokenize(prompt).tolist()
        return tokens
    if any(not 0 <= token < engine.vocabulary.size for token in prompt):
        raise UsageError(f"a token is not in the vocabulary of {engine.vocabulary.size}")
    return prompt


def _check_length(engine: Engine, count: int, param: str) -> None:
    """Refuse a prompt that leaves no room, in words that clients look for."""
    if count == 0:
        raise _wrong(param, "is empty: give it at least one token")
    if count >= engine.context_length:
        raise ApiError(
            400,
            f"{param} has {count} tokens, which exceeds the available context size of "
            f"{engine.context_length} tokens: shorten it, or start the server with a larger --ctx",
            param=param,
            code="context_length_exceeded",
        )


def _wrong(param: str, what: str) -> ApiError:
    return ApiError(400, f"{param} {what}", param=param)


@contextmanager
def _about(
    param: str, kinds: tuple[type[EdgespecError], ...] = (UsageError, GrammarError)
) -> Iterator[None]:
    """Name the field that an error is about, as the client wrote it."""
    try:
        yield
    except kinds as error:
        said = re.sub(rf"^({param}|[a-z-]+( window)?(?= is [-\d])) ", "", str(error))
        raise _wrong(param, said if said != str(error) else f"is wrong: {said}") from None
