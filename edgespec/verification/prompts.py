"""Prompts for the checks: prose, code, lists, copying, several languages."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from edgespec._types import Int32Array
from edgespec.errors import TemplateError
from edgespec.runtime.engine import Engine

__all__ = ["Prompt", "make_prompts"]

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


class Prompt(NamedTuple):
    """A prompt: a name to report, and its tokens, int32 (n,)."""

    name: str
    tokens: Int32Array


def make_prompts(engine: Engine, longest: int) -> list[Prompt]:
    """Return the prompts as chat turns, or bare where the model has no usable template.

    Args:
        engine: whose tokenizer and template to use.
        longest: keep the last so many tokens of each.
    """
    return [Prompt(name, _tokens(engine, text)[-longest:]) for name, text in _TEXTS.items()]


def _tokens(engine: Engine, text: str) -> Int32Array:
    with contextlib.suppress(TemplateError):
        text = engine.template.render([{"role": "user", "content": text}])
    return engine.tokenize(text)
