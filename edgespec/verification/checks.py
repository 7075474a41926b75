"""What every check has: a result, prompts, answers to compare with, and the test of counts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec._types import Float32Array, Float64Array, Int32Array, Int64Array
from edgespec.backend import Context
from edgespec.errors import TemplateError, UsageError
from edgespec.grammars import grammar_from_schema
from edgespec.runtime.constraint import Constraint
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.runtime.engine import Engine
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import DrawSettings

__all__ = [
    "CheckResult",
    "GTest",
    "Progress",
    "Prompt",
    "chi_square_tail",
    "decode",
    "expected_distribution",
    "g_test",
    "holm_rejects",
    "is_clear_cut",
    "make_prompts",
    "not_applicable",
    "plain_logits",
    "silent",
    "softmax",
    "total_variation",
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


_ROUNDING = 1e-5

_FEWEST_EXPECTED = 5.0
_PRECISION = 1e-14
_STEPS = 10_000


def softmax(logits: npt.NDArray[np.floating], temperature: float = 1.0) -> Float64Array:
    """Return float64 probabilities of finite or -inf logits."""
    values = logits.astype(np.float64) / temperature
    weights: Float64Array = np.exp(values - values.max())
    weights /= weights.sum()
    return weights


def total_variation(a: Float64Array, b: Float64Array) -> float:
    """Return half the sum of absolute differences of two distributions: 0 to 1."""
    return float(0.5 * np.abs(a - b).sum())


def expected_distribution(
    logits: Float32Array, parameters: SamplingParameters, slack: float = 0.0
) -> Float64Array:
    """Return the distribution after top-k, top-p, min-p and temperature: float64 (n_vocab,).

    They apply in this order, each to what the one before left.

    Args:
        logits: float32 (n_vocab,).
        parameters: with nothing else set; temperature above 0.
        slack: moves the thresholds of top-p and min-p, to see whether rounding decides.

    Raises:
        UsageError: the parameters ask for something else.
    """
    known = SamplingParameters(
        temperature=parameters.temperature,
        top_k=parameters.top_k,
        top_p=parameters.top_p,
        min_p=parameters.min_p,
        seed=parameters.seed,
    )
    if parameters != known or parameters.temperature <= 0.0:
        raise UsageError("verification knows top-k, top-p, min-p and temperatures above 0 only")
    kept = np.argsort(-logits, kind="stable")
    if parameters.top_k > 0:
        kept = kept[: parameters.top_k]
    if parameters.top_p < 1.0:
        mass = np.cumsum(softmax(logits[kept]))
        kept = kept[: 1 + int(np.searchsorted(mass, parameters.top_p + slack))]
    if parameters.min_p > 0.0:
        p = softmax(logits[kept])
        kept = kept[p >= parameters.min_p * p[0] * (1.0 + slack)]
    expected = np.zeros(len(logits))
    expected[kept] = softmax(logits[kept], parameters.temperature)
    return expected


def is_clear_cut(logits: Float32Array, parameters: SamplingParameters) -> bool:
    """Return whether the same tokens pass when rounding moves the thresholds a little."""
    low = expected_distribution(logits, parameters, -_ROUNDING)
    high = expected_distribution(logits, parameters, _ROUNDING)
    return bool(np.array_equal(low > 0.0, high > 0.0))


# -- testing counts -----------------------------------------------------------------------


class GTest(NamedTuple):
    """Outcome of one test.

    Attributes:
        statistic: G = 2 * sum of observed * log(observed / expected).
        degrees: of freedom, the number of cells less one.
        p_value: chance of a G this large if the distribution is right.
        impossible: observations whose probability is 0; any makes p_value 0.
    """

    statistic: float
    degrees: int
    p_value: float
    impossible: int


def g_test(counts: Int64Array, probabilities: Float64Array) -> GTest:
    """Test goodness of fit by the likelihood ratio (Sokal and Rohlf 1995, chapter 17).

    Outcomes expected less than five times are pooled into one cell; if even that is expected
    less than five times, it joins the least likely of the others.

    Args:
        counts: int64 (n,), observations of each outcome.
        probabilities: float64 (n,), summing to 1.
    """
    impossible = int(counts[probabilities <= 0.0].sum())
    expected = probabilities * int(counts.sum())
    common = expected >= _FEWEST_EXPECTED
    cells = sorted(zip(expected[common].tolist(), counts[common].tolist(), strict=True))
    pool = (float(expected[~common].sum()), int(counts[~common].sum()) - impossible)
    if pool[0] < _FEWEST_EXPECTED and cells:
        pool = (pool[0] + cells[0][0], pool[1] + cells[0][1])
        cells = cells[1:]
    cells.append(pool)
    statistic = 2.0 * sum(seen * math.log(seen / due) for due, seen in cells if seen > 0)
    degrees = len(cells) - 1
    p_value = chi_square_tail(statistic, degrees) if degrees > 0 else 1.0
    return GTest(statistic, degrees, 0.0 if impossible else p_value, impossible)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Return the chance that a chi-square variable exceeds `statistic`.

    That is Q(degrees / 2, statistic / 2), the regularized incomplete gamma function, by its
    series below the mean and by Legendre's continued fraction above (Abramowitz and Stegun
    1964, 6.5.29 and 6.5.31).
    """
    a, x = degrees / 2.0, statistic / 2.0
    if x <= 0.0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        return max(0.0, 1.0 - scale * _series(a, x))
    return min(1.0, scale * _fraction(a, x))


def _series(a: float, x: float) -> float:
    term = total = 1.0 / a
    for n in range(1, _STEPS):
        term *= x / (a + n)
        total += term
        if term < total * _PRECISION:
            break
    return total


def _fraction(a: float, x: float) -> float:
    """Evaluate the fraction from the front with Lentz's method (1976)."""
    b = x + 1.0 - a
    c, d = math.inf, 1.0 / b
    value = d
    for n in range(1, _STEPS):
        numerator = -n * (n - a)
        b += 2.0
        d = 1.0 / (numerator * d + b)
        c = b + numerator / c
        value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return value


def holm_rejects(p_values: Sequence[float], level: float) -> list[bool]:
    """Reject hypotheses, with at most `level` chance that a true one falls (Holm 1979).

    This is valid whatever the dependence between the tests.
    """
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected
