"""Log-probabilities in OpenAI's two shapes: the one of chat, and the older one of completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.runtime.logprobs import TokenLogprobs

__all__ = ["ChatLogprobs", "TextLogprobs"]

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
        """The object for the next tokens of the answer."""
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
        """The object for the next tokens of the answer."""
        kept = [one for one in likely if one.token not in self._vocabulary.end_tokens]
        return self._told(kept)

    def prompt(
        self, tokens: Sequence[int] | Int32Array, likely: Sequence[TokenLogprobs]
    ) -> dict[str, Any]:
        """The object for a prompt that the text begins with.

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
