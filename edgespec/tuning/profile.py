"""What is known of a target on this machine: how to open it, what drafting brought, what to expect.

One JSON file for each machine, build and model file. `edgespec tune` writes the settings it found
best; every engine adds what it learned when it is closed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.control.costs import predicted_cost
from edgespec.control.speedup import (
    Achieved,
    ExpectedSpeedup,
    continued,
    expected_speedups,
    fastest,
)
from edgespec.control.stopping import POSITIONS, expected, read_calibration
from edgespec.drafters.prompt_lookup import PromptLookupDrafter
from edgespec.tuning.setting import (
    Setting,
    SettingFigures,
    forget_measurements,
    load_measurement,
    measurement_key,
    store_measurement,
    stored_measurements,
)

__all__ = [
    "EXAMPLE_C",
    "LONGEST_MATCH",
    "DraftModel",
    "Explanation",
    "Match",
    "Profile",
    "Usage",
    "explain",
    "load_profile",
    "tuned_models",
]

_USAGE_DECAY = 0.9


@dataclass
class Usage:
    """Typical lengths of prompts (what the cache did not hold) and answers, in tokens."""

    prompt: float = 200.0
    answer: float = 200.0

    def add(self, prompt: int, answer: int) -> None:
        """Add a generation."""
        self.prompt += (1 - _USAGE_DECAY) * (prompt - self.prompt)
        self.answer += (1 - _USAGE_DECAY) * (answer - self.answer)


@dataclass
class Profile:
    """The file's content; unreadable parts are left out.

    Attributes:
        key: its name in the store.
        best: how `edgespec tune` found the target fastest; None before that.
        tuned: what it found, for people: the model's name and file, and a few figures.
        usage: lengths that were seen.
        drafts: by `measurement_key` of the draft's file, what its `DraftStopping` knows.
        ngram: hits and trials of prompt lookup by match length.
        shapes: by setting, what each batch size was off by against its measurement.
    """

    key: str
    best: Setting | None = None
    tuned: dict[str, Any] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    drafts: dict[str, Any] = field(default_factory=dict)
    ngram: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, list[float]] = field(default_factory=dict)

    def draft(self, file: Path) -> dict[str, Any]:
        """Return what is known of drafting with this file; changes to it are kept."""
        return _dictionary(self.drafts.setdefault(measurement_key(file, {}), {}))

    def forget(self) -> None:
        """Remove the file."""
        forget_measurements(self.key)

    def save(self) -> None:
        """Write it; a folder that cannot be written costs only learning again."""
        store_measurement(
            self.key,
            {
                "best": self.best.as_json() if self.best else None,
                "tuned": self.tuned,
                "usage": vars(self.usage),
                "drafts": self.drafts,
                "ngram": self.ngram,
                "shapes": self.shapes,
            },
        )


def load_profile(model: Path) -> Profile:
    """Load the profile of this file; an empty one if there is none."""
    key = _key(model)
    data = load_measurement(key) or {}
    return Profile(
        key,
        _best(data.get("best")),
        _dictionary(data.get("tuned")),
        _usage(data.get("usage")),
        _dictionary(data.get("drafts")),
        _dictionary(data.get("ngram")),
        {k: v for k, v in _dictionary(data.get("shapes")).items() if _numbers(v)},
    )


def tuned_models() -> list[dict[str, Any]]:
    """Return what `edgespec tune` found for each model that is still where it was."""
    found = []
    for key, data in stored_measurements("profile-*").items():
        tuned = _dictionary(data.get("tuned"))
        with contextlib.suppress(OSError, TypeError, KeyError):
            whole = all(tuned[name] for name in ("model", "date", "setting"))
            timed = tuned["token_s"] > 0 and tuned["prefill_s"] > 0
            if whole and timed and key == _key(Path(tuned["path"])):
                found.append(tuned)
    return found


def _key(model: Path) -> str:
    return "profile-" + measurement_key(model, {})


def _best(data: Any) -> Setting | None:
    try:
        best = Setting(**data)
    except TypeError:
        return None
    sane = isinstance(best.threads, int) and 1 <= best.threads <= 512
    return best if sane else None


def _usage(data: Any) -> Usage:
    try:
        usage = Usage(**data)
    except TypeError:
        return Usage()
    return usage if _numbers([usage.prompt, usage.answer]) else Usage()


def _dictionary(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and all(
        isinstance(v, (int, float)) and math.isfinite(v) for v in values
    )


# -- what to expect -----------------------------------------------------------------------------

LONGEST_MATCH = 16
"""Longer matches count as this long for prompt lookup."""


class Match(NamedTuple):
    """What prompt lookup knows of matches of one length.

    Attributes:
        trials: predictions scored lately.
        right: the share of them that is taken to be right.
        best: the most profitable number of copied tokens.
    """

    length: int
    trials: float
    right: float
    best: ExpectedSpeedup


@dataclass(frozen=True)
class DraftModel:
    """A draft, its costs and its expected speedups.

    Attributes:
        alpha: by position, how often a proposal is accepted if all before it are.
        judged: proposals that this rests on.
        step_s, reading_s: seconds of drafting one token, of reading a committed one.
        c: a step in single-token evaluations of the target.
        speedups: for k = 0, 1, 2 ...
        cheaper, better, flatter: the best speedup if steps cost nothing, if every proposal were
            accepted, if every token of a batch beyond the first cost half as much.
    """

    alpha: list[float]
    judged: float
    step_s: float
    reading_s: float
    c: float
    speedups: list[ExpectedSpeedup]
    cheaper: float
    better: float
    flatter: float

    @property
    def best(self) -> ExpectedSpeedup:
        """Return the most profitable."""
        return fastest(self.speedups)

    def as_json(self) -> dict[str, Any]:
        """Return what to expect of speculation, and what it has achieved."""
        known = dict(vars(self))
        return {**known, "outlooks": [_as_json(each) for each in known.pop("speedups")]}


@dataclass(frozen=True)
class Explanation:
    """What to expect of speculation, and what it has achieved.

    Attributes:
        figures: of the setting in use.
        tuned: whether settings were compared here.
        depth: tokens in the cache that costs are given for.
        token_s: seconds of evaluating one token there.
        v: v(1), v(2) ... as far as they are known.
        ceiling: what free proposals that are always right would bring.
        matches: of prompt lookup.
        draft: None without one, or if it was never used nor tuned.
        achieved: by the drafter in question.
        planned: the speedup that the cost table predicts for the cycles that were achieved.
        needed: the acceptance rate from which a draft with steps of a tenth, `EXAMPLE_C`, of the
            target's would bring a tenth more speed; None if no rate does.
    """

    figures: SettingFigures
    tuned: bool
    depth: float
    token_s: float
    v: list[float]
    ceiling: ExpectedSpeedup
    matches: list[Match]
    draft: DraftModel | None
    achieved: Achieved
    planned: float
    needed: float | None

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "setting": self.figures.as_json(),
            "tuned": self.tuned,
            "depth": self.depth,
            "token_s": self.token_s,
            "v": self.v,
            "ceiling": _as_json(self.ceiling),
            "ngram": [{**m._asdict(), "best": _as_json(m.best)} for m in self.matches],
            "draft": self.draft and self.draft.as_json(),
            "achieved": {**self.achieved.as_json(), "speedup": self.achieved.speedup},
            "planned_speedup": self.planned,
            "alpha_needed": self.needed,
        }


EXAMPLE_C = 0.1
_WORTH = 1.1


def explain(
    profile: Profile, figures: SettingFigures, draft: dict[str, Any] | None, most: int
) -> Explanation:
    """Put together what is stored.

    Args:
        figures: of the setting that an engine would use.
        draft: what the profile knows of the draft in question; None for prompt lookup alone.
        most: the longest block that an engine would propose.
    """
    depth = profile.usage.prompt + profile.usage.answer / 2
    table = figures.cost_table(figures.sizes[-1])
    seconds = [float(predicted_cost(table, depth, n)) for n in figures.sizes]
    v = [s / seconds[0] for s in seconds]
    known = profile.ngram if draft is None else draft
    achieved = Achieved.from_json(known.get("achieved"))
    most = min(most, len(v) - 1)
    return Explanation(
        figures=figures,
        tuned=profile.best is not None,
        depth=depth,
        token_s=seconds[0],
        v=v,
        ceiling=fastest(expected_speedups([1.0] * most, v, 0.0)),
        matches=_matches(profile.ngram, v, most),
        draft=_draft_model(draft, v, seconds[0], most) if draft else None,
        achieved=achieved,
        planned=_planned(achieved, v),
        needed=_needed(v, most),
    )


def _matches(experience: dict[str, Any], v: list[float], most: int) -> list[Match]:
    drafter = PromptLookupDrafter(1)
    drafter.trust(experience)
    trials = experience.get("trials")
    if not isinstance(trials, list):
        return []
    found = []
    for length, count in enumerate(trials[: LONGEST_MATCH + 1]):
        if length and count > 0:
            # A match that was right once more is one token longer.
            rates = [drafter.credibility(length + i) for i in range(most)]
            best = fastest(expected_speedups(rates, v, 0.0))
            found.append(Match(length, float(count), rates[0] if rates else 0.0, best))
    return found


def _draft_model(
    known: dict[str, Any], v: list[float], token_s: float, most: int
) -> DraftModel | None:
    step_s, reading_s = known.get("step_s"), known.get("reading_s")
    if not isinstance(step_s, float) or not isinstance(reading_s, float):
        return None
    calibration = read_calibration(known.get("calibration"))
    alpha = [float(expected(calibration, i)) for i in range(POSITIONS)]
    rates = continued(alpha, most)
    c = step_s / token_s
    flat = [1 + (cost - 1) / 2 for cost in v]
    return DraftModel(
        alpha=alpha,
        judged=float(calibration.trials.sum()),
        step_s=step_s,
        reading_s=reading_s,
        c=c,
        speedups=expected_speedups(rates, v, c),
        cheaper=fastest(expected_speedups(rates, v, 0.0)).speedup,
        better=fastest(expected_speedups([1.0] * most, v, c)).speedup,
        flatter=fastest(expected_speedups(rates, flat, c)).speedup,
    )


def _planned(achieved: Achieved, v: list[float]) -> float:
    """Return what the cost table predicts for the sizes evaluated, drafting left out."""
    known = {n: count for n, count in achieved.sizes.items() if n <= len(v)}
    cost = sum(count * v[n - 1] for n, count in known.items())
    share = sum(known.values()) / achieved.cycles if known else 0.0
    return achieved.tokens * share / cost if cost else 1.0


def _needed(v: list[float], most: int) -> float | None:
    for percent in range(1, 100):
        rates = [percent / 100] * most
        if fastest(expected_speedups(rates, v, EXAMPLE_C)).speedup >= _WORTH:
            return percent / 100
    return None


def _as_json(expected: ExpectedSpeedup) -> dict[str, float]:
    return {**expected._asdict(), "speedup": expected.speedup}
