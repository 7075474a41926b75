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


NESTED = "(" * 25 + '"a"?' + "{2})" * 25
DOUBLING = "\n".join(
    ['r0 ::= "a"?', *(f"r{i + 1} ::= r{i} r{i}" for i in range(30)), "root ::= r30"]
)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (f"root ::= {NESTED}", "ways"),
        (DOUBLING, "rule r11 .* ways"),
        ("\n".join(reversed(DOUBLING.splitlines())), "ways"),
        ('root ::= (((("a"{0,30}){0,30}){0,30}){0,30})', "ways"),
        ('root ::= ((("a"{1,30}){1,30}){1,30})', "ways"),
        (f'root ::= "{"a" * 20_000}"{{2000}}', "40000000 characters"),
        (f"root ::= {NESTED} ) syntax", "ways"),
    ],
)
def test_rules_that_would_fill_the_memory(vocabulary: Vocabulary, rules: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        Grammar(vocabulary, rules)


@pytest.mark.parametrize(
    "rules",
    [
        'root ::= ([0-9]{1,3} "."){3} [0-9]{1,3}',
        'root ::= "[" (item ("," item){0,300})? "]"\nitem ::= "\\"" [a-z]{0,200} "\\""',
        'root ::= [a-z]{0,2000} "x"?',
        'root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= "(" expr ")" | [0-9]+',
        'root ::= (" "? [a-z]+)* "."',
        'root ::= object\nvalue ::= object | "1"\nobject ::= "{" (value ("," value)*)? "}"',
    ],
)
def test_rules_that_people_write(vocabulary: Vocabulary, rules: str) -> None:
    Grammar(vocabulary, rules).close()


def test_who_is_dropped_is_freed(vocabulary: Vocabulary) -> None:
    grammar = Grammar(vocabulary, 'root ::= "x"')
    copy = grammar.clone()
    free = grammar._free, copy._free
    grammar.close()
    assert [one.alive for one in free] == [False, True]
    del copy
    gc.collect()
    assert not free[1].alive
