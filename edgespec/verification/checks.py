"""What every check has: a result, prompts, and answers and logits to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context
from edgespec.errors import TemplateError
from edgespec.grammars import grammar_from_schema
from edgespec.runtime.constraint import Constraint
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.runtime.engine import Engine
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.draws import DrawSettings

__all__ = [
    "CheckResult",
    "Progress",
    "Prompt",
    "decode",
    "make_prompts",
    "not_applicable",
    "plain_logits",
    "silent",
]

Progress = Callable[[str], None]
"""Called with a few words whenever a check begins its next part."""


def silent(words: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: one word.
        holds: False if the check failed. A check with nothing to do holds.
        summary: one line without a full stop: what was compared, and the outcome.
        figures: everything measured; goes into JSON as it is.
        details: further lines for a reader: what failed, and where.
        applies: False if there was nothing to check, for the reason in `summary`.
    """

    name: str
    holds: bool
    summary: str
    figures: dict[str, Any] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    applies: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the object of ``edgespec verify --json``."""
        return {
            "name": self.name,
            "holds": self.holds,
            "applies": self.applies,
            "summary": self.summary,
            "details": list(self.details),
            "figures": self.figures,
        }


def not_applicable(name: str, reason: str) -> CheckResult:
    """Return the result of a check that had nothing to do."""
    return CheckResult(name, holds=True, summary=reason, applies=False)


_TEXTS = {
    "prose": "Describe a fishing harbour before sunrise in four sentences.",
    "code": "Write a Python function that merges two sorted lists, and show how it is used.",
    "list": "List eight kitchen tools, one on each line, and say what each of them is for.",
    "copying": "Repeat four times: The ferry leaves at ten past seven from the eastern pier.",
    "editing": "Correct the spelling and change nothing else: The quik fox jumpd over the lasy "
    "dog, and than it ran home to eat it's diner.",
    "german": "Erkläre in drei Sätzen, warum Brot beim Backen aufgeht.",
    "chinese": "请用三句话介绍一条河流。",
    "spanish": "Escribe una receta corta de sopa de tomate.",
    "json": "Write three cities as JSON objects with the keys name, country and river.",
    "table": "Go on up to twelve: 7 x 1 = 7, 7 x 2 = 14, 7 x 3 = 21,",
}

_EXTRACT = (
    "Extract the facts as JSON: Jens Petersen, 51, lives at 4 Harbour Road in Aarhus. He can weld "
    "and sail."
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "address": {"type": "object", "properties": {"street": {"type": "string"}}},
        "skills": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "address", "skills"],
}

# -- prompts ------------------------------------------------------------------------------


class Prompt(NamedTuple):
    """A prompt: a name to report, its tokens, int32 (n,), and what makes its grammar if any."""

    name: str
    tokens: Int32Array
    constrain: Callable[[SamplingParameters], Constraint] | None = None


def make_prompts(engine: Engine, longest: int) -> list[Prompt]:
    """Return the prompts as chat turns, or bare where the model has no usable template.

    Args:
        engine: whose tokenizer and template to use.
        longest: keep the last so many tokens of each.
    """
    prompts = [Prompt(name, _tokens(engine, text)[-longest:]) for name, text in _TEXTS.items()]
    grammar = grammar_from_schema(_SCHEMA)
    tokens = _tokens(engine, _EXTRACT)[-longest:]
    return [*prompts, Prompt("schema", tokens, partial(engine.constrain, grammar))]


def _tokens(engine: Engine, text: str) -> Int32Array:
    with contextlib.suppress(TemplateError):
        text = engine.template.render([{"role": "user", "content": text}])
    return engine.tokenize(text)


# -- answers and logits -------------------------------------------------------------------


def decode(
    decoder: Decoder,
    prompt: Int32Array,
    settings: DrawSettings,
    count: int,
    end_tokens: Set[int] = frozenset(),
    constraint: Constraint | None = None,
) -> tuple[list[int], Statistics]:
    """Return up to `count` tokens after a prompt, an end token included, and statistics.

    The target's cache is emptied first.
    """
    decoder.target.clear()
    statistics = Statistics()
    decoder.begin(prompt, settings, statistics, constraint)
    tokens: list[int] = []
    while len(tokens) < count and end_tokens.isdisjoint(tokens):
        tokens += decoder.cycle(count - len(tokens)).tokens
    ends = [i for i, token in enumerate(tokens) if token in end_tokens]
    return tokens[: ends[0] + 1] if ends else tokens, statistics


def plain_logits(context: Context, prompt: Int32Array, answer: list[int]) -> Float32Array:
    """Return the logits after prompt and answer: float32 (n_vocab,), a view.

    They are computed as in plain decoding: all of the prompt but its last token is a prefill, the
    other tokens are evaluated one at a time.
    """
    context.clear()
    context.prefill(prompt[:-1])
    logits = context.evaluate(prompt[-1:], 1)
    for token in answer:
        logits = context.evaluate(np.array([token], np.int32), 1)
    row: Float32Array = logits[0]
    return row
