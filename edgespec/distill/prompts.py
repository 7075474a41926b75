"""What the target is asked: questions that it makes up itself, or the user's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgespec._types import Int32Array
from edgespec.backend import Vocabulary
from edgespec.distill.corpus import Corpus
from edgespec.errors import UsageError
from edgespec.templates import ChatTemplate

__all__ = ["FilePrompts", "Prompts", "SelfPrompts", "held_out"]


_MARK = "QUESTION-GOES-HERE"
_SHORTEST = 8  # characters
_EVERY, _HELD_OUT = 30, 3
_MOST_BYTES = 256 << 20


def held_out(number: int, prompts: int | None = None) -> bool:
    """Return whether answers to a prompt are held out: one in thirty, or the last of few."""
    if prompts is not None and prompts < _EVERY:
        return number % prompts == prompts - 1
    return number % _EVERY == _HELD_OUT


class Prompts(Protocol):
    """Prompts by number.

    Attributes:
        description: for the record.
    """

    description: str

    def opening(self, number: int) -> Int32Array | None:
        """Return what the target continues to make up this prompt; None if it need not."""

    def prompt(self, number: int, question: str) -> Int32Array | None:
        """Return the prompt in tokens; None if it is unusable.

        Args:
            question: what the target made up, if there is an opening.
        """

    def held_out(self, number: int) -> bool:
        """Return whether the answer is kept from training."""

    def remember(self, corpus: Corpus) -> None:
        """Note the prompts that were asked already."""


class SelfPrompts:
    """Prompts by the target: the user's part of its chat template; without a template, any text.

    Raises:
        UsageError: there is neither a chat template nor a token that begins a text.
        TemplateError: the template cannot be used.
    """

    description = "prompts and answers by the target itself"

    def __init__(self, template: ChatTemplate | None, vocabulary: Vocabulary) -> None:
        self._template, self._vocabulary = template, vocabulary
        self._seen: set[bytes] = set()
        if template is None:
            if vocabulary.bos is None:
                raise UsageError("this target has no chat template: give prompts with --data FILE")
            self._opening = np.array([vocabulary.bos], np.int32)
            return
        rendered = template.render([{"role": "user", "content": _MARK}])
        opening, mark, _ = rendered.partition(_MARK)
        if not mark:
            raise UsageError("this chat template changes what the user says: give --data FILE")
        self._opening = _tokens(vocabulary, opening)

    def opening(self, number: int) -> Int32Array | None:
        """Return the template up to the user's words."""
        return None if self._template is None else self._opening

    def prompt(self, number: int, question: str) -> Int32Array | None:
        """Return the whole turn; None if it is too short or was asked before."""
        if self._template is None:
            return self._opening
        question = question.strip()
        if len(question) < _SHORTEST:
            return None
        rendered = self._template.render([{"role": "user", "content": question}])
        tokens = _tokens(self._vocabulary, rendered)
        if tokens.tobytes() in self._seen:
            return None
        self._seen.add(tokens.tobytes())
        return tokens

    def held_out(self, number: int) -> bool:
        """Decide by number: no two prompts are the same."""
        return held_out(number)

    def remember(self, corpus: Corpus) -> None:
        """Do not ask them again: a held-out answer must not be trained on."""
        for conversation in corpus.conversations:
            prompt = corpus.rows("tokens", conversation)[: conversation.prompt]
            self._seen.add(prompt.tobytes())


class FilePrompts:
    """The user's prompts, asked again and again, in the order of the files.

    ``.txt``: prompts with blank lines between them. ``.jsonl``: one object per line with "prompt"
    or with "messages". ``.json``: a conversation that `edgespec chat` saved. Every message of the
    user's is a prompt, together with the messages before it.

    Raises:
        UsageError: a file cannot be read, or there is no prompt.
    """

    def __init__(
        self, files: Sequence[Path], template: ChatTemplate | None, vocabulary: Vocabulary
    ) -> None:
        self._vocabulary = vocabulary
        self._texts = [_rendered(messages, template) for file in files for messages in _read(file)]
        if not self._texts:
            raise UsageError(f"there is no prompt in {', '.join(str(f) for f in files)}")
        names = ", ".join(sorted({f.name for f in files}))
        self.description = f"answers by the target to {len(self._texts)} prompts ({names})"

    def opening(self, number: int) -> Int32Array | None:
        """Return None: the files have the prompts."""
        return None

    def prompt(self, number: int, question: str) -> Int32Array | None:
        """Return the prompt whose turn it is."""
        return _tokens(self._vocabulary, self._texts[number % len(self._texts)])

    def held_out(self, number: int) -> bool:
        """Decide by prompt, however often it is asked."""
        count = len(self._texts)
        return held_out(number % count, count) if count > 1 else held_out(number)

    def remember(self, corpus: Corpus) -> None:
        """Do nothing: these prompts are asked again and again."""


def _tokens(vocabulary: Vocabulary, text: str) -> Int32Array:
    tokens = vocabulary.tokenize(text, parse_special=True)
    if vocabulary.adds_bos and len(tokens) > 1 and tokens[0] == tokens[1] == vocabulary.bos:
        return tokens[1:]  # the chat template wrote it already
    return tokens


def _rendered(messages: Sequence[dict[str, Any]], template: ChatTemplate | None) -> str:
    if template is not None:
        return template.render(messages)
    return "\n\n".join(str(m.get("content") or "") for m in messages)


def _read(file: Path) -> list[list[dict[str, Any]]]:
    """Read conversations that end with the user's words."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{file} has more than {_MOST_BYTES >> 20} MiB: give a part of it")
        text = file.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"cannot read {file}: {reason}") from None
    if file.suffix == ".jsonl":
        lines = enumerate(text.splitlines(), 1)
        return [p for n, line in lines if line.strip() for p in _questions(line, f"{file}:{n}")]
    if file.suffix == ".json":
        return _questions(text, str(file))
    blocks = (block.strip() for block in text.replace("\r\n", "\n").split("\n\n"))
    return [[{"role": "user", "content": block}] for block in blocks if block]


def _questions(text: str, place: str) -> list[list[dict[str, Any]]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{place} is not JSON") from None
    if isinstance(data, dict) and isinstance(data.get("prompt"), str):
        return [[{"role": "user", "content": data["prompt"]}]]
    messages = data.get("messages") if isinstance(data, dict) else None
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise UsageError(f'{place} has neither a "prompt" nor "messages"')
    return [messages[: i + 1] for i, m in enumerate(messages) if m.get("role") == "user"]
