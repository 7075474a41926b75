"""What the lab works on, as exact numbers: written by the user, or measured on this machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.errors import UsageError
from edgespec.lab.theory import Distribution, MeasuredCost
from edgespec.lab.trees import shape_nodes
from edgespec.registry.fetch import Progress, silent

__all__ = [
    "Curve",
    "Pair",
    "built_in_curve",
    "built_in_pair",
    "measured_curve",
    "read_alpha",
    "read_c",
    "read_curve",
    "read_pair",
    "read_ranks",
    "read_shape",
]

_BUILT_IN_P = "0.6,0.3,0.1"
_BUILT_IN_Q = "0.2,0.5,0.3"
_FEWEST, _MOST = 2, 64
_TOLERANCE = Fraction(1, 10**9)
_DIGITS = 45  # alpha^32 stays below the 4,300 digits that Python prints
_LONGEST_FILE = 1 << 20
_MOST_TOKENS = 4096
_NUMBER = re.compile(r"[+-]?([0-9]+/[0-9]+|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?)", re.I)
_EXAMPLE = "1:1,2:1.11,3:1.19,4:1.26,6:1.45,8:1.73,16:2.82"
_EXAMPLE_NAME = "example curve, not this machine: SmolLM2-135M, edgespec's kernels, AVX-512 VNNI"
_DEPTH = 256
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)


def built_in_pair() -> Pair:
    """Return p and q over three tokens, few enough to follow every step."""
    return read_pair(_BUILT_IN_P, _BUILT_IN_Q)


def read_pair(p: str, q: str) -> Pair:
    """Read two distributions over the same tokens, each as numbers with commas between them.

    Raises:
        UsageError: a number is wrong or negative, a sum is not 1, the lengths differ.
    """
    p_values, p_notes = _read_distribution(p, "p")
    q_values, q_notes = _read_distribution(q, "q")
    if len(p_values) != len(q_values):
        raise UsageError(
            f"p has {len(p_values)} entries and q {len(q_values)}: give one each for every token"
        )
    if math.lcm(*(value.denominator for value in (*p_values, *q_values))) > 10**_DIGITS:
        raise UsageError(f"p and q have no common denominator up to 10^{_DIGITS}: round them")
    return Pair(p_values, q_values, (*p_notes, *q_notes))


def built_in_curve() -> Curve:
    """Return a measured curve, for when the user gives none."""
    cost, notes = _measured(_split(_EXAMPLE))
    return Curve(cost, _EXAMPLE_NAME, notes)


def read_curve(text: str) -> Curve:
    """Read v(n): "1,1.46,2.07" for n = 1, 2, 3; "1:1,4:2.11" for these n; or a .json file.

    The file holds a list of numbers, or an object from n to number. Numbers in any unit will do,
    milliseconds for example: they are divided by that of n = 1.

    Raises:
        UsageError: the file cannot be read, a number is wrong, or n = 1 is missing.
    """
    text = text.strip()
    if text.lower().endswith(".json"):
        cost, notes = _measured(_read_file(Path(text)))
        return Curve(cost, f"measured curve of {Path(text).name}", notes)
    cost, notes = _measured(_split(text))
    return Curve(cost, "measured curve of --cost", notes)


def measured_curve(model: str | None, download: Progress = silent) -> Curve:
    """Measure v(n) up to n = 17 at 256 tokens of context.

    Args:
        model: a path, a registry name, an hf: reference, or None for the default model.
        download: called with bytes done and in all while a file is fetched.

    Raises: whatever `resolve`, `Model` and `Context` raise.
    """
    # Nothing else here needs llama.cpp.
    from edgespec.backend import Context, ContextOptions, Model
    from edgespec.registry.resolve import resolve
    from edgespec.runtime.processors import default_threads
    from edgespec.tuning.exactness import fast_options
    from edgespec.tuning.measure import measure_cost

    found = resolve(model, progress=download)
    threads = default_threads()
    options = ContextOptions(length=2 * _DEPTH, threads=threads, outputs=max(_SIZES))
    opened = Model(found.path, fast_options(found.path, threads))
    with opened as loaded, Context(loaded, options) as context:
        seconds = measure_cost(context, _DEPTH, _SIZES)
    curve = read_curve(",".join(f"{n}:{cost:.7f}" for n, cost in seconds.items()))
    label = f"{found.name} on this machine, {threads} threads, {_DEPTH} tokens of context"
    return curve._replace(name=label)


class Pair(NamedTuple):
    """p and q, and what was done to them."""

    p: Distribution
    q: Distribution
    notes: tuple[str, ...]


class Curve(NamedTuple):
    """A measured v(n), where it comes from, and what was done to it."""

    cost: MeasuredCost
    name: str
    notes: tuple[str, ...]


def read_alpha(text: str) -> Fraction:
    """Read an acceptance rate.

    Raises:
        UsageError: not a number from 0 to 1.
    """
    alpha = _read_number(text, "alpha")
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha is {_short(text)}: it is a probability, from 0 to 1")
    return alpha


def read_ranks(text: str) -> tuple[Fraction, ...]:
    """Read alpha of each rank.

    Raises:
        UsageError: not numbers from 0 to 1, or they add up to more than 1.
    """
    words = text.split(",")
    if len(words) > _MOST:
        raise UsageError(f"ranks has {len(words)} entries: give at most {_MOST}")
    alphas = tuple(_read_number(word, f"rank {i}") for i, word in enumerate(words, 1))
    if min(alphas) < 0 or sum(alphas) > 1:
        raise UsageError(
            f"ranks is {_short(text)}: at most one sibling is right, so that the probabilities "
            "are not negative and add up to 1 at most"
        )
    return alphas


def read_shape(text: str) -> tuple[int, ...]:
    """Read a tree's shape: children of each node by level.

    Raises:
        UsageError: not numbers from 1 on, or a tree of too many nodes.
    """
    words = text.split(",")
    if not all(word.isdecimal() and 1 <= int(word[:4]) <= _MOST for word in words):
        raise UsageError(f"tree is {_short(text)}: it is children by level as in 4,2,2,1")
    if shape_nodes(widths := tuple(map(int, words))) > _MOST:
        raise UsageError(f"tree {_short(text)} has over {_MOST} nodes: give a smaller one")
    return widths


def read_c(text: str) -> Fraction:
    """Read the cost of one draft step.

    Raises:
        UsageError: not a number, or negative.
    """
    c = _read_number(text, "c")
    if c < 0:
        raise UsageError(f"c is {_short(text)}: a cost is not negative")
    return c


def _read_number(text: str, name: str) -> Fraction:
    """Read 3/5, 0.6 or 6e-1, exactly."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{name} is {_short(text)}: write numbers like 0.6 or 3/5")
    try:
        number = Fraction(text)
    except (ValueError, ZeroDivisionError):  # a numeral too long for Python, or 1/0
        raise UsageError(f"{name} is {_short(text)}: this number cannot be used") from None
    if max(abs(number.numerator), number.denominator) > 10**_DIGITS:
        raise UsageError(f"{name} is {_short(text)}: use at most {_DIGITS} digits")
    return number


