"""`edgespec tune`: measure this machine with a model, and keep what is fastest."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.opening import pull_progress, say_compiling
from edgespec.errors import EdgespecError, UsageError
from edgespec.extras import has_extra
from edgespec.runtime.options import EngineOptions
from edgespec.runtime.processors import allowed_processors, default_threads, spare_processors

if TYPE_CHECKING:
    from edgespec.registry.resolve import ResolvedModel
    from edgespec.tuning.profile import Profile
    from edgespec.tuning.search import Mix
    from edgespec.tuning.setting import Setting, SettingFigures
    from edgespec.tuning.tune import Tuning, Work

__all__ = ["tune"]

_NO_MODEL = ("auto", "mtp", "ngram", "none", "recycle")

_CALM_S, _CALM_LOOKS = 0.4, 6


@click.command()
@click.argument("model", required=False)
@click.option(
    "--draft",
    default="auto",
    metavar="MODEL",
    help="Also measure this draft; with --explain, explain it.",
)
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(5, 3600),
    help="About how long to measure.",
)
@click.option("--explain", is_flag=True, help="Measure nothing: show what is known and expected.")
@click.option("--reset", is_flag=True, help="Forget everything that is known of the model.")
@click.option("--offline", is_flag=True, help="Never download anything.")
@click.option("--png", metavar="FILE", help="Write a picture of the costs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with every figure.")
def tune(
    model: str | None,
    draft: str,
    seconds: float,
    explain: bool,
    reset: bool,
    offline: bool,
    png: str | None,
    as_json: bool,
) -> None:
    """Find the fastest way to run MODEL on this machine, and keep it.

    Compares numbers of threads, flash attention, weight repacking and the cache's type, then
    measures what batches cost in the chosen setting, and whether they are exact bit for bit.
    On a machine that other programs keep busy nothing is measured.
    """
    from edgespec.pictures import check_picture_path

    if explain and reset:
        raise UsageError("--explain and --reset exclude each other")
    path = None if png is None else Path(png)
    if path is not None:
        check_picture_path(path)
    options = EngineOptions(draft="none" if draft in _NO_MODEL else draft, offline=offline)
    if reset:
        _reset(_find(model, options))
    elif explain:
        _explain(_find(model, options), options, path, as_json)
    else:
        _tune(model, options, seconds, path, as_json)


def _find(model: str | None, options: EngineOptions) -> ResolvedModel:
    from edgespec.registry.resolve import resolve

    with pull_progress(model or "the default model") as download:
        return resolve(model, progress=download, offline=options.offline)


def _tune(
    model: str | None, options: EngineOptions, seconds: float, png: Path | None, as_json: bool
) -> None:
    from edgespec.control.speedup import Achieved
    from edgespec.runtime.loading import warm_up
    from edgespec.runtime.plan import make_plan
    from edgespec.tuning.exactness import usual_kernels
    from edgespec.tuning.profile import load_profile
    from edgespec.tuning.report import tuning_lines
    from edgespec.tuning.search import make_mix, thread_counts
    from edgespec.tuning.tune import Work, keep
    from edgespec.tuning.tune import tune as measure

    with pull_progress(model or "the default model") as download:
        plan = make_plan(model, options, download)
    warm_up(say_compiling)  # a compiler that still runs would be measured too
    profile = load_profile(plan.target.path)
    draft = plan.draft.path if plan.draft else None
    known = profile.draft(draft) if draft else profile.ngram
    mix = make_mix(profile.usage, Achieved.from_json(known.get("achieved")))
    counts = thread_counts(default_threads(), len(allowed_processors()))
    threads = default_threads()
    kernels = usual_kernels(plan.header)
    work = Work(plan.target.path, draft, mix, threads, kernels, seconds, is_busy)
    with _progress(plan.target.name, seconds) as note:
        _wait_for_calm()
        tuning = measure(work, counts, note)
    now = keep(work, plan.target.name, tuning)
    _write(png, tuning.figures, plan.target.name)
    if as_json:
        click.echo(json.dumps(_facts(plan.target, work, tuning, profile.best, now), indent=2))
        return
    default = _setting_name(EngineOptions(), work.target)
    for line in tuning_lines(tuning, mix, profile.best, default):
        click.echo(line)


def is_busy() -> bool:
    """Return whether other programs take processors that the usual threads need."""
    return spare_processors().look() < default_threads()


def _wait_for_calm() -> None:
    """Wait a moment for what is about to end: a download, a compilation."""
    for _ in range(_CALM_LOOKS):
        sleep(_CALM_S)
        if not is_busy():
            return


def _explain(
    target: ResolvedModel, options: EngineOptions, png: Path | None, as_json: bool
) -> None:
    from edgespec.registry.resolve import resolve
    from edgespec.runtime.options import ADAPTIVE_BLOCK
    from edgespec.tuning.profile import explain, load_profile
    from edgespec.tuning.report import explanation_lines

    profile = load_profile(target.path)
    figures = _stored_figures(target.path, profile)
    if figures is None:
        raise EdgespecError(
            f"{target.name} was not measured on this machine: run `edgespec tune` with it first"
        )
    known, name = None, "prompt lookup"
    if options.draft != "none":
        draft = resolve(options.draft, offline=options.offline)
        known, name = profile.draft(draft.path), draft.name
    found = explain(profile, figures, known, ADAPTIVE_BLOCK)
    _write(png, figures, target.name)
    if as_json:
        click.echo(json.dumps({"model": target.name, **found.as_json()}, indent=2))
        return
    for line in explanation_lines(found, name):
        click.echo(line)


def _reset(target: ResolvedModel) -> None:
    from edgespec.tuning.exactness import forget_choice
    from edgespec.tuning.profile import load_profile
    from edgespec.tuning.setting import forget_settings

    load_profile(target.path).forget()
    forget_settings(target.path)
    forget_choice(target.name)
    click.echo(f"forgot what was measured and learned of {target.name}", err=True)


def _stored_figures(path: Path, profile: Profile) -> SettingFigures | None:
    """Return the figures of the setting that an engine would use, tuned or not."""
    from dataclasses import replace

    from edgespec.runtime.loading import with_best
    from edgespec.tuning.setting import find_setting

    usual = with_best(EngineOptions(), profile)
    for flash in (usual.flash_attention, True, False):
        found = find_setting(path, _setting_name(replace(usual, flash_attention=flash), path))
        if found is not None:
            return found
    return None


def _setting_name(options: EngineOptions, target: Path) -> str:
    from edgespec.gguf.header import read_header
    from edgespec.tuning.exactness import usual_kernels
    from edgespec.tuning.setting import Setting

    repack, threads = options.repack is not False, options.thread_count
    kernels = options.kernels
    if kernels == "auto":
        kernels = usual_kernels(read_header(target))
    flash = options.flash_attention
    if flash is None:
        flash = kernels == "edgespec"
    return Setting(threads, flash, repack, options.kv_type, kernels).name


def _write(png: Path | None, figures: SettingFigures, model: str) -> None:
    if png is not None:
        from edgespec.tuning.report import write_plot

        write_plot(figures, model, png)
        click.echo(f"saved {png}", err=True)


def _facts(
    target: ResolvedModel,
    work: Work,
    tuning: Tuning,
    before: Setting | None,
    now: Profile,
) -> dict[str, Any]:
    return {
        "model": target.name,
        "path": str(target.path),
        "seconds": round(tuning.seconds, 1),
        "mix": work.mix._asdict(),
        "before": before.as_json() if before else None,
        "best": now.best and now.best.as_json(),
        "reason": tuning.reason,
        "settings": [_trial_facts(tuning, i, work.mix) for i in range(len(tuning.trials))],
        "figures": tuning.figures.as_json(),
        "other_flash_attention": tuning.other and tuning.other.as_json(),
        "draft": [trial.as_json() for trial in tuning.drafts],
        "notes": tuning.notes,
    }


def _trial_facts(tuning: Tuning, index: int, mix: Mix) -> dict[str, Any]:
    trial = tuning.trials[index]
    return {
        **trial.setting._asdict(),
        **trial.typical._asdict(),
        "identical": trial.identical,
        "compared": trial.compared,
        "scores": trial.scores(mix),
        "score_s": trial.score(mix),
        "chosen": trial is tuning.chosen,
    }


@contextmanager
def _progress(model: str, seconds: float) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is being measured, and how much of the time has passed."""
    if not (sys.stderr.isatty() and has_extra("chat")):
        click.echo(f"measuring {model} for about {seconds:.0f} s ...", err=True)
        yield lambda words: None
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task, TextColumn
    from rich.progress_bar import ProgressBar

    class Passed(ProgressColumn):
        """The share of the time that has passed."""

        def render(self, task: Task) -> ProgressBar:
            return ProgressBar(seconds, min(task.elapsed or 0.0, seconds), width=30)

    # Drawing takes processor time as well: once a second, so that it is not measured too.
    console = Console(stderr=True)
    columns = (Passed(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, refresh_per_second=1) as bar:
        task = bar.add_task(model, total=None)
        yield lambda words: bar.update(task, description=words)
