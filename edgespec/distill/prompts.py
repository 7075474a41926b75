"""What the target is asked: questions that it makes up itself, tasks, or the user's own prompts."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec._types import AnyArray, Int32Array
from edgespec.backend import Vocabulary
from edgespec.distill.corpus import Corpus
from edgespec.distill.tasks import Excerpt, Seen, excerpt_task, follow_up, free_task, system_prompt
from edgespec.errors import UsageError
from edgespec.templates import ChatTemplate

__all__ = ["FilePrompts", "Prompts", "SelfPrompts", "TaskPrompts", "held_out"]


_MARK = "QUESTION-GOES-HERE"
_SHORTEST = 8  # characters
_EVERY, _HELD_OUT = 30, 3
_MOST_BYTES = 256 << 20
_MADE_UP = 0.12  # share of the questions that the target makes up
_FURTHER, _ANSWERS, _DOCUMENTS = 0.16, 0.3, 0.55  # bounds of a chance
_TURNS = 512  # conversations that others can follow
_LONGEST_TURN = 1000  # characters of one that is followed


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

    def answered(self, number: int, answer: str) -> bool:
        """Note an answer; return False if it says what another one said, and is not worth keeping.

        Args:
            number: of a prompt that `prompt` returned.
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

    def answered(self, number: int, answer: str) -> bool:
        """Keep every answer."""
        return True

    def held_out(self, number: int) -> bool:
        """Decide by number: no two prompts are the same."""
        return held_out(number)

    def remember(self, corpus: Corpus) -> None:
        """Do not ask them again: a held-out answer must not be trained on."""
        for conversation in corpus.conversations:
            prompt = corpus.rows("tokens", conversation)[: conversation.prompt]
            self._seen.add(prompt.tobytes())


class _Turn(NamedTuple):
    """A conversation that ended with an answer."""

    messages: list[dict[str, Any]]
    answer: str


class TaskPrompts:
    """Tasks of many kinds, with and without system prompts, some of them after an earlier answer.

    They are about nothing given, about the user's documents, or about earlier answers. What is
    nearly the same as a task before, or has nearly the same answer, is dropped. Held-out tasks
    have documents and earlier answers of their own.

    Args:
        template: of the target.
        vocabulary: of the target.
        excerpts: of the user's documents, if there are any.
    """

    def __init__(
        self, template: ChatTemplate, vocabulary: Vocabulary, excerpts: Sequence[Excerpt] = ()
    ) -> None:
        self._own = SelfPrompts(template, vocabulary)
        self._template, self._vocabulary = template, vocabulary
        self._asked, self._answers = Seen(), Seen()
        self._excerpts = {
            held: [e for i, e in enumerate(excerpts) if held_out(i, len(excerpts)) == held]
            for held in (False, True)
        }
        self._turns: dict[bool, deque[_Turn]] = {h: deque(maxlen=_TURNS) for h in (False, True)}
        self._open: dict[int, list[dict[str, Any]]] = {}
        head = self._own.opening(0)
        self._head = "" if head is None else vocabulary.decode(head)
        pieces = f" and {len(excerpts):,} pieces of documents" if excerpts else ""
        self.description = f"answers by the target to tasks of many kinds{pieces}"

    def opening(self, number: int) -> Int32Array | None:
        """Return the template up to the user's words, for the share that the target makes up."""
        own = Random(number).random() < _MADE_UP
        return self._own.opening(number) if own else None

    def prompt(self, number: int, question: str) -> Int32Array | None:
        """Return a task whose kind depends on the number; None if there was one like it."""
        messages = [{"role": "user", "content": question.strip()}]
        if not question:
            messages = self._task(number)
        if len(messages[-1]["content"]) < _SHORTEST:
            return None
        tokens = _tokens(self._vocabulary, self._template.render(messages))
        if not self._asked.add(self._text(tokens)):
            return None
        self._open[number] = messages
        return tokens

    def _text(self, tokens: AnyArray) -> str:
        """Return a prompt without what the template puts before all of them."""
        return self._vocabulary.decode(tokens).removeprefix(self._head)

    def _task(self, number: int) -> list[dict[str, Any]]:
        random = Random(number)
        random.random()  # decided whether the target makes it up
        held, chance = self.held_out(number), random.random()
        turns, excerpts = self._turns[held], self._excerpts[held]
        if turns and chance < _FURTHER:
            turn = random.choice(turns)
            answered = {"role": "assistant", "content": turn.answer}
            return [*turn.messages, answered, {"role": "user", "content": follow_up(random)}]
        system = system_prompt(random)
        messages = [{"role": "system", "content": system}] if system else []
        if turns and chance < _ANSWERS:
            first, second = (_as_excerpt(random.choice(turns)) for _ in range(2))
            content = excerpt_task(first, second, random)
        elif excerpts and chance < _DOCUMENTS:
            content = excerpt_task(random.choice(excerpts), random.choice(excerpts), random)
        else:
            content = free_task(random)
        return [*messages, {"role": "user", "content": content}]

    def answered(self, number: int, answer: str) -> bool:
        """Drop what was said before; keep the rest, also for questions that follow it."""
        messages = self._open.pop(number)
        if not self._answers.add(answer):
            return False
        said = sum(len(m["content"]) for m in messages) + len(answer)
        if len(answer) > _SHORTEST and said < _LONGEST_TURN:
            self._turns[self.held_out(number)].append(_Turn(messages, answer))
        return True

    def held_out(self, number: int) -> bool:
        """Decide by number: no two prompts are the same."""
        return held_out(number)

    def remember(self, corpus: Corpus) -> None:
        """Do not ask them again: a held-out answer must not be trained on."""
        for conversation in corpus.conversations:
            tokens = corpus.rows("tokens", conversation)
            self._asked.add(self._text(tokens[: conversation.prompt]))
            self._answers.add(self._vocabulary.decode(tokens[conversation.prompt :]))


def _as_excerpt(turn: _Turn) -> Excerpt:
    before, fence, rest = turn.answer.partition("```")
    language, _, code = rest.partition("```")[0].partition("\n")
    if fence and code.strip():
        return Excerpt(code.strip("\n")[:_LONGEST_TURN], language.strip() or "text")
    return Excerpt(before.strip()[:_LONGEST_TURN], "")


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

    def answered(self, number: int, answer: str) -> bool:
        """Keep every answer: the prompts are asked again and again."""
        return True

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
