"""Which way of opening a target is fastest here: settings race, and stragglers drop out.

A setting's score is the seconds of a typical generation: reading a prompt and decoding an answer
of the lengths that were really seen. Settings take turns, so that a machine that slows down slows
all of them down. A visit (`Bench`) opens a context, reads a prompt, and decodes single tokens and
small batches behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context, ContextOptions, Model, ModelOptions
from edgespec.control.speedup import Achieved
from edgespec.errors import BackendError
from edgespec.tuning.exactness import fast_options
from edgespec.tuning.measure import compare, measuring_text, stand_at
from edgespec.tuning.profile import Usage
from edgespec.tuning.setting import Setting

__all__ = [
    "BATCH",
    "Bench",
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
        """Return the seconds of a generation: decoded plainly or as was seen, the faster one."""
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
        """Return the best of the visits' scores."""
        return min(self.scores(mix))

    def scores(self, mix: Mix) -> list[float]:
        """Return the score of each visit."""
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


# -- looking at a setting -----------------------------------------------------------------------

_PROMPT, _SHORT_PROMPT = 256, 128
_PROBE = 32
_SLOW_PROMPT_S = 1.5
_SINGLES, _FEW_SINGLES = 8, BATCH + 1
_BATCHES = 4
_LARGEST = 33


class Bench:
    """One model file; its weights are loaded once for each way of multiplying them.

    Args:
        path: the file.
        stack: closes what is opened.
        note: told what is being done.

    `rollable` says whether the cache can be rolled back; without that, batches are useless.

    Raises: what `Model` raises.
    """

    def __init__(self, path: Path, stack: ExitStack, note: Callable[[str], None]) -> None:
        self._path, self._stack, self._note = path, stack, note
        self._models: dict[tuple[str, bool], Model] = {}
        self._prompt, self._singles = _PROMPT, _SINGLES
        self.rollable = True

    def model(self, setting: Setting) -> Model:
        """Return the weights, loaded on first use."""
        way = setting.kernels, setting.repack
        if way not in self._models:
            self._note(f"loading weights{_words(setting)}")
            options = ModelOptions(repack=setting.repack)
            if setting.kernels == "edgespec":
                options = fast_options(self._path, setting.threads)
            self._models[way] = self._stack.enter_context(Model(self._path, options))
        return self._models[way]

    def open(self, setting: Setting, length: int = 0) -> Context:
        """Open a context this way, for `length` tokens or as many as a visit needs."""
        model = self.model(setting)
        options = ContextOptions(
            length=min(length or _PROMPT + _LARGEST, model.context_length),
            threads=setting.threads,
            flash_attention=setting.flash_attention,
            kv_type=setting.kv_type,
            outputs=_LARGEST,
            checkpoints=1,
        )
        return Context(model, options)

    def probe(self, setting: Setting) -> None:
        """Read the weights from disk once; find out how long prompts may be, and `rollable`."""
        with self.open(setting) as context:
            text = measuring_text(context, _PROBE)[:_PROBE]
            context.prefill(text)
            context.clear()
            started = perf_counter()
            context.prefill(text)
            if (perf_counter() - started) / _PROBE * _PROMPT > _SLOW_PROMPT_S:
                self._prompt, self._singles = _SHORT_PROMPT, _FEW_SINGLES
            self.rollable = context.can_truncate()

    def visit(self, trial: Trial) -> None:
        """Look at a setting once; what llama.cpp refuses is noted in the trial."""
        setting = trial.setting
        flash = "on" if setting.flash_attention else "off"
        words = _words(setting)
        words += "" if setting.kv_type == "f16" else f", {setting.kv_type} cache"
        self._note(f"{setting.threads} threads, flash attention {flash}{words}")
        try:
            with self.open(setting) as context:
                trial.visits.append(self._look(context, trial))
        except BackendError as error:
            trial.failed = str(error)

    def _look(self, context: Context, trial: Trial) -> Visit:
        prompt = min(self._prompt, context.capacity - self._singles)
        text = measuring_text(context, prompt + self._singles)
        context.evaluate(text[:1], 1)  # buffers of the first call
        context.clear()
        started = perf_counter()
        context.prefill(text[:prompt])
        prefill_s = (perf_counter() - started) / prompt
        alone = np.empty((self._singles, context.model.vocabulary.size), np.float32)
        singles = []
        for i in range(self._singles):
            started = perf_counter()
            logits = context.evaluate(text[prompt + i : prompt + i + 1], 1)
            singles.append(perf_counter() - started)
            alone[i] = logits[0]
        if not self.rollable:
            return Visit(prefill_s, min(singles), BATCH * min(singles))
        batches = []
        for _ in range(_BATCHES):
            stand_at(context, text, prompt)
            started = perf_counter()
            context.evaluate(text[prompt : prompt + BATCH], BATCH)
            batches.append(perf_counter() - started)
        if not trial.compared:
            trial.compared, trial.depth = self._singles, prompt
            trial.identical = _identical(context, text, prompt, alone)
        return Visit(prefill_s, min(singles), min(batches))


def _words(setting: Setting) -> str:
    if setting.kernels == "edgespec":
        return ", edgespec's kernels"
    return "" if setting.repack else ", not repacked"


def _identical(context: Context, text: Int32Array, prompt: int, alone: Float32Array) -> int:
    """Return the largest batch up to which all have the rows of single tokens, bit for bit."""
    for n in range(2, len(alone) + 1):
        stand_at(context, text, prompt)
        if compare(n, context.evaluate(text[prompt : prompt + n], n), alone).logit > 0.0:
            return n - 1
    return len(alone)
