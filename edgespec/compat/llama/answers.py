"""Answers as dictionaries of llama-cpp-python: OpenAI's shapes, filled in as it does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edgespec.backend import Vocabulary
from edgespec.compat.openai.responses import (
    ChatChunks,
    TextChunks,
    chat_completion,
    text_completion,
)
from edgespec.compat.openai.tools import ToolUse
from edgespec.runtime.stream import Result, Stream, TokenChunk

__all__ = ["CallAnswer", "ChatAnswer", "TextAnswer"]

Json = dict[str, Any]


@dataclass(frozen=True)
class _Answer:
    """The answer of one stream.

    Attributes:
        owner: of the engine; referred to here so that it stays open while the answer is read.
        stream: read by this answer alone.
        vocabulary: of the model.
        model: the name to show.
        logprobs: whether to include log-probabilities.
    """

    owner: object
    stream: Stream
    vocabulary: Vocabulary
    model: str
    logprobs: bool

    def _pieces(self) -> Iterator[TokenChunk]:
        """Yield pieces that have content; cancel the stream when nobody reads on."""
        ends = self.vocabulary.end_tokens
        try:
            for piece in self.stream:
                if piece.text or any(one.token not in ends for one in piece.logprobs):
                    yield piece
        finally:
            self.stream.cancel()

    def _usage(self, result: Result) -> Json:
        """Return the usage, without an end token."""
        ended = result.tokens[-1:] and result.tokens[-1] in self.vocabulary.end_tokens
        written = len(result.tokens) - bool(ended)
        return {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": result.prompt_tokens + written,
        }


@dataclass(frozen=True)
class TextAnswer(_Answer):
    """A completion.

    Attributes:
        prompt: its text; offsets of the answer count from its end.
        echo: whether the prompt comes first.
        echo_logprobs: of its tokens.
    """

    prompt: str = ""
    echo: bool = False
    echo_logprobs: Json | None = None

    def whole(self) -> Json:
        """Return the finished answer."""
        result = self.stream.result
        body = text_completion(
            result,
            self.vocabulary,
            logprobs=self.logprobs,
            echo=self.prompt if self.echo else "",
            echo_logprobs=self.echo_logprobs,
        )
        body = self._as_binding(body, f"cmpl-{uuid.uuid4()}")
        return {**body, "usage": self._usage(result)}

    def chunks(self) -> Iterator[Json]:
        """Return the answer while it is written."""
        name = f"cmpl-{uuid.uuid4()}"
        chunks = TextChunks(self.model, self.vocabulary, logprobs=self.logprobs)
        for piece in self._pieces():
            yield self._as_binding(chunks.piece(piece), name)
        for chunk in chunks.closing(self.stream.result):
            yield self._as_binding(chunk, name)

    def _as_binding(self, body: Json, name: str) -> Json:
        """Make offsets count the prompt, and list the token itself among the likely ones."""
        told = body["choices"][0]["logprobs"]
        if told is not None:
            shift = 0 if self.echo else len(self.prompt)
            told["text_offset"] = [shift + offset for offset in told["text_offset"]]
            likely = zip(told["top_logprobs"], told["tokens"], told["token_logprobs"], strict=True)
            for top, token, value in likely:
                if top is not None:
                    top.setdefault(token, value)
        return {**body, "id": name, "model": self.model}


@dataclass(frozen=True)
class ChatAnswer(_Answer):
    """The answer to a conversation.

    Attributes:
        tools: calls of these are looked for in the text.
        closing: ends the reasoning that the prompt has begun; None leaves reasoning in the text,
            as llama-cpp-python does.
    """

    tools: ToolUse | None = None
    closing: str | None = None

    @property
    def _reading(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs, "closing": self.closing}

    def whole(self) -> Json:
        """Return the finished answer."""
        result = self.stream.result
        body = chat_completion(result, self.vocabulary, self.tools, **self._reading)
        name = f"chatcmpl-{uuid.uuid4()}"
        return {**body, "id": name, "model": self.model, "usage": self._usage(result)}

    def chunks(self) -> Iterator[Json]:
        """Return the answer while it is written."""
        name = f"chatcmpl-{uuid.uuid4()}"
        chunks = ChatChunks(self.model, self.vocabulary, self.tools, **self._reading)
        for chunk in chunks.opening():
            chunk["choices"][0]["delta"] = {"role": "assistant"}
            yield {**chunk, "id": name}
        for piece in self._pieces():
            shown = chunks.piece(piece)
            if shown is not None:
                yield {**shown, "id": name}
        for chunk in chunks.closing(self.stream.result):
            yield {**chunk, "id": name}


@dataclass(frozen=True)
class CallAnswer(_Answer):
    """The arguments of a tool that has to be called, in the older form too.

    Attributes:
        tool: its name.
    """

    tool: str = ""

    def whole(self) -> Json:
        """Return the finished answer."""
        result = self.stream.result
        body = chat_completion(result, self.vocabulary, logprobs=self.logprobs, closing=None)
        name = f"chatcmpl-{uuid.uuid4()}"
        choice = body["choices"][0]
        choice["message"] = {"role": "assistant", "content": None, **self._call(name, result.text)}
        choice["finish_reason"] = "tool_calls"
        return {**body, "id": name, "model": self.model, "usage": self._usage(result)}

    def chunks(self) -> Iterator[Json]:
        """Return the answer while it is written."""
        name = f"chatcmpl-{uuid.uuid4()}"
        chunks = ChatChunks(self.model, self.vocabulary, logprobs=self.logprobs, closing=None)
        blank: Json = {"role": None, "content": None, "function_call": None, "tool_calls": None}
        for chunk in chunks.opening():
            chunk["choices"][0]["delta"] = {**blank, "role": "assistant"}
            yield {**chunk, "id": name}
        for piece in self._pieces():
            shown = chunks.piece(piece)
            if shown is not None:
                call = self._call(name, piece.text)
                call["tool_calls"][0]["index"] = 0
                shown["choices"][0]["delta"] = {**blank, **call}
                yield {**shown, "id": name}
        for chunk in chunks.closing(self.stream.result):
            chunk["choices"][0] |= {"delta": blank, "finish_reason": "tool_calls"}
            yield {**chunk, "id": name}

    def _call(self, name: str, arguments: str) -> Json:
        function = {"name": self.tool, "arguments": arguments}
        call = {"id": f"call__0_{self.tool}_{name}", "type": "function", "function": function}
        return {"function_call": function, "tool_calls": [call]}
