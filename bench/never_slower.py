"""Is adaptive speculation ever slower than plain decoding? Compare them on many workloads.

    python -m bench.never_slower [MODEL] [--draft auto] [--rounds 5] [--tokens 128]
                                 [--temperature 0 0.8] [--workload KIND ...]
                                 [--fresh] [--json FILE]

For every conversation, a plain run (--draft none) and an adaptive one (--draft as given, with
--k auto) follow each other in random order. Ratios are adaptive / plain of one round: of tokens per
second of decoding, and of seconds to the first tokens of all turns. The table has the medians of
each kind of conversations, with 95% bootstrap intervals. At temperature 0 texts are compared.

With --fresh the first use is compared: nothing was learned or measured before, and both engines are
opened anew for every run. The time to open them, with their measurement, is reported separately.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.cache import private_cache
from bench.command import Parser
from edgespec.benchmark.measuring import WORKLOADS, machine_facts
from edgespec.benchmark.results import median_interval

if TYPE_CHECKING:
    from edgespec import Engine
    from edgespec.control.controller import CycleTiming

SIDES = ("plain", "adaptive")
FIGURES = ("tokens_per_second", "first_token_s")


class Side:
    """Plain or adaptive: an engine, kept open or opened anew for every run."""

    def __init__(self, model: str | None, draft: str, context: int, fresh: Path | None) -> None:
        self._model, self._draft, self._context, self._fresh = model, draft, context, fresh
        self._engine: Engine | None = None
        self.opening_s: list[float] = []

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        if self._engine is None:
            self._engine = self._open()
        yield self._engine
        if self._fresh is not None:
            self.close()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _open(self) -> Engine:
        from edgespec import Engine, EngineOptions

        if self._fresh is not None:
            shutil.rmtree(self._fresh / "measurements", ignore_errors=True)
        started = perf_counter()
        engine = Engine(self._model, EngineOptions(draft=self._draft, context=self._context))
        self.opening_s.append(perf_counter() - started)
        return engine


def converse(engine: Engine, messages: list[str], sampling: Any, count: int) -> dict[str, Any]:
    """Have one conversation, starting from an empty cache."""
    from edgespec import GenerationLimits, Session

    engine.forget()
    session = Session(engine, None, sampling, GenerationLimits(max_tokens=count))
    first_s, decode_s, tokens, speculation, cycles = 0.0, 0.0, [], [], []
    with engine.observing(lambda told: cycles.append((told.timing, told.predicted_s))):
        for message in messages:
            started = perf_counter()
            turn = session.send(message)
            next(iter(turn), None)
            first_s += perf_counter() - started
            result = turn.result
            tokens.append(list(result.tokens))
            decode_s += result.statistics.decode_s
            speculation.append(result.statistics.speculation())
    emitted = sum(map(len, tokens))
    return {
        "tokens": tokens,
        "tokens_per_second": emitted / decode_s,
        "first_token_s": first_s,
        "speculation": speculation,
        "cycles": cycles,
    }


def measure(
    sides: dict[str, Side], messages: list[str], temperature: float, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Have one conversation in all rounds, and return the figures of both sides."""
    from edgespec import SamplingParameters

    samples: dict[str, Any] = {name: {figure: [] for figure in FIGURES} for name in SIDES}
    last: dict[str, Any] = {}
    same, cycles = True, []
    for turn in range(-arguments.warm_up, arguments.rounds):
        sampling = SamplingParameters(temperature=temperature, seed=max(0, turn))
        for name in random.sample(SIDES, len(SIDES)):
            with sides[name].engine() as engine:
                last[name] = converse(engine, messages, sampling, arguments.tokens)
            if turn >= 0:
                for figure in FIGURES:
                    samples[name][figure].append(last[name][figure])
        same &= last["plain"]["tokens"] == last["adaptive"]["tokens"]
        if turn >= 0:
            cycles += last["adaptive"]["cycles"]
    return {
        "samples": samples,
        "tokens": sum(map(len, last["adaptive"]["tokens"])),
        "same_tokens": same if temperature == 0 else None,
        "speculation": last["adaptive"]["speculation"],
        "cycles_by_size": by_size(cycles),
    }


