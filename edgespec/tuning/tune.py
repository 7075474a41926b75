"""All that `edgespec tune` measures, within a time limit, and what it keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from time import perf_counter

from edgespec.backend import capabilities
from edgespec.errors import BackendError, EdgespecError
from edgespec.tuning.drafting import DraftTrial, measure_drafting
from edgespec.tuning.measure import Effort, measure_context
from edgespec.tuning.profile import Profile, load_profile
from edgespec.tuning.search import (
    Bench,
    Mix,
    Trial,
    Visit,
    best_threads,
    choose,
    evaluation_s,
    race,
)
from edgespec.tuning.setting import Setting, SettingFigures, store_setting

__all__ = ["Tuning", "Work", "keep", "plan_effort", "tune"]

Note = Callable[[str], None]

_COMPARING, _DRAFTING, _OTHER = 0.5, 0.1, 0.12  # shares of the time
_DEPTHS = (272, 1024, 2048, 40)  # what is measured first if there is not time for all
_LARGEST, _ENOUGH = 33, 17
_TWICE = 8
_DISTURBED = 0.25  # of the looks
_PUNCTUAL = 0.9  # of the time that is left, for what takes longer than was thought
_REPETITIONS, _MOST_REPETITIONS = 2, 9


@dataclass(frozen=True)
class Work:
    """What is to be tuned.

    Attributes:
        target, draft: files.
        mix: what generations are made of.
        threads: what is used without tuning.
        kernels: whose kernels are used without tuning: "edgespec" or "llama.cpp".
        seconds: for all of it.
        busy: tells whether other programs take processors at the moment.
    """

    target: Path
    draft: Path | None
    mix: Mix
    threads: int
    kernels: str
    seconds: float
    busy: Callable[[], bool]


@dataclass
class Tuning:
    """What was found.

    Attributes:
        trials: every setting that was compared.
        chosen: one of them, and the reason.
        figures: the chosen setting's costs at several depths.
        other: the same with flash attention the other way, at one depth.
        drafts: numbers of threads of the draft, best first.
        notes: what was left out, for people.
        seconds: it took.
    """

    trials: list[Trial]
    chosen: Trial
    reason: str
    figures: SettingFigures
    other: SettingFigures | None
    drafts: list[DraftTrial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def tune(work: Work, counts: Sequence[int], note: Note) -> Tuning:
    """Measure; nothing is stored. Gives up on a busy machine.

    Args:
        counts: numbers of threads to compare, most first.
        note: told what is being done.

    Raises:
        EdgespecError: the machine is busy.
        What `Model` and `Context` raise.
    """
    with ExitStack() as stack:
        return _Tuner(work, counts, stack, note).run()


class _Tuner:
    def __init__(self, work: Work, counts: Sequence[int], stack: ExitStack, note: Note) -> None:
        self._work, self._counts, self._note = work, counts, note
        self._bench = Bench(work.target, stack, note)
        self._started = perf_counter()
        self._trials: dict[Setting, Trial] = {}
        self._notes: list[str] = []
        self._looks = self._disturbed = 0
        self._look()

    def _look(self) -> None:
        """Give up if too many looks found the machine in use: figures would be wrong.

        Raises:
            EdgespecError: it is.
        """
        self._looks += 1
        self._disturbed += self._work.busy()
        if self._disturbed > _DISTURBED * self._looks:
            raise EdgespecError(
                "this machine is busy with other programs: nothing is measured nor stored; tune "
                "when it is not"
            )

    def run(self) -> Tuning:
        """Compare, choose, and measure the chosen setting at length."""
        self._compare()
        chosen, reason = choose(list(self._trials.values()), self._work.mix)
        drafts = self._drafts(chosen.setting) if self._work.draft else []
        other = self._measure_other(chosen)
        figures = self._measure_chosen(chosen)
        self._look()
        return Tuning(
            list(self._trials.values()),
            chosen,
            reason,
            figures,
            other,
            drafts,
            self._notes,
            self._elapsed,
        )

    @property
    def _elapsed(self) -> float:
        return perf_counter() - self._started

    @property
    def _usual(self) -> Setting:
        flash = self._work.kernels == "edgespec"  # ours is exact
        return Setting(self._work.threads, flash, True, kernels=self._work.kernels)

    def _late(self, share: float) -> Callable[[], bool]:
        return lambda: self._elapsed > share * self._work.seconds

    def _trial(self, setting: Setting) -> Trial:
        return self._trials.setdefault(setting, Trial(setting))

    def _compare(self) -> None:
        """Compare threads first; then flash attention and kernels with the best numbers of them."""
        usual = self._usual
        self._bench.probe(usual)
        first = self._trial(usual)
        self._visit(first)
        if first.failed:
            raise BackendError(first.failed)
        mix, visit = self._work.mix, self._visit
        counts = [self._trial(usual._replace(threads=count)) for count in self._counts]
        race(counts, visit, mix, self._late(_COMPARING / 2))
        best = best_threads(counts, mix)
        kinds = [usual._replace(kernels="llama.cpp")]
        if usual.kernels == "edgespec":
            kinds.insert(0, usual)
        if _can_repack():
            kinds.append(usual._replace(kernels="llama.cpp", repack=False))
        else:
            self._notes.append("this build does not repack weights: nothing to compare there")
        rivals = [
            self._trial(kind._replace(threads=count, flash_attention=flash))
            for count in best
            for kind in kinds
            for flash in (False, True)
        ]
        race(rivals, visit, mix, self._late(_COMPARING * 0.9))
        fastest = min(
            (trial for trial in rivals if trial.visits), key=lambda trial: trial.score(mix)
        )
        small = fastest.setting._replace(flash_attention=True, kv_type="q8_0")
        race([self._trial(small)], visit, mix, self._late(_COMPARING))
        self._report_unseen()

    def _visit(self, trial: Trial) -> None:
        self._bench.visit(trial)
        self._look()

    def _report_unseen(self) -> None:
        for setting, trial in list(self._trials.items()):
            if trial.failed:
                self._notes.append(f"{setting.name} cannot be opened: {trial.failed}")
            if not trial.visits:
                del self._trials[setting]
                if not trial.failed:
                    self._notes.append(f"no time for {setting.name}")

    def _drafts(self, setting: Setting) -> list[DraftTrial]:
        assert self._work.draft is not None
        late = self._late(_COMPARING + _DRAFTING)
        with self._bench.open(setting) as target:
            return measure_drafting(self._work.draft, target, self._counts, late, self._note)

    def _measure_other(self, chosen: Trial) -> SettingFigures | None:
        """Measure what the engine compares with when another kind of exactness is asked for."""
        way = chosen.setting._replace(flash_attention=not chosen.setting.flash_attention)
        trial = self._trials.get(way)
        if trial is None or self._late(_COMPARING + _DRAFTING + _OTHER / 2)():
            return None
        effort, _ = plan_effort(trial.typical, _OTHER * self._work.seconds, _DEPTHS[:1])
        return self._measure(way, effort)

    def _measure_chosen(self, chosen: Trial) -> SettingFigures:
        left = max(self._work.seconds - self._elapsed, 1.0) * _PUNCTUAL
        longest = self._bench.model(chosen.setting).context_length - _LARGEST
        depths = [depth for depth in _DEPTHS if depth <= longest] or [max(longest, 1)]
        effort, dropped = plan_effort(chosen.typical, left, depths)
        figures = self._measure(chosen.setting, effort)
        if not self._bench.rollable:
            self._notes.append("the cache of this model cannot be rolled back: no batches")
        if dropped:
            words = ", ".join(map(str, sorted(dropped)))
            self._notes.append(f"no time for depths of {words} tokens: allow more --seconds")
        if figures.sizes[-1] < _LARGEST and self._bench.rollable:
            self._notes.append(
                f"batches of more than {figures.sizes[-1]} tokens were not measured: "
                "allow more --seconds"
            )
        return figures

    def _measure(self, setting: Setting, effort: Effort) -> SettingFigures:
        if not self._bench.rollable:
            effort = effort._replace(largest=1)
        self._note(f"batches of up to {effort.largest} tokens")
        length = max(effort.depths) + effort.largest
        with self._bench.open(setting, length) as context:
            return measure_context(context, effort, lambda _: self._note("batches"))


def plan_effort(visit: Visit, seconds: float, depths: Sequence[int]) -> tuple[Effort, list[int]]:
    """Return how much of the full measurement fits into this time, and the depths that do not.

    Args:
        visit: what is known of the setting's costs.
        depths: tokens of context, most wanted first.
    """

    def reading(deepest: int) -> float:
        """Lower depths are reached by cutting the cache."""
        return deepest * visit.prefill_s * (1 + deepest / 4096)

    def batches(depth: int, largest: int, repetitions: int) -> float:
        sizes = [evaluation_s(visit, n) for n in range(1, largest + 1)]
        once = sum(sizes) + sum(sizes[:_TWICE])
        return (largest * visit.token_s + repetitions * once) * (1 + depth / 4096)

    def cost(depths: Sequence[int], largest: int, repetitions: int) -> float:
        return reading(max(depths)) + sum(batches(d, largest, repetitions) for d in depths)

    affordable = cost(depths[:1], _LARGEST, _REPETITIONS) <= seconds
    largest = _LARGEST if affordable else _ENOUGH
    kept = list(depths[:1])
    for depth in depths[1:]:
        if cost([*kept, depth], largest, _REPETITIONS) <= seconds:
            kept.append(depth)
    repetitions = _REPETITIONS
    while repetitions < _MOST_REPETITIONS and cost(kept, largest, repetitions + 1) <= seconds:
        repetitions += 1
    # What is begun should be over in time: the last repetition has to be begun early enough.
    left = max(0.0, seconds - reading(max(kept)))
    each = left / len(kept) * (repetitions - 1) / repetitions
    effort = Effort(tuple(kept), largest, repetitions, each, needed=_TWICE, twice=_TWICE)
    return effort, [depth for depth in depths if depth not in kept]


def keep(work: Work, name: str, tuning: Tuning) -> Profile:
    """Store what was found, so that engines open the target this way."""
    profile = load_profile(work.target)  # as it is by now
    setting, typical = tuning.chosen.setting, tuning.chosen.typical
    if setting != profile.best:
        # What was achieved was achieved with other settings.
        for known in (profile.ngram, *profile.drafts.values()):
            known.pop("achieved", None)
    for figures in (tuning.figures, tuning.other):
        if figures is not None:
            store_setting(work.target, figures, tuned=True)
            profile.shapes.pop(figures.name, None)
    if work.draft is not None and tuning.drafts:
        profile.draft(work.draft).update(tuning.drafts[0].as_json())
    profile.best = setting
    profile.tuned = {
        "model": name,
        "path": str(work.target.resolve()),
        "date": date.today().isoformat(),
        "setting": setting.name,
        "token_s": typical.token_s,
        "prefill_s": typical.prefill_s,
        "identical": tuning.figures.identical,
        "reason": tuning.reason,
    }
    profile.save()
    return profile


def _can_repack() -> bool:
    build = capabilities()
    return "REPACK" in build.features and not build.amx
