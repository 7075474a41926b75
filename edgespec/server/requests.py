"""Requests: what a client may ask for.

Fields that are not here are ignored, wrong types refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from edgespec.compat.openai.responses_api import as_chat_choice, as_chat_tools, as_messages
from edgespec.errors import UsageError
from edgespec.server.errors import ApiError, wrong_field
from edgespec.templates import check_names

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerationRequest",
    "ResponseFormat",
    "ResponseRequest",
    "TemplateRequest",
    "TokenizeRequest",
    "in_items",
]

_MOST_MESSAGES = 2048
_MOST_STOPS = 16
_MOST_TOOLS = 128
_MOST_LIKELY = 20

_MOST_ANSWERS = 16
_MOST_PROMPTS = 64
_MOST_TEXTS = 2048
_MOST_TOKENS = 1 << 20
_MOST_BIASES = 1 << 19

Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is judged up to its first error: a body of wrong items may have millions."""

Tokens = Annotated[Items[int], Field(max_length=_MOST_TOKENS)]
StopString = Annotated[str, Field(max_length=1000)]


def _judge_bias(value: Any) -> Any:
    """Refuse the first entry that is wrong, for the same reason."""
    if not isinstance(value, dict):
        return value
    if len(value) > _MOST_BIASES:
        raise PydanticCustomError("too_long", f"has more than {_MOST_BIASES} entries")
    for token, number in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= _DIGITS):
            raise PydanticCustomError(
                "bias_token", "has {token}, which is no token id", {"token": repr(token[:40])}
            )
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise PydanticCustomError(
                "bias_type", "of token {token} is no number", {"token": token}
            )
    return value


_DIGITS = 9
Bias = Annotated[dict[str, float], BeforeValidator(_judge_bias)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class StreamOptions(_Shape):
    """What a stream contains besides the answer."""

    include_usage: bool = False
    """End with a chunk that has `usage` and no choices."""


class EdgespecOptions(_Shape):
    """Options that only this server has."""

    origins: bool = False
    """Chunks of a stream tell where their token came from, and the share of proposals accepted
    so far: `{"edgespec": {"origin": "accepted" | "corrected" | "bonus" | "plain",
    "token": id, "acceptance_rate": share or null}}`."""
    draft: str | None = None
    """`none` decodes this answer without speculation; `auto` is what the server does."""
    k: int | None = None
    """The most proposals of a cycle, up to the server's own limit."""
    allow_loops: bool | None = None
    """Whether the answer goes on where it only repeats itself; without it, as the server does."""


class TextFormat(_Shape):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(_Shape):
    """A JSON object, which a schema may describe."""

    type: Literal["json_object"]
    json_schema: dict[str, Any] | None = Field(None, alias="schema")


class NamedSchema(_Shape):
    """A JSON Schema; its name is ignored, and it is always enforced strictly."""

    json_schema: dict[str, Any] = Field(alias="schema")


class SchemaFormat(_Shape):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class GenerationRequest(_Shape):
    """What chat and plain completions have in common."""

    model: str | None = None
    """Ignored: the server has one model."""
    stream: bool | None = None
    """Send the answer as server-sent events while it is written."""
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    """Most tokens of the answer; -1: until the context is full; without it, the server's limit."""
    stop: StopString | Annotated[Items[StopString], Field(max_length=_MOST_STOPS)] | None = None
    """The answer ends before the first of these; empty ones are ignored."""
    seed: int | None = None
    """0 to 2**64 - 1; without it, the server's seed or a random one; -1 is a random one."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    """How many recent tokens the penalties see; -1 is the whole context."""
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: Bias | None = None
    """Token id -> number added to its logit; -100 or less forbids the token."""
    n: Annotated[int, Field(ge=1, le=_MOST_ANSWERS)] | None = None
    """How many answers; each has the next seed."""
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = None
    """A JSON Schema that the answer obeys, as with `response_format`."""
    grammar: str | None = None
    """Rules in GBNF that the answer obeys."""
    edgespec: EdgespecOptions | None = None


class TextPart(_Shape):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(_Shape):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[TextPart] | None = None
    name: str | None = None
    tool_calls: Annotated[Items[dict[str, Any]], Field(max_length=_MOST_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """What the model thought before it answered, as its answers have it."""
    reasoning: str | None = None
    """Another name of that."""


class Conversation(_Shape):
    """What the chat template gets."""

    messages: Annotated[Items[Message], Field(min_length=1, max_length=_MOST_MESSAGES)]
    tools: Annotated[Items[dict[str, Any]], Field(max_length=_MOST_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """More variables for the model's chat template, e.g. `enable_thinking`."""
    add_generation_prompt: bool | None = None
    """End the prompt with the opening of the assistant's answer, which is the default."""
    continue_final_message: bool | None = None
    """Continue the last message, which is the assistant's, instead of answering it."""

    def rendering(self) -> dict[str, Any]:
        """Return what the chat template gets besides messages and tools.

        Raises:
            UsageError: a variable has a name that is taken, or two fields exclude each other.
        """
        variables = self.chat_template_kwargs or {}
        check_names(variables)
        if self.continue_final_message and self.add_generation_prompt:
            raise UsageError(
                "continue_final_message and add_generation_prompt exclude each other: leave one out"
            )
        return {
            **variables,
            "add_generation_prompt": self.add_generation_prompt is not False,
            "continue_final_message": bool(self.continue_final_message),
        }


class ChatRequest(Conversation, GenerationRequest):
    """The body of a request for a chat completion."""

    max_completion_tokens: int | None = None
    """Takes precedence over `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_LIKELY)] | None = None
    reasoning_effort: str | None = None
    """For chat templates that know it, or that can switch thinking off (`none`)."""
    tool_choice: str | dict[str, Any] | None = None
    """`none`, `auto`, `required`, or a tool by its name."""


class CompletionRequest(GenerationRequest):
    """The body of a request for a completion: no chat template is applied."""

    prompt: str | Annotated[Items[str] | Tokens | Items[Tokens], Field(min_length=1)]
    """Texts, or token ids of texts; each is answered."""
    logprobs: Annotated[int, Field(ge=0, le=_MOST_LIKELY)] | None = None
    """Return the log-probability of each token and of so many alternatives."""
    echo: bool | None = None
    """Begin with the prompt, and with its log-probabilities."""
    suffix: str | None = None
    """The text behind a gap that the answer fills, for models that can."""

    def prompts(self) -> list[str | list[int]]:
        """Return them one by one.

        Raises:
            ApiError: there are too many.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [one for one in self.prompt if isinstance(one, int)]
        found: list[str | list[int]] = [one for one in self.prompt if not isinstance(one, int)]
        if len(found) > _MOST_PROMPTS:
            message = f"prompt: there are {len(found)} prompts: {_MOST_PROMPTS} are the most"
            raise ApiError(400, message, param="prompt")
        return found or [tokens]


class ResponseText(_Shape):
    """How the text of a response has to look."""

    format: dict[str, Any] | None = None
    """`{"type": "text"}`, `json_object`, or `json_schema` with a `schema`."""


class ResponseReasoning(_Shape):
    """How much the model is to think."""

    effort: str | None = None


class ResponseRequest(GenerationRequest):
    """The body of a request for a response: a conversation in items. Nothing is stored."""

    input: str | Annotated[Items[dict[str, Any]], Field(min_length=1, max_length=_MOST_MESSAGES)]
    """A user's message, or messages, calls of functions and their outputs."""
    instructions: str | None = None
    """A system message before them."""
    max_output_tokens: int | None = None
    tools: Annotated[Items[dict[str, Any]], Field(max_length=_MOST_TOOLS)] | None = None
    """Functions."""
    tool_choice: str | dict[str, Any] | None = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    metadata: dict[str, Any] | None = None
    """Returned as it is."""
    n: Literal[1] | None = None
    previous_response_id: None = None
    """Not supported: responses are not stored."""
    conversation: None = None
    """Not supported: conversations are not stored."""
    prompt: None = None
    """Not supported: prompts are not stored."""
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None

    def as_chat(self) -> ChatRequest:
        """Return it as a request for a chat completion.

        Raises:
            ApiError: it has what that has not.
        """
        shared = GenerationRequest.model_fields.keys() - {"response_format", "n"}
        asked: dict[str, Any] = {name: getattr(self, name) for name in shared}
        try:
            asked["messages"] = as_messages(self.input, self.instructions)
        except UsageError as error:
            raise ApiError(400, f"input: {error}", param="input") from None
        try:
            asked["tools"] = as_chat_tools(self.tools) if self.tools else None
        except UsageError as error:
            raise ApiError(400, f"tools: {error}", param="tools") from None
        asked["tool_choice"] = as_chat_choice(self.tool_choice)
        asked["max_completion_tokens"] = self.max_output_tokens
        asked["reasoning_effort"] = self.reasoning.effort if self.reasoning else None
        form = self.text.format if self.text else None
        if form and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
        asked["response_format"] = form or self.response_format
        try:
            return ChatRequest.model_validate(asked)
        except ValidationError as error:
            raise in_items(wrong_field(asked, error)) from None

    def facts(self) -> dict[str, Any]:
        """Return what a response repeats of its request."""
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None},
            "store": False,
            "temperature": self.temperature,
            "text": {"format": (self.text and self.text.format) or {"type": "text"}},
            "tool_choice": self.tool_choice or "auto",
            "tools": self.tools or [],
            "top_p": self.top_p,
            "truncation": "disabled",
        }