def by_size(cycles: list[tuple[CycleTiming, float | None]]) -> dict[str, dict[str, float]]:
    """Return means over adaptive cycles, by how many tokens they evaluated."""
    table = {}
    for n in sorted({timing.evaluated for timing, _ in cycles}):
        part = [(timing, predicted) for timing, predicted in cycles if timing.evaluated == n]
        known = [predicted for _, predicted in part if predicted is not None]
        table[str(n)] = {
            "cycles": len(part),
            "emitted": float(np.mean([timing.emitted for timing, _ in part])),
            "draft_s": float(np.mean([timing.draft_s for timing, _ in part])),
            "verify_s": float(np.mean([timing.verify_s for timing, _ in part])),
            "predicted_s": float(np.mean(known)) if known else None,
        }
    return table


def ratios(rows: list[dict[str, Any]], figure: str) -> dict[str, float]:
    """Return adaptive / plain over all rounds of these rows."""
    pairs = [(row["samples"]["adaptive"][figure], row["samples"]["plain"][figure]) for row in rows]
    return median_interval(np.concatenate([np.divide(*pair) for pair in pairs]))


def summarize(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one line of the table, for conversations at one temperature."""
    passes = sum(turn["cycles"] for row in rows for turn in row["speculation"])
    return {
        "temperature": rows[0]["temperature"],
        "kind": kind,
        **{figure: ratios(rows, figure) for figure in FIGURES},
        "tokens_per_cycle": sum(row["tokens"] for row in rows) / passes,
        "same_tokens": all(row["same_tokens"] is not False for row in rows),
    }


def show(line: dict[str, Any]) -> None:
    speed, first = (_interval(line[figure]) for figure in FIGURES)
    texts = "" if line["same_tokens"] else "  TEXTS DIFFER"
    print(
        f"{line['temperature']:<4g} {line['kind']:13} {speed:20}  {first:20}  "
        f"{line['tokens_per_cycle']:.2f}{texts}",
        flush=True,
    )


def _interval(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def main() -> None:
    parser = Parser("never_slower", __doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--fresh", action="store_true", help="measure the first use")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.warm_up = 0 if arguments.fresh else 1
    with ExitStack() as stack:
        # Before anything that would read the user's profile is imported.
        folder = stack.enter_context(private_cache(measurements=False)) if arguments.fresh else None
        run(arguments, folder)


def run(arguments: argparse.Namespace, folder: Path | None) -> None:
    from edgespec.runtime.loading import warm_up

    warm_up()
    drafts = {"plain": "none", "adaptive": arguments.draft}
    sides = {
        name: Side(arguments.model, draft, arguments.ctx, folder) for name, draft in drafts.items()
    }
    with sides["adaptive"].engine() as engine:
        settings = {
            "model": engine.model_name,
            "draft": engine.drafter_name,
            "exactness": engine.exactness.as_json(),
            "threads": engine.target.options.threads,
            "context": arguments.ctx,
            "rounds": arguments.rounds,
            "tokens": arguments.tokens,
            "fresh": arguments.fresh,
        }
    facts = machine_facts()
    rows, lines = [], []
    print(f"{'':18} {'tokens/s':20}  {'first token':20}  tokens/cycle", flush=True)
    for temperature in arguments.temperature:
        for kind in arguments.workload:
            for messages in WORKLOADS[kind]:
                row = measure(sides, messages, temperature, arguments)
                rows.append({"kind": kind, "temperature": temperature, **row})
            lines.append(summarize(kind, rows[-len(WORKLOADS[kind]) :]))
            show(lines[-1])
        lines.append(summarize("all", [row for row in rows if row["temperature"] == temperature]))
        show(lines[-1])
    for side in sides.values():
        side.close()
    opening = {name: float(np.median(side.opening_s)) for name, side in sides.items()}
    print(f"\nOpened in {opening['plain']:.1f} s plain, {opening['adaptive']:.1f} s adaptive.")
    if arguments.json:
        report = {
            "machine": facts,
            "settings": settings,
            "opening_s": {name: side.opening_s for name, side in sides.items()},
            "summary": lines,
            "conversations": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
