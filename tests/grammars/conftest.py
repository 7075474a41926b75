"""Texts judged by a grammar, and texts drawn from it, without a model's weights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgespec._types import BoolArray
from edgespec.backend import Model, Vocabulary
from edgespec.grammars import Guide, Matcher


class Judge:
    """Follows grammars over a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.guide = vocabulary, Guide(vocabulary)
        self.row = np.zeros(self.guide.words, np.int32)
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        marks = (b'"', b"}", b"]", b",")
        self.closing = np.array([piece.startswith(marks) for piece in pieces])
        self.ends = np.isin(np.arange(vocabulary.size), list(vocabulary.end_tokens))

    def mask(self, matcher: Matcher) -> BoolArray:
        matcher.write_bits(self.row)
        bits = np.unpackbits(self.row.view(np.uint8), bitorder="little")
        return bits[: self.vocabulary.size].view(np.bool_)

    def allowed(self, matcher: Matcher) -> list[int]:
        return np.flatnonzero(self.mask(matcher)).tolist()

    def tokens(self, text: str) -> list[int]:
        return self.vocabulary.tokenize(text, add_special=False).tolist()

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether the text is one that the grammar describes, from beginning to end."""
        matcher, tokens = self.guide.start(grammar), self.tokens(text)
        if matcher.allowed_prefix(tokens) < len(tokens):
            return False
        matcher.consume(tokens)
        return bool(self.vocabulary.end_tokens & set(self.allowed(matcher)))

    def draw(self, grammar: str, seed: int, most: int = 100) -> str | None:
        """Draw allowed tokens until an end; None if there is none within `most`."""
        matcher, luck = self.guide.start(grammar), random.Random(seed)
        drawn: list[int] = []
        while len(drawn) < most:
            mask = self.mask(matcher)
            text = np.flatnonzero(mask & ~self.ends)
            may_end = bool((mask & self.ends).any())
            if may_end and (len(text) == 0 or luck.random() < 0.3 + len(drawn) / 60):
                return b"".join(map(self.vocabulary.piece, drawn)).decode()
            closing = np.flatnonzero(mask & self.closing)
            if len(closing) and luck.random() < len(drawn) / 30:
                text = closing
            drawn.append(int(text[luck.randrange(len(text))]))
            matcher.consume(drawn[-1:])
        return None


@pytest.fixture(scope="session")
def judge(default_model: Path) -> Iterator[Judge]:
    with Model(default_model) as model:
        yield Judge(model.vocabulary)


@pytest.fixture(scope="session")
def vocabulary(judge: Judge) -> Vocabulary:
    return judge.vocabulary
