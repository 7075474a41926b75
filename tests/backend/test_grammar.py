"""What is wrong with GBNF, and who frees it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
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


BOMBS = {
    "optional groups that double": f"root ::= {NESTED}",
    "rules that double": DOUBLING,
    "in another order": "\n".join(reversed(DOUBLING.splitlines())),
    "repetitions of repetitions": 'root ::= (((("a"{0,30}){0,30}){0,30}){0,30})',
    "that are not empty": 'root ::= ((("a"{1,30}){1,30}){1,30})',
    "a long text, repeated": f'root ::= "{"a" * 20_000}"{{2000}}',
    "two ways at each step": 'root ::= "a" root "b"? | "a" root | ""',
    "three at each step": 'root ::= "a" root | "a" root root | ""',
    "many optional parts": "root ::= " + '"a"? ' * 3000,
}


@pytest.mark.parametrize("rules", BOMBS.values(), ids=BOMBS)
def test_rules_that_would_fill_the_memory(vocabulary: Vocabulary, rules: str) -> None:
    """Each is followed, or ends within limits of time and memory, in one line."""
    (token,) = vocabulary.tokenize("a", add_special=False)
    everything = np.arange(vocabulary.size, dtype=np.int32)
    mine = psutil.Process().memory_info().rss
    began = time.monotonic()
    try:
        with Grammar(vocabulary, rules) as grammar:
            for _ in range(40):
                grammar.accept(int(token))
            grammar.allowed(everything)
    except GrammarError as error:
        assert "\n" not in str(error)
    assert time.monotonic() - began < 40
    assert psutil.Process().memory_info().rss - mine < 100 << 20


def test_one_bomb_does_not_disturb_others(vocabulary: Vocabulary) -> None:
    with Grammar(vocabulary, 'root ::= "xyz"') as grammar:
        with (
            pytest.raises(GrammarError, match="takes"),
            Grammar(vocabulary, BOMBS["rules that double"]),
        ):
            pass
        assert grammar.allows(int(vocabulary.tokenize("x", add_special=False)[0]))


def test_no_process_is_left(default_model: Path) -> None:
    before = set(psutil.Process().children())
    with Model(default_model) as model:
        grammar = Grammar(model.vocabulary, 'root ::= "x"')
        (process,) = set(psutil.Process().children()) - before
        again = Grammar(model.vocabulary, 'root ::= "x"')
        assert set(psutil.Process().children()) - before == {process}
        grammar.close(), again.close()
        del grammar, again
    gc.collect()
    assert not process.is_running()


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
