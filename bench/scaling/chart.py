"""The figures that a part finds, by size, with their fits, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgespec.benchmark.results import median_interval

__all__ = ["LINE", "Chart", "Fit", "Series", "Setup", "fit_powers", "show", "sizes_up_to"]

_LETTERS, _RAISED = "abc", ("", "{}", "{}²")
_CELL = 28

LINE = (0, 1)
"""The powers of a + b x."""


class Setup(NamedTuple):
    """Settings that all parts share.

    Attributes:
        model: a GGUF file.
        rounds: how often everything is measured, for the intervals.
        deepest: tokens of the longest context.
        tokens: length of the longest answer.
    """

    model: Path
    threads: int
    flash_attention: bool
    rounds: int
    deepest: int
    tokens: int


class Fit(NamedTuple):
    """A least-squares fit through the medians.

    Attributes:
        formula: of the fit, in its coefficients and the chart's variable.
        coefficients: each with its `value`, and the `low` and `high` end of a 95% bootstrap
            interval of the median of the fits of single rounds.
        residual: root mean square of the residuals, in the unit of the figures.
    """

    formula: str
    coefficients: dict[str, dict[str, float]]
    residual: float

    def at(self, x: Any) -> Any:
        """Return the fitted value."""
        return sum(
            each["value"] * x ** _LETTERS.index(letter)
            for letter, each in self.coefficients.items()
        )


class Series(NamedTuple):
    """Figures of one kind.

    Attributes:
        samples: a row for each round, a figure for each x.
        powers: of x in its fit, 0 to 2. Without them, or with no more sizes than powers, there is
            no fit.
    """

    name: str
    samples: list[list[float]]
    powers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chart:
    """One table, and one panel of a picture.

    Attributes:
        title: what the figures are, with their unit.
        x_label: what x is, with its unit.
        variable: the name of x in formulas.
        x: sizes, or names of what is compared (without a fit).
    """

    title: str
    x_label: str
    variable: str
    x: Sequence[float] | Sequence[str]
    series: Sequence[Series]

    @cached_property
    def figures(self) -> dict[str, list[dict[str, float]]]:
        """Medians over the rounds with their intervals, by series."""
        return {
            each.name: [median_interval(column) for column in np.transpose(each.samples)]
            for each in self.series
        }

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """Fits, by series."""
        return {
            each.name: fit_powers(self.x, each.samples, each.powers, self.variable)
            for each in self.series
            if 0 < len(each.powers) < len(self.x)
        }

    def as_json(self) -> dict[str, Any]:
        """Return everything, samples included."""
        series = []
        for each in self.series:
            fit = self.fits.get(each.name)
            line = {"name": each.name, "samples": each.samples, "figures": self.figures[each.name]}
            series.append({**line, "fit": fit._asdict() if fit else None})
        return {**asdict(self), "x": list(self.x), "series": series}


def fit_powers(
    x: Sequence[Any], samples: Sequence[Sequence[float]], powers: Sequence[int], variable: str
) -> Fit:
    """Fit powers of x by least squares.

    Args:
        x: at least as many sizes as powers.
        samples: a row for each round.
    """
    columns = np.stack([np.asarray(x, np.float64) ** power for power in powers], axis=1)
    scale = np.abs(columns).max(axis=0)  # sizes and their squares are far apart
    scale[scale == 0] = 1.0
    rounds = np.asarray(samples, np.float64)
    medians = np.median(rounds, axis=0)
    values, *_ = np.linalg.lstsq(columns / scale, medians, rcond=None)
    single, *_ = np.linalg.lstsq(columns / scale, rounds.T, rcond=None)
    coefficients = {}
    for power, value, of_rounds in zip(
        powers, values / scale, single / scale[:, None], strict=True
    ):
        interval = median_interval(of_rounds)
        coefficients[_LETTERS[power]] = {
            "value": float(value),
            "low": interval["low"],
            "high": interval["high"],
        }
    terms = [f"{_LETTERS[p]} {_RAISED[p].format(variable)}".strip() for p in powers]
    off = columns @ (values / scale) - medians
    return Fit(" + ".join(terms), coefficients, float(np.sqrt(np.mean(off**2))))


def sizes_up_to(largest: int, sizes: Sequence[int]) -> list[int]:
    """Return the sizes below the largest, and the largest."""
    return [*(size for size in sizes if size < largest), largest]


def show(chart: Chart) -> None:
    """Print the table and its fits."""
    print(f"\n{chart.title}, by {chart.x_label}")
    width = max(10, *(len(str(each)) for each in chart.x))
    print(f"{'':{width}}" + "".join(f"  {each.name:{_CELL}}" for each in chart.series))
    for index, size in enumerate(chart.x):
        cells = (_interval(chart.figures[each.name][index], "median") for each in chart.series)
        print(f"{size!s:{width}}" + "".join(f"  {cell:{_CELL}}" for cell in cells))
    for name, fit in chart.fits.items():
        terms = [f"{key} = {_interval(each, 'value')}" for key, each in fit.coefficients.items()]
        print(f"  {name}: {fit.formula}; {', '.join(terms)}; residual {fit.residual:.3g}")
    print(end="", flush=True)


def _interval(figure: dict[str, float], middle: str) -> str:
    return f"{figure[middle]:.4g} [{figure['low']:.4g}, {figure['high']:.4g}]"
