"""What a grammar makes likely: the only token, the spelling, the usual choice."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Vocabulary
from edgespec.grammars import Foresight, Guide, Likely, grammar_from_regex, grammar_from_schema

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "address", "tags"],
}


class Reader:
    """A text along a grammar, and what is expected of it."""

    def __init__(self, vocabulary: Vocabulary, grammar: str) -> None:
        guide = Guide(vocabulary)
        self.vocabulary, self.matcher = vocabulary, guide.start(grammar)
        self.bits = np.zeros(guide.words, np.int32)
        self.foresight = Foresight(vocabulary)
        self.last = 0

    def expect(self) -> Likely | None:
        self.matcher.write_bits(self.bits)
        return self.foresight.expect(self.bits, self.matcher.forced_bytes(), self.last)

    def read(self, token: int) -> None:
        self.matcher.write_bits(self.bits)
        self.foresight.learn(self.bits, token)
        self.matcher.consume([token])
        self.last = token

    def right(self, text: str) -> list[str]:
        """Read a text in its usual tokens; which of them were expected."""
        found = []
        for token in self.vocabulary.tokenize(text, add_special=False).tolist():
            likely = self.expect()
            if likely is not None and likely.token == token:
                found.append(self.vocabulary.decode([token]))
            self.read(token)
        return found


def test_what_a_schema_leaves_open_is_all_that_is_not_expected(vocabulary: Vocabulary) -> None:
    reader = Reader(vocabulary, grammar_from_schema(json.dumps(SCHEMA)))
    text = '{ "name": "Bo", "address": { "city": "Aarhus" }, "tags": [ "a", "b" ] }'
    expected = reader.right(text)
    for part in ("name", '":', ' "', "address", " {", "city", "tags", " ["):
        assert part in expected
    assert "Bo" not in expected


def test_only_one_token_is_certain_and_more_are_not(vocabulary: Vocabulary) -> None:
    reader = Reader(vocabulary, grammar_from_regex("\x01ab"))  # no token has more of it
    likely = reader.expect()
    assert likely is not None
    assert vocabulary.piece(likely.token) == b"\x01"
    assert likely.probability == 1.0
    reader.read(likely.token)
    likely = reader.expect()  # "a", or "ab"
    assert likely is not None
    assert likely.probability < 1.0


@pytest.mark.parametrize("text", ["Hafen und Meer", "naïve café", "x = [1, 2]", "日本語"])
def test_forced_bytes_are_spelled_as_the_tokenizer_would(vocabulary: Vocabulary, text: str) -> None:
    quoted = "".join("\\" + c if c in "[]" else c for c in text)
    reader = Reader(vocabulary, grammar_from_regex(f"({quoted})|0"))
    tokens = vocabulary.tokenize(text, add_special=False).tolist()
    reader.read(tokens[0])
    for token in tokens[1:]:
        likely = reader.expect()
        assert likely is not None
        assert likely.token == token
        reader.read(token)


def test_a_choice_is_expected_again_and_doubted_when_it_fails(vocabulary: Vocabulary) -> None:
    reader = Reader(vocabulary, grammar_from_regex("([xy];)+"))
    x, y, end = (int(vocabulary.tokenize(c, add_special=False)[0]) for c in "xy;")
    chances: list[Any] = []
    for token in (x, x, x, x, x, y, x, y):
        likely = reader.expect()
        chances.append(likely.probability if likely and likely.token == x else None)
        reader.read(token)
        reader.read(end)
    # From the second on the text may end as well, so that another set of tokens is allowed.
    assert chances[:2] == [None, None]
    assert chances[2] < chances[3] < chances[4] < chances[5]
    assert chances[6] is None  # the last was y
    assert chances[7] < chances[5]