_IN_ITEMS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}


def in_items(error: ApiError) -> ApiError:
    """Name the field of an error as a `ResponseRequest` has it."""
    told = error.body["error"]
    field, _, rest = (told["param"] or "").partition(".")
    if field in _IN_ITEMS:
        renamed = _IN_ITEMS[field]
        told["param"] = f"{renamed}.{rest}" if rest else renamed
        told["message"] = told["message"].replace(field, renamed, 1)
    return error


class EmbeddingRequest(_Shape):
    """The body of a request for embeddings."""

    model: str | None = None
    """Ignored: the server has one model."""
    input: str | Annotated[Items[str] | Tokens | Items[Tokens], Field(min_length=1)]
    """Texts, or token ids of texts."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Only the first numbers of each vector, with length 1 again: for models trained for that."""

    def texts(self) -> list[str | list[int]]:
        """Return them one by one.

        Raises:
            ApiError: there are too many.
        """
        if isinstance(self.input, str):
            return [self.input]
        if len(self.input) > _MOST_TEXTS and not isinstance(self.input[0], int):
            message = f"input: there are {len(self.input)} texts: {_MOST_TEXTS} are the most"
            raise ApiError(400, message, param="input")
        tokens = [one for one in self.input if isinstance(one, int)]
        return [tokens] if tokens else [one for one in self.input if not isinstance(one, int)]


class TokenizeRequest(_Shape):
    """A text to split into tokens."""

    content: str
    add_special: bool = False
    """Begin with the token that texts begin with, if this model's do."""
    parse_special: bool = True
    """Read `<|im_end|>` and the like as control tokens."""
    with_pieces: bool = False
    """Tell the text of each token, or its bytes where they are no whole character."""


class DetokenizeRequest(_Shape):
    """Tokens to join to a text."""

    tokens: Tokens


class TemplateRequest(Conversation):
    """A conversation to render as the model sees it."""
