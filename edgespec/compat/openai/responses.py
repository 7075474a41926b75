"""Answers as the objects that OpenAI's interface describes: whole, in chunks, and as vectors."""

from __future__ import annotations

import base64
import codecs
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Vocabulary
from edgespec.compat.openai.calls import (
    Arguments,
    CallBegin,
    CallReader,
    Event,
    Text,
    Thought,
    call_id,
    read_answer,
)
from edgespec.compat.openai.tools import NO_TOOLS, ToolUse
from edgespec.runtime.cycle import TokenLogprobs
from edgespec.runtime.embedding import Embedding
from edgespec.runtime.stream import Result, TokenChunk

__all__ = [
    "ChatChunks",
    "ChatLogprobs",
    "Chunks",
    "TextChunks",
    "TextLogprobs",
    "chat_completion",
    "embedding_list",
    "figures",
    "shortened",
    "text_completion",
    "total_usage",
    "usage",
]

_LEAST = -9999.0
"""Stands for minus infinity, which JSON lacks; OpenAI's interface does the same."""


class ChatLogprobs:
    """``logprobs`` of a chat answer. An end token is not part of the answer and is left out.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def of(self, likely: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the object for the next tokens of the answer."""
        content = [
            {
                **self._entry(one.token, one.logprob),
                "top_logprobs": [self._entry(token, value) for token, value in one.top],
            }
            for one in likely
            if one.token not in self._vocabulary.end_tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._vocabulary.piece(token, special=True)
        return {"token": _text(data), "logprob": max(logprob, _LEAST), "bytes": list(data)}


class TextLogprobs:
    """``logprobs`` of a completion; counts the characters of its text.

    Args:
        vocabulary: of the model.
        offset: number of characters before the answer.
    """

    def __init__(self, vocabulary: Vocabulary, offset: int = 0) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = offset

    def of(self, likely: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the object for the next tokens of the answer."""
        kept = [one for one in likely if one.token not in self._vocabulary.end_tokens]
        return self._told(kept)

    def prompt(
        self, tokens: Sequence[int] | Int32Array, likely: Sequence[TokenLogprobs]
    ) -> dict[str, Any]:
        """Return the object for a prompt that the text begins with.

        Args:
            tokens: of the prompt; one that only marks the beginning of a text is left out.
            likely: of all but the first of them. The first has none, which is null.
        """
        first = int(tokens[0])
        start = self._advance(first)
        told = self._told(likely)
        if first == self._vocabulary.bos:
            return told
        before = {
            "tokens": self._token(first),
            "token_logprobs": None,
            "top_logprobs": None,
            "text_offset": start,
        }
        return {name: [before[name], *values] for name, values in told.items()}

    def _told(self, kept: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {
            "tokens": [self._token(one.token) for one in kept],
            "token_logprobs": [max(one.logprob, _LEAST) for one in kept],
            "top_logprobs": [
                {self._token(token): max(value, _LEAST) for token, value in one.top} for one in kept
            ],
            "text_offset": [self._advance(one.token) for one in kept],
        }

    def _token(self, token: int) -> str:
        return _text(self._vocabulary.piece(token, special=True))

    def _advance(self, token: int) -> int:
        before = self._offset
        self._offset += len(self._decoder.decode(self._vocabulary.piece(token)))
        return before


def _text(data: bytes) -> str:
    """Return a token's text; bytes of an unfinished character as escapes, so that they differ."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


Json = dict[str, Any]


def chat_completion(
    result: Result,
    vocabulary: Vocabulary,
    tools: ToolUse | None = None,
    *,
    logprobs: bool = False,
    closing: str | None = "",
) -> Json:
    """Return the ``chat.completion`` object of a finished answer.

    Args:
        result: has log-probabilities if they are wanted.
        vocabulary: of the model.
        tools: calls of these are looked for in the text.
        logprobs: whether to include log-probabilities.
        closing: ends the reasoning that the prompt has begun, empty if it has begun none; None
            leaves reasoning in the text.
    """
    text, reasoning, calls = read_answer(result.text, _reader(tools, closing))
    message: Json = {"role": "assistant", "content": text if text or not calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [call.as_json() for call in calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": ChatLogprobs(vocabulary).of(result.logprobs) if logprobs else None,
        "finish_reason": _finish_reason(result, called=bool(calls)),
    }
    body = _head("chatcmpl", "chat.completion", result.model)
    return {**body, "choices": [choice], "usage": usage(result)}


def text_completion(
    result: Result,
    vocabulary: Vocabulary,
    *,
    logprobs: bool = False,
    echo: str = "",
    echo_logprobs: Json | None = None,
) -> Json:
    """Return the ``text_completion`` object of a finished answer.

    Args:
        result: has log-probabilities if they are wanted.
        vocabulary: of the model.
        logprobs: whether to include log-probabilities.
        echo: the prompt, if the text should begin with it.
        echo_logprobs: of its tokens, as `TextLogprobs.prompt` returns them.
    """
    likely = None
    if logprobs:
        likely = TextLogprobs(vocabulary, len(echo)).of(result.logprobs)
        if echo_logprobs:
            likely = {name: [*echo_logprobs[name], *told] for name, told in likely.items()}
    choice = {
        "index": 0,
        "text": echo + result.text,
        "logprobs": likely,
        "finish_reason": _finish_reason(result),
    }
    body = _head("cmpl", "text_completion", result.model)
    return {**body, "choices": [choice], "usage": usage(result)}


def _reader(tools: ToolUse | None, closing: str | None) -> CallReader:
    use = tools or NO_TOOLS
    return CallReader(use.schemas or use.names, use.marks, closing)


def usage(result: Result) -> Json:
    """Return the ``usage`` object: tokens of prompt and answer, and those found in a cache."""
    return total_usage([result], 1)


def total_usage(results: Sequence[Result], n: int) -> Json:
    """Return the ``usage`` of several answers, `n` to each prompt; a prompt counts once."""
    written = sum(len(result.tokens) for result in results)
    prompts = sum(result.prompt_tokens for result in results[::n])
    cached = sum(result.statistics.reused_tokens for result in results[::n])
    return {
        "prompt_tokens": prompts,
        "completion_tokens": written,
        "total_tokens": prompts + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def figures(result: Result) -> Json:
    """Return what edgespec adds: its own finish reason, timings in seconds, speculation."""
    known = result.as_json()
    names = ("finish_reason", "drafter", "timings", "speculation")
    plain = result.statistics.plain_tokens_per_second
    return {**{name: known[name] for name in names}, "plain_tokens_per_second": plain}


class Chunks(Protocol):
    """The chunks of one streamed answer, in this order: `opening`, `piece`, `closing`, `usage`."""

    def opening(self) -> list[Json]:
        """Return the chunks before the first piece."""

    def piece(self, piece: TokenChunk) -> Json | None:
        """Return the chunk of a piece; None while its text may be a tool call and is held back."""

    def closing(self, result: Result) -> list[Json]:
        """Return what was held back, then the chunk with the finish reason."""

    def usage(self, result: Result) -> Json:
        """Return the chunk without choices."""


class ChatChunks:
    """``chat.completion.chunk`` objects; see `Chunks`.

    Args:
        model: its name.
        vocabulary: of the model.
        tools: calls of these are looked for in the text.
        logprobs: whether to include log-probabilities.
        closing: as for `chat_completion`.
    """

    def __init__(
        self,
        model: str,
        vocabulary: Vocabulary,
        tools: ToolUse | None = None,
        *,
        logprobs: bool = False,
        closing: str | None = "",
    ) -> None:
        self._head = _head("chatcmpl", "chat.completion.chunk", model)
        self._reader = _reader(tools, closing)
        self._called = False
        self._likely = ChatLogprobs(vocabulary) if logprobs else None
        self._untold: Json | None = None  # log-probabilities of text that is held back

    def opening(self) -> list[Json]:
        """Return one chunk, with the role."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def piece(self, piece: TokenChunk) -> Json | None:
        """Return a chunk with the text, the reasoning and the calls that are certain now."""
        if self._likely and piece.logprobs:
            told = self._likely.of(piece.logprobs)
            if self._untold:
                told["content"] = self._untold["content"] + told["content"]
            self._untold = told
        delta = self._delta(self._reader.feed(piece.text))
        if not delta:
            return None
        likely, self._untold = self._untold, None
        return self._chunk(delta, likely)

    def closing(self, result: Result) -> list[Json]:
        """Return what was held back, and the finish reason: a chunk each."""
        delta = self._delta(self._reader.finish())
        chunks = []
        if delta or self._untold:
            chunks.append(self._chunk(delta or {"content": ""}, self._untold))
        return [*chunks, self._chunk({}, reason=_finish_reason(result, called=self._called))]

    def usage(self, result: Result) -> Json:
        """Return the chunk without choices."""
        return {**self._head, "choices": [], "usage": usage(result)}

    def _delta(self, events: list[Event]) -> Json:
        """Return what the client adds to the message. What broke off stays as it was sent."""
        delta: Json = {}
        calls: dict[int, Json] = {}
        for event in events:
            if isinstance(event, Text):
                delta["content"] = delta.get("content", "") + event.text
            elif isinstance(event, Thought):
                delta["reasoning_content"] = delta.get("reasoning_content", "") + event.text
            elif isinstance(event, CallBegin):
                function = {"name": event.name, "arguments": ""}
                calls[event.number] = {"id": call_id(), "type": "function", "function": function}
                self._called = True
            elif isinstance(event, Arguments):
                call = calls.setdefault(event.number, {"function": {"arguments": ""}})
                call["function"]["arguments"] += event.text
        if calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in calls.items()]
        return delta

    def _chunk(self, delta: Json, likely: Json | None = None, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": likely, "finish_reason": reason}
        return {**self._head, "choices": [choice]}


class TextChunks:
    """``text_completion`` objects of a streamed completion; see `Chunks`.

    Args:
        model: its name.
        vocabulary: of the model.
        logprobs: whether to include log-probabilities.
        echo: the prompt, if it should come first.
        echo_logprobs: of its tokens, as `TextLogprobs.prompt` returns them.
    """

    def __init__(
        self,
        model: str,
        vocabulary: Vocabulary,
        *,
        logprobs: bool = False,
        echo: str = "",
        echo_logprobs: Json | None = None,
    ) -> None:
        self._head = _head("cmpl", "text_completion", model)
        self._echo, self._echo_logprobs = echo, echo_logprobs
        self._likely = TextLogprobs(vocabulary, len(echo)) if logprobs else None

    def opening(self) -> list[Json]:
        """Return the prompt, if it is wanted."""
        return [self._chunk(self._echo, self._echo_logprobs)] if self._echo else []

    def piece(self, piece: TokenChunk) -> Json:
        """Return a chunk with the piece's text."""
        told = piece.logprobs and self._likely
        return self._chunk(piece.text, told.of(piece.logprobs) if told else None)

    def closing(self, result: Result) -> list[Json]:
        """Return the chunk with the finish reason."""
        return [self._chunk("", reason=_finish_reason(result))]

    def usage(self, result: Result) -> Json:
        """Return the chunk without choices."""
        return {**self._head, "choices": [], "usage": usage(result)}

    def _chunk(self, text: str, likely: Json | None = None, reason: str | None = None) -> Json:
        choice = {"index": 0, "text": text, "logprobs": likely, "finish_reason": reason}
        return {**self._head, "choices": [choice]}


def _head(prefix: str, kind: str, model: str) -> Json:
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def _finish_reason(
    result: Result, *, called: bool = False
) -> Literal["stop", "length", "tool_calls"]:
    """Return the finish reason: "length" also for a full context and a cancelled answer."""
    if result.finish_reason != "stop":
        return "length"
    return "tool_calls" if called else "stop"


Encoding = Literal["float", "base64"]


def embedding_list(
    found: Sequence[Embedding], model: str, encoding: Encoding = "float"
) -> dict[str, Any]:
    """Return the ``list`` of embeddings.

    Args:
        found: the vectors, in the order of the texts.
        model: its name, to tell.
        encoding: numbers, or the bytes of 32-bit ones (little-endian) in Base64.
    """
    tokens = sum(one.tokens for one in found)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _written(one.vector, encoding)}
            for index, one in enumerate(found)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def shortened(found: Embedding, dimensions: int) -> Embedding:
    """Return the vector's first numbers, with length 1 again."""
    kept = found.vector[:dimensions]
    length = float(np.linalg.norm(kept))
    return Embedding(kept / np.float32(length) if length else kept, found.tokens)


def _written(vector: Float32Array, encoding: Encoding) -> str | list[Any]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[Any] = vector.tolist()
    return numbers
