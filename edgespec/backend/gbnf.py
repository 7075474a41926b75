"""GBNF before it is compiled: how far it would expand in llama.cpp's engine, which has no limits.

The engine keeps every way in which a text may have been read so far, and forgets none that ends
at the same place. What may be left out, several times over, multiplies these ways, and so does a
repetition whose parts are repetitions. Both are counted here without being expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from edgespec.errors import GrammarError

__all__ = ["check_expansion"]

_MOST_WAYS = 2000
_MOST_ELEMENTS = 1_000_000
_CAP = 10**12
_PASSES = 8  # more only for rules that refer to each other in circles
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<rule>[A-Za-z0-9_-]+\s*::=)
      | (?P<name>[A-Za-z0-9_-]+)
      | (?P<literal>"(?:\\.|[^"\\])*")
      | (?P<one>\[(?:\\.|[^\]\\])*\]|\.|!?<[^>\n]*>)
      | (?P<count>\{\s*\d*\s*,?\s*\d*\s*\}|[?*+])
      | (?P<sign>[()|])""",
    re.VERBOSE | re.DOTALL,
)


@dataclass
class _Node:
    """A choice of sequences, repeated.

    Attributes:
        choices: sequences of nodes; a leaf has none.
        least, most: how often it comes; a most of 1 stands for any number that the engine makes a
            loop of.
        name: of a rule that it stands for.
        characters: of a leaf.
        counted: whether a count stands behind it.
    """

    choices: list[list[_Node]] = field(default_factory=list)
    least: int = 1
    most: int = 1
    name: str | None = None
    characters: int = 0
    counted: bool = False


@dataclass
class _Size:
    """What a node may come to.

    Attributes:
        empty: it may stand for no text.
        ways: to begin reading it.
        mixed: the ways inside repetitions of repetitions, at any place.
        fixed: it has a text that is there once, which tells its repetitions apart.
    """

    empty: bool
    ways: int = 1
    mixed: int = 1
    fixed: bool = True


def check_expansion(text: str) -> None:
    """Refuse rules that the engine would expand without end.

    Raises:
        GrammarError: there are too many ways to read a text, or too many characters.
    """
    rules, elements = _read(text)
    if elements > _MOST_ELEMENTS:
        raise GrammarError(
            f"the grammar repeats literals to {elements} characters: {_MOST_ELEMENTS} are the most"
        )
    known: dict[str, _Size] = {}
    order = _inner_first(rules)
    for _ in range(_PASSES):
        before = dict(known)
        for name in order:
            known[name] = _size(rules[name], known)
            if max(known[name].ways, known[name].mixed) > _MOST_WAYS:
                raise GrammarError(
                    f"the rule {name} of the grammar can be read in more than {_MOST_WAYS} ways at "
                    "once: do not repeat what may be empty, or repetitions without a text between "
                    "them"
                )
        if known == before:
            break


def _inner_first(rules: dict[str, _Node]) -> list[str]:
    """Return the rules, each behind those that it refers to, as far as there are no circles."""
    order: dict[str, None] = {}
    seen: set[str] = set()
    waiting = [(name, False) for name in rules]
    while waiting:
        name, done = waiting.pop()
        if done:
            order[name] = None
        elif name not in seen and name in rules:
            seen.add(name)
            waiting.append((name, True))
            waiting += [(inner, False) for inner in _references(rules[name])]
    return list(order)


def _references(node: _Node) -> list[str]:
    found, waiting = [], [node]
    while waiting:
        one = waiting.pop()
        if one.name is not None:
            found.append(one.name)
        waiting += [inner for sequence in one.choices for inner in sequence]
    return found


def _read(text: str) -> tuple[dict[str, _Node], int]:
    """Return the rules, and the characters of repeated literals; what is wrong is left out."""
    rules: dict[str, _Node] = {}
    stack = [_Node(choices=[[]])]
    elements = at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            at += 1  # the engine says what is wrong
            continue
        at, kind, said = found.end(), found.lastgroup, found.group()
        sequence = stack[-1].choices[-1]
        if kind == "rule":
            stack = [_Node(choices=[[]])]
            rules[said.removesuffix("::=").strip()] = stack[0]
        elif kind == "name":
            sequence.append(_Node(name=said))
        elif kind in ("literal", "one"):
            sequence.append(_Node(characters=len(said) - 2 if kind == "literal" else 1))
        elif kind == "count" and sequence:
            least, most = _bounds(said)
            elements += sequence[-1].characters * max(least, most)
            sequence[-1] = _Node(choices=[[sequence[-1]]], least=least, most=most, counted=True)
        elif said == "(":
            stack.append(_Node(choices=[[]]))
            sequence.append(stack[-1])
        elif said == ")" and len(stack) > 1:
            stack.pop()
        elif said == "|":
            stack[-1].choices.append([])
    return rules, elements


def _bounds(count: str) -> tuple[int, int]:
    if count in "?*+":
        return int(count == "+"), 1
    least, comma, most = (part.strip() for part in count[1:-1].partition(","))
    fewest = int(least or 0)
    return fewest, max(1, int(most or fewest) if comma else fewest)


def _size(node: _Node, rules: dict[str, _Size]) -> _Size:
    if node.name is not None:
        return rules.get(node.name, _Size(False))
    if not node.choices:
        return _Size(node.characters <= 0)
    whole = _Size(False, ways=0)
    for sequence in node.choices:
        sizes = [_size(one, rules) for one in sequence]
        for size in sizes:
            whole.ways += size.ways
            if not size.empty:
                break
        whole.empty |= all(size.empty for size in sizes)
        whole.mixed = max([whole.mixed, *(size.mixed for size in sizes)])
        whole.fixed &= any(size.fixed and not size.empty for size in sizes)
    repeated = max(node.least, node.most)
    if whole.empty:
        whole.ways *= repeated
    if repeated > 1:
        whole.mixed = repeated if whole.fixed else whole.mixed * repeated
    whole.empty |= node.least == 0
    whole.fixed &= not node.counted
    whole.ways, whole.mixed = min(whole.ways, _CAP), min(whole.mixed, _CAP)
    return whole