def _read_distribution(text: str, name: str) -> tuple[Distribution, tuple[str, ...]]:
    words = text.split(",")
    if not _FEWEST <= len(words) <= _MOST:
        raise UsageError(f"{name} has {len(words)} entries: give {_FEWEST} to {_MOST}")
    values = tuple(_read_number(word, f"entry {i} of {name}") for i, word in enumerate(words, 1))
    for i, value in enumerate(values, 1):
        if value < 0:
            raise UsageError(f"entry {i} of {name} is {_short(words[i - 1])}: it is negative")
    total = sum(values, Fraction(0))
    if total == 1:
        return values, ()
    decimals = any(set(word) & set(".eE") for word in words)
    if not decimals or abs(total - 1) > _TOLERANCE:
        exact = f" ({total})" if not decimals and len(str(total)) < 20 else ""
        raise UsageError(f"{name} sums to {float(total):.10g}{exact}: it has to sum to 1")
    note = f"{name} sums to 1 {'-' if total < 1 else '+'} {float(abs(total - 1)):.1e}: normalized"
    return tuple(value / total for value in values), (note,)


def _split(text: str) -> list[tuple[str, str]]:
    words = text.split(",")
    if ":" not in text:
        return list(_numbered(words))
    return [(n, cost) for n, _, cost in (word.partition(":") for word in words)]


def _read_file(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _LONGEST_FILE:
        raise UsageError(f"{path} is too long for a cost curve")
    try:
        # Numbers stay text, so that they become the fractions that were written.
        content = json.loads(data, parse_float=str, parse_int=str, object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON") from None
    pairs = _pairs(content)
    if not pairs:
        raise UsageError(f'{path} is no cost curve: write [1, 1.46, ...] or {{"1": 1, ...}}')
    return pairs


class _Object(list[tuple[str, Any]]):
    """A JSON object with its repeated keys."""


def _pairs(content: Any) -> list[tuple[str, str]]:
    """Return n and cost of each point; nothing if the file holds something else."""
    if not isinstance(content, list):
        return []
    pairs = content if isinstance(content, _Object) else list(_numbered(content))
    return pairs if all(isinstance(cost, str) for _, cost in pairs) else []


def _numbered(costs: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(n), cost) for n, cost in enumerate(costs, 1))


def _measured(items: Iterable[tuple[str, str]]) -> tuple[MeasuredCost, tuple[str, ...]]:
    points: dict[int, Fraction] = {}
    for word, text in items:
        n = _read_length(word)
        cost = _read_number(text, f"cost of n = {n}")
        if cost <= 0:
            raise UsageError(f"cost of n = {n} is {_short(text)}: it has to be above 0")
        if n in points:
            raise UsageError(f"the cost of n = {n} is given twice")
        points[n] = cost
    if 1 not in points:
        raise UsageError("the cost of n = 1 is missing: it is the unit of the others")
    scaled = points[1] != 1
    notes = ("costs are divided by that of n = 1",) if scaled else ()
    return MeasuredCost(points), notes


def _read_length(word: str) -> int:
    word = word.strip()
    n = int(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0
    if not 1 <= n <= _MOST_TOKENS:
        raise UsageError(
            f"cost curve: n is {_short(word)}: it is a number from 1 to {_MOST_TOKENS}"
        )
    return n


def _short(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 30 else text[:27] + "...")
