"""Which way of opening a target is fastest here: settings race, and stragglers drop out.

A setting's score is the seconds of a typical generation: reading a prompt and decoding an answer
of the lengths that were really seen. Settings take turns, so that a machine that slows down slows
all of them down; each visit opens a context, reads a prompt, and decodes single tokens and small
batches behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edgespec.control.speedup import Achieved
from edgespec.tuning.profile import Usage
from edgespec.tuning.setting import Setting

__all__ = [
    "BATCH",
    "Mix",
    "Trial",
    "Visit",
    "best_threads",
    "choose",
    "evaluation_s",
    "make_mix",
    "race",
    "thread_counts",
]

BATCH = 4
"""Tokens of the batch that stands for blocks while settings are compared."""

_STRAGGLING = 1.10
_MOST_VISITS = 5
_BITWISE_IS_WORTH = 1.05
_HOPELESS = 3.0
_SPLIT = 256


class Visit(NamedTuple):
    """What one look at a setting found.

    Attributes:
        prefill_s: seconds for each token of a prompt.
        token_s, batch_s: seconds of evaluating one token, `BATCH` tokens, behind it.
    """

    prefill_s: float
    token_s: float
    batch_s: float


class Mix(NamedTuple):
    """What a generation is made of.

    Attributes:
        prompt, answer: tokens.
        sizes: tokens of an evaluation -> its share of all cycles that were seen; empty if none.
        tokens: emitted by a cycle of these, on average.
    """

    prompt: float
    answer: float
    sizes: dict[int, float]
    tokens: float

    def score(self, visit: Visit) -> float:
        """Seconds of a generation, decoded plainly or as was seen, whichever is faster."""
        cycle_s = sum(share * evaluation_s(visit, n) for n, share in self.sizes.items())
        speculative_s = cycle_s / self.tokens if self.sizes else visit.token_s
        return self.prompt * visit.prefill_s + self.answer * min(visit.token_s, speculative_s)


@dataclass
class Trial:
    """A setting and what was seen of it.

    Attributes:
        identical: the largest batch, of those compared, up to which all were bit-identical to
            single tokens; 0 before the first visit.
        compared: the largest batch that was compared.
        depth: tokens in the cache where that was.
        failed: why no context could be opened, if none could.
    """

    setting: Setting
    visits: list[Visit] = field(default_factory=list)
    identical: int = 0
    compared: int = 0
    depth: int = 0
    failed: str | None = None

    @property
    def typical(self) -> Visit:
        """Minima of the visits, as what disturbs one makes it slower."""
        return Visit(*(min(values) for values in zip(*self.visits, strict=True)))

    def score(self, mix: Mix) -> float:
        """The best of the visits."""
        return min(self.scores(mix))

    def scores(self, mix: Mix) -> list[float]:
        """Of each visit."""
        return [mix.score(visit) for visit in self.visits]

    @property
    def bitwise(self) -> bool:
        """Whether blocks worth having are exact bit for bit, in a context of any length.

        Flash attention splits the cache over threads for a single token, but only a longer one.
        """
        setting = self.setting
        certain = not setting.flash_attention or setting.threads == 1 or self.depth >= _SPLIT
        return certain and self.identical > BATCH


def make_mix(usage: Usage, achieved: Achieved) -> Mix:
    """Make it from what an engine noted."""
    cycles = achieved.cycles
    sizes = {n: count / cycles for n, count in achieved.sizes.items()} if cycles else {}
    tokens = achieved.tokens / cycles if cycles else 1.0
    return Mix(usage.prompt, usage.answer, sizes, tokens)


def evaluation_s(visit: Visit, n: int) -> float:
    """Return the seconds of evaluating n tokens, on the line through what was measured."""
    slope = max(0.0, visit.batch_s - visit.token_s) / (BATCH - 1)
    return visit.token_s + slope * (n - 1)


def thread_counts(physical: int, logical: int) -> list[int]:
    """Return numbers of threads worth trying, most first: all processors, all cores, fewer."""
    steps = {count for i in range(10) for count in (2**i, 3 * 2**i) if count < physical}
    return sorted({physical, logical, max(1, physical - 1), *steps}, reverse=True)


def race(
    trials: Sequence[Trial],
    visit: Callable[[Trial], None],
    mix: Mix,
    late: Callable[[], bool],
) -> list[Trial]:
    """Visit trials in turns until one is clearly fastest, or time is up; return those left.

    Args:
        visit: adds one visit to a trial, or says that it failed.
    """
    rivals = list(trials)
    forward = True
    while rivals:
        fewest = min(len(trial.visits) for trial in rivals)
        for trial in rivals if forward else reversed(rivals):
            if len(trial.visits) == fewest and not late():
                visit(trial)
        forward = not forward  # who goes first is not always the same
        rivals = [trial for trial in rivals if trial.visits]
        if len(rivals) > 1:
            rivals = _still_in(rivals, mix)
        done = all(len(trial.visits) >= _MOST_VISITS for trial in rivals)
        if late() or done or (len(rivals) == 1 and len(rivals[0].visits) > 1):
            break
    return rivals


def _still_in(rivals: list[Trial], mix: Mix) -> list[Trial]:
    """Drop those that are clearly slower than the best."""
    best = min(rivals, key=lambda trial: trial.score(mix))
    limit, slowest = best.score(mix), max(best.scores(mix))

    def lost(trial: Trial) -> bool:
        if len(trial.visits) < 2:
            return trial.score(mix) > _HOPELESS * limit
        apart = min(trial.scores(mix)) > slowest
        return trial.score(mix) > _STRAGGLING * limit or (apart and len(trial.visits) > 2)

    return [trial for trial in rivals if trial is best or not lost(trial)]


def choose(trials: Sequence[Trial], mix: Mix) -> tuple[Trial, str]:
    """Return the trial to open targets with, and why in one line.

    It is the fastest, unless one whose batches are exact bit for bit is hardly slower. A setting
    visited only once is not trusted, and one with a q8_0 cache, which changes what the model says,
    is never chosen.
    """
    seen = [trial for trial in trials if trial.visits and trial.setting.kv_type == "f16"]
    able = [trial for trial in seen if len(trial.visits) > 1] or seen
    fastest = min(able, key=lambda trial: trial.score(mix))
    superlative = "the fastest"
    if min(trial.score(mix) for trial in seen) < fastest.score(mix):
        superlative = "the fastest that was looked at more than once"
    exact = [trial for trial in able if trial.bitwise]
    if fastest.bitwise:
        return fastest, f"{superlative}, and its batches are bit-identical to single tokens"
    if not exact:
        return fastest, f"{superlative}; no setting's batches are bit-identical to single tokens"
    careful = min(exact, key=lambda trial: trial.score(mix))
    ratio = careful.score(mix) / fastest.score(mix)
    if ratio <= _BITWISE_IS_WORTH:
        return careful, (
            f"bit-identical batches, and only {ratio - 1:.1%} slower than the fastest setting"
        )
    return fastest, f"{superlative}; those with bit-identical batches are {ratio - 1:.0%} slower"


def best_threads(trials: Sequence[Trial], mix: Mix) -> list[int]:
    """Return up to two numbers of threads hardly worse than the best, best first."""
    ranked = sorted((t for t in trials if t.visits), key=lambda trial: trial.score(mix))
    limit = ranked[0].score(mix) * _STRAGGLING
    return [t.setting.threads for t in ranked if t.score(mix) <= limit][:2]
