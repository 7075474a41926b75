"""What is wrong with GBNF, and who frees it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.backend import Grammar, Model, Vocabulary
from edgespec.errors import GrammarError


@pytest.fixture(scope="module")
def vocabulary(default_model: Path) -> Iterator[Vocabulary]:
    with Model(default_model) as model:
        yield model.vocabulary


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ('root ::= root "a" | "b"', "begins with itself"),
        ('root ::= a "x"\na ::= b\nb ::= a | ""', "begins with itself"),
        ('start ::= "a"', "no rule called root"),
        ('root ::= "a"\n  | "b', "line 2"),
    ],
)
def test_what_is_wrong_with_rules(vocabulary: Vocabulary, rules: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        Grammar(vocabulary, rules)


def test_who_is_dropped_is_freed(vocabulary: Vocabulary) -> None:
    grammar = Grammar(vocabulary, 'root ::= "x"')
    copy = grammar.clone()
    free = grammar._free, copy._free
    grammar.close()
    assert [one.alive for one in free] == [False, True]
    del copy
    gc.collect()
    assert not free[1].alive
