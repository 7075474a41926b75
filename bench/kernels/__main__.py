"""Compare edgespec's kernels with llama.cpp's, in turns, in one run.

    python -m bench.kernels [MODEL.gguf ...] [--depth 256] [--threads N] [--rounds 9] [--divergence]
                            [--formats] [--json FILE] [--png FILE]

For each model: one token, v(n), prompts, up to which batch logits are bit-identical to those of
single tokens; with --divergence also how far all are from the weights in float32. With --formats
every format is multiplied by itself, on each instruction set that this machine has. Ratios are of
the same round, over the better of llama.cpp's two: with flash attention and without. Shown are
medians with 95% bootstrap intervals.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.command import Parser
from bench.kernels.formats import measure_formats
from bench.kernels.models import SIZES, ModelFigures, measure_divergence, measure_model
from bench.kernels.texts import write_float32
from edgespec.backend import kernel_status
from edgespec.benchmark.results import median_interval
from edgespec.errors import EdgespecError
from edgespec.runtime.processors import default_threads

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def main() -> int:
    parser = Parser("kernels", __doc__ or "")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--depth", type=int, default=256, help="tokens in the cache")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--divergence", action="store_true")
    parser.add_argument("--formats", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except EdgespecError as error:
        return parser.report(error)


def _run(arguments: Any) -> int:
    status = kernel_status()
    if status.instruction_set is None:
        print(f"edgespec's kernels cannot be used here: {status.reason}", file=sys.stderr)
        return 1
    report: dict[str, Any] = {"instruction_set": status.instruction_set, **_machine()}
    found = []
    for path in arguments.models:
        figures = measure_model(
            path,
            depth=arguments.depth,
            threads=arguments.threads,
            rounds=arguments.rounds,
            note=lambda text: print(text, file=sys.stderr),
        )
        divergence = _divergence(path, arguments.threads) if arguments.divergence else None
        found.append(figures)
        report.setdefault("models", []).append(_as_json(figures, divergence))
        print(_text(figures, divergence))
    if arguments.formats:
        report["formats"] = measure_formats(arguments.threads)
        print(_format_text(report["formats"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    if arguments.png and found:
        from edgespec.pictures import write_panels

        write_panels(arguments.png, *(partial(_draw, figures=each) for each in found))
    return 0


def _machine() -> dict[str, Any]:
    return {"machine": platform.machine(), "system": platform.platform()}


def _divergence(path: Path, threads: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "float32.gguf"
        write_float32(path, exact)
        return measure_divergence(path, exact, threads=threads)


def _as_json(figures: ModelFigures, divergence: dict[str, float] | None) -> dict[str, Any]:
    return {
        "model": figures.model,
        "depth": figures.depth,
        "threads": figures.threads,
        "token_ratio": figures.time_ratio(1),
        "block_of_4_ratio": figures.time_ratio(4),
        "prefill_ratio": figures.prefill_ratio(),
        "kl_from_float32": divergence,
        "sides": {
            name: {
                "token_s": median_interval(side.seconds[1]),
                "v": {str(n): interval for n, interval in side.relative().items()},
                "prefill_per_s": median_interval(side.prefill),
                "identical": side.identical,
                "seconds": {str(n): times for n, times in side.seconds.items()},
                "prefill": side.prefill,
            }
            for name, side in figures.sides.items()
        },
    }


def _text(figures: ModelFigures, divergence: dict[str, float] | None) -> str:
    lines = [f"\n{figures.model}, {figures.depth} tokens in the cache, {figures.threads} threads"]
    lines.append(
        f"{'':16} token ms  prompt/s  identical  v(n): " + "".join(f"{n:6}" for n in SIZES[1:])
    )
    for name, side in figures.sides.items():
        token, prefill = median_interval(side.seconds[1]), median_interval(side.prefill)
        costs = "".join(f"{side.relative()[n]['median']:6.2f}" for n in SIZES[1:])
        lines.append(
            f"{name:16} {token['median'] * 1e3:8.2f} {prefill['median']:9.0f} "
            f"{'to ' + str(side.identical):>10}        {costs}"
        )
    for words, figure in (
        ("one token", figures.time_ratio(1)),
        ("four tokens", figures.time_ratio(4)),
        ("prompts", figures.prefill_ratio()),
    ):
        lines.append(
            f"  {words}: {figure['median']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"
        )
    if divergence is not None:
        ratio = divergence["edgespec"] / divergence["llama.cpp"]
        each = ", ".join(f"{name} {value:.5f}" for name, value in divergence.items())
        lines.append(f"  KL from float32: {each}; edgespec's is {ratio:.2f} of llama.cpp's")
    return "\n".join(lines)


def _format_text(formats: dict[str, Any]) -> str:
    lines = []
    for isa, figures in formats.items():
        lines.append(f"\n{isa}: GMAC/s by columns, edgespec's / llama.cpp's")
        for name, sides in figures.items():
            cells = (
                f"{n}: {ours['GMAC/s']:.0f}/{sides['llama.cpp'][n]['GMAC/s']:.0f}"
                for n, ours in sides["edgespec"].items()
            )
            lines.append(f"  {name:7} " + "  ".join(cells))
    return "\n".join(lines)


def _draw(axes: Axes, figures: ModelFigures) -> None:
    for name, side in figures.sides.items():
        costs = side.relative()
        axes.plot(list(costs), [cost["median"] for cost in costs.values()], marker="o", label=name)
    axes.set_title(f"{figures.model}: cost of a batch, in single tokens")
    axes.set_xlabel("tokens")
    axes.set_ylabel("v(n)")
    axes.legend()


if __name__ == "__main__":
    sys.exit(main())
