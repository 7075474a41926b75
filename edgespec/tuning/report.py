"""What tuning found, as text of 80 columns and as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.pictures import BLUE, GREEN, ORANGE, PURPLE, write_panels
from edgespec.tuning.profile import EXAMPLE_C, LONGEST_MATCH, DraftModel, Explanation
from edgespec.tuning.search import BATCH, Mix, Trial
from edgespec.tuning.setting import Setting, SettingFigures
from edgespec.tuning.tune import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["best_words", "explanation_lines", "tuning_lines", "write_plot"]

_WIDTH = 80
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
_COLUMNS = 11
_SPEEDUPS = 8


def tuning_lines(tuning: Tuning, mix: Mix, before: Setting | None, default: str) -> Iterator[str]:
    """Yield the report of `edgespec tune`.

    Args:
        before: what engines opened until now, None for the default setting.
        default: that one's name.
    """
    yield from _table(_trial_rows(tuning, mix))
    yield ""
    yield from _wrap(
        f"Score: seconds to read a prompt of {mix.prompt:.0f} tokens and write an answer of "
        f"{mix.answer:.0f}, the lengths seen here lately. Identical: up to how many tokens a "
        f"batch has the logits of single ones, bit for bit. * marks the choice: {tuning.reason}."
    )
    yield ""
    yield "v(n): cost of a batch of n tokens, in single tokens, by tokens in the cache"
    yield from _cost_lines(tuning.figures)
    yield ""
    if tuning.drafts:
        yield from _table(_draft_rows(tuning))
        yield ""
    yield from _wrap(_verdict(tuning, mix, before, default))
    for note in tuning.notes:
        yield from _wrap(f"- {note}", "  ")


def _trial_rows(tuning: Tuning, mix: Mix) -> Iterator[Sequence[str]]:
    yield (
        "threads", "flash", "kernels", "KV", "token ms", f"{BATCH} tok ms", "prompt/s",
        "identical", "score", "",
    )  # fmt: skip
    for trial in sorted(tuning.trials, key=lambda trial: trial.score(mix)):
        setting, visit = trial.setting, trial.typical
        yield (
            str(setting.threads),
            _on(setting.flash_attention),
            _kernels(setting),
            setting.kv_type,
            f"{visit.token_s * 1e3:.1f}",
            f"{visit.batch_s * 1e3:.1f}",
            f"{1 / visit.prefill_s:.0f}",
            _identical(trial, tuning),
            f"{trial.score(mix):.2f}",
            "*" if trial is tuning.chosen else "",
        )


def _identical(trial: Trial, tuning: Tuning) -> str:
    """Return it from the longer measurement, where there was one."""
    for figures in (tuning.figures, tuning.other):
        if figures is not None and figures.name == trial.setting.name:
            return _up_to(figures.identical, figures.sizes[-1])
    return _up_to(trial.identical, trial.compared)


def _up_to(identical: int, compared: int) -> str:
    if identical <= 1:
        return "no"
    return f"to {identical}" + ("+" if identical == compared else "")


def _cost_lines(figures: SettingFigures) -> Iterator[str]:
    for start in range(0, len(figures.sizes), _COLUMNS):
        sizes = figures.sizes[start : start + _COLUMNS]
        yield f"{'n':>8}" + "".join(f"{n:6}" for n in sizes)
        for depth, seconds in zip(figures.depths, figures.seconds, strict=True):
            row = (seconds[start + i] / seconds[0] for i in range(len(sizes)))
            yield f"{depth:8}" + "".join(f"{cost:6.2f}" for cost in row)


def _draft_rows(tuning: Tuning) -> Iterator[Sequence[str]]:
    yield "draft threads", "step ms", "reading ms", "3 steps and a target step, ms", ""
    for i, trial in enumerate(tuning.drafts):
        found = trial.as_json()
        milliseconds = (found["step_s"], found["reading_s"], found["cycle_s"])
        cells = (f"{seconds * 1e3:.2f}" for seconds in milliseconds)
        yield str(trial.threads), *cells, "" if i else "*"


def _verdict(tuning: Tuning, mix: Mix, before: Setting | None, default: str) -> str:
    now = tuning.chosen.setting
    words = f"Engines open this model with {best_words(now)} from now on"
    if before == now:
        return f"Nothing changed: engines still open this model with {best_words(now)}."
    for trial in tuning.trials:
        if trial.setting == before or (before is None and trial.setting.name == default):
            if trial is tuning.chosen:
                return f"{words}, which is what they did anyway: the default is best here."
            gain = trial.score(mix) / tuning.chosen.score(mix)
            return f"{words}: a typical answer comes {gain:.2f} times as fast as until now."
    return f"{words}."


def best_words(best: Setting) -> str:
    """Describe a setting in words."""
    threads = f"{best.threads} thread{'s' if best.threads > 1 else ''}"
    return f"{threads}, flash attention {_on(best.flash_attention)}, {_LONG[_kernels(best)]}"


_LONG = {
    "own": "edgespec's kernels",
    "repack": "repacked weights",
    "llama": "weights as the file has them",
}


def _kernels(setting: Setting) -> str:
    """Say whose kernels, in one short word."""
    if setting.kernels == "edgespec":
        return "own"
    return "repack" if setting.repack else "llama"


def explanation_lines(found: Explanation, drafter: str) -> Iterator[str]:
    """Yield the report of `edgespec tune --explain`."""
    figures = found.figures
    state = "tuned" if found.tuned else "not tuned yet"
    if not figures.measured:
        state = "not measured: costs of other machines, corrected by use"
    yield from _wrap(
        f"{best_words(figures.setting)} ({state}). One token behind {found.depth:.0f} others, "
        f"half way through a typical answer, takes {found.token_s * 1e3:.1f} ms."
    )
    yield ""
    yield "v(n): cost of a batch of n tokens, in single tokens"
    yield from _cost_row(found.v)
    yield ""
    yield from _wrap(
        f"Free proposals that are always right would bring {found.ceiling.speedup:.2f}x, with "
        f"k = {found.ceiling.k}: {found.ceiling.tokens:.0f} tokens for {found.ceiling.cost:.2f}."
    )
    yield ""
    yield from _match_lines(found)
    if found.draft:
        yield ""
        yield from _draft_lines(found.draft, drafter)
    yield ""
    yield from _wrap(_achievement(found, drafter))
    yield ""
    yield "What would help most:"
    for line in _advice(found, drafter):
        yield from _wrap(f"- {line}", "  ")


def _cost_row(v: list[float]) -> Iterator[str]:
    for start in range(0, len(v), _COLUMNS):
        part = v[start : start + _COLUMNS]
        yield f"{'n':>8}" + "".join(f"{start + i + 1:6}" for i in range(len(part)))
        yield " " * 8 + "".join(f"{cost:6.2f}" for cost in part)


def _match_lines(found: Explanation) -> Iterator[str]:
    if not found.matches:
        yield "Prompt lookup: nothing known yet, as nothing was generated with it."
        return
    yield "Prompt lookup, by the number of tokens that match:"
    rows = [("match", "right", "scored", "best k", "tokens", "cost", "speedup")]
    for match in found.matches:
        best = match.best
        length = f"{match.length}+" if match.length == LONGEST_MATCH else match.length
        rows.append(
            (
                str(length),
                f"{match.right:.0%}",
                f"{match.trials:.0f}",
                str(best.k),
                f"{best.tokens:.2f}",
                f"{best.cost:.2f}",
                f"{best.speedup:.2f}x",
            )
        )
    yield from _table(rows)


def _draft_lines(draft: DraftModel, name: str) -> Iterator[str]:
    alpha = ", ".join(f"{rate:.2f}" for rate in draft.alpha)
    basis = f"from {draft.judged:.0f} proposals" if draft.judged else "assumed: never used yet"
    yield from _wrap(
        f"Draft {name}: a step takes {draft.step_s * 1e3:.2f} ms (c = {draft.c:.2f}), reading a "
        f"token {draft.reading_s * 1e3:.2f} ms. Accepted if all before it were, by position: "
        f"{alpha} ({basis})."
    )
    rows: list[Sequence[str]] = [("k", "tokens", "v(k+1)", "k c", "speedup", "")]
    for each in draft.speedups[: max(_SPEEDUPS, draft.best.k) + 1]:
        steps = each.k * draft.c
        cells = (each.tokens, each.cost - steps, steps)
        mark = "*" if each == draft.best else ""
        rows.append((str(each.k), *(f"{x:.2f}" for x in cells), f"{each.speedup:.2f}x", mark))
    yield from _table(rows)


def _achievement(found: Explanation, drafter: str) -> str:
    done = found.achieved
    if not done.cycles:
        return f"Achieved so far: nothing was generated with {drafter} and --k auto yet."
    if not done.speculated:
        return f"Achieved so far: {done.tokens} tokens were generated, and nothing was proposed."
    text = (
        f"Achieved: {done.tokens} tokens in {done.cycles} cycles, {done.tokens / done.cycles:.2f} "
        f"a cycle, {done.speedup:.2f}x plain decoding; the cost table says {found.planned:.2f}x "
        "for these cycles, drafting left out."
    )
    if found.draft and found.draft.judged:
        text += f" The best k alone would promise {found.draft.best.speedup:.2f}x."
    return text


def _advice(found: Explanation, drafter: str) -> list[str]:
    """Yield advice, the most promising first, each with its figure."""
    ranked: list[tuple[float, str]] = []
    if not found.tuned:
        flash = "on" if found.figures.flash_attention else "off"
        text = f"run `edgespec tune`: only flash attention {flash} was looked at here"
        ranked.append((float("inf"), f"{text}, at {found.token_s * 1e3:.1f} ms a token"))
    draft = found.draft
    if draft is None:
        ranked.append((found.ceiling.speedup, _draft_advice(found)))
    else:
        now = f"in place of {draft.best.speedup:.2f}x"
        ranked += [
            (
                draft.cheaper,
                f"a cheaper draft: {draft.cheaper:.2f}x if steps cost nothing, {now}",
            ),
            (
                draft.better,
                f"a better draft, or more training of this one (`edgespec distill`): "
                f"{draft.better:.2f}x if all it proposes were right, {now}",
            ),
            (
                draft.flatter,
                f"a quantization with flatter batches, such as Q4_0 where weights are repacked: "
                f"{draft.flatter:.2f}x if batches cost half as much beyond the first token, {now}",
            ),
        ]
    batch = min(BATCH, len(found.v))
    if draft is None and found.v[batch - 1] > batch / 2:
        text = f"another quantization: {batch} tokens cost {found.v[batch - 1]:.2f} here"
        ranked.append((1.0, f"{text}; Q4_0 is often flatter, where weights are repacked"))
    return [text for _, text in sorted(ranked, key=lambda each: -each[0])]


def _draft_advice(found: Explanation) -> str:
    if found.needed is None:
        return (
            f"no draft can help much: one whose steps cost {EXAMPLE_C} of the target's would not "
            f"pay even if always right (v(2) = {found.v[min(1, len(found.v) - 1)]:.2f})"
        )
    return (
        f"a draft model (`edgespec distill`, --draft): one whose steps cost {EXAMPLE_C} of the "
        f"target's brings 1.1x from {found.needed:.0%} acceptance on, and "
        f"{found.ceiling.speedup:.2f}x is the most there is"
    )


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows with columns set to the right, each as wide as it has to be."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(f"{cell:>{n}}" for cell, n in zip(line, widths, strict=True)).rstrip()


def write_plot(figures: SettingFigures, model: str, path: Path) -> None:
    """Draw v(n) by depth, and the speedup of proposals that are free and always right."""
    write_panels(
        path,
        lambda axes: _draw_costs(axes, figures, model),
        lambda axes: _draw_ceiling(axes, figures),
    )


def _draw_costs(axes: Axes, figures: SettingFigures, model: str) -> None:
    for label, colour, costs in _curves(figures):
        axes.plot(figures.sizes, costs, marker="o", markersize=4, color=colour, label=label)
    axes.plot(
        figures.sizes,
        figures.sizes,
        color="0.4",
        linewidth=1,
        linestyle="--",
        label="as many single tokens",
    )
    axes.set_title(f"{model}: cost of a batch, {figures.name}", loc="left")
    axes.set_xlabel("tokens of the batch, n")
    axes.set_ylabel("v(n), in single tokens")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_ceiling(axes: Axes, figures: SettingFigures) -> None:
    for label, colour, costs in _curves(figures):
        gains = [n / cost for n, cost in zip(figures.sizes, costs, strict=True)]
        proposals = [n - 1 for n in figures.sizes]
        axes.plot(proposals, gains, marker="o", markersize=4, color=colour, label=label)
    axes.axhline(1, color="0.4", linewidth=1, linestyle="--", label="plain decoding")
    axes.set_title("The most that speculation could bring: (k + 1) / v(k + 1)", loc="left")
    axes.set_xlabel("proposals, k")
    axes.set_ylabel("speedup")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _curves(figures: SettingFigures) -> list[tuple[str, str, list[float]]]:
    return [
        (f"{depth} tokens of context", colour, [s / seconds[0] for s in seconds])
        for depth, seconds, colour in zip(figures.depths, figures.seconds, _COLOURS, strict=False)
    ]
