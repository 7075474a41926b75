"""Does decoding collapse beside other programs? Fixed numbers of threads against the adaptive one.

    python -m bench.busy --busy 0 1 4 --rounds 3 --seconds 6

Other programs are processes that do nothing but run. Every setting decodes plainly for some
seconds, in turns; the adaptive one starts anew each time, as a new answer does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic

import numpy as np

from bench.command import Parser
from edgespec.backend import Context, ContextOptions, Model, ModelOptions
from edgespec.benchmark.measuring import machine_facts
from edgespec.gguf.header import read_header
from edgespec.registry.resolve import resolve
from edgespec.runtime.processors import SpareProcessors, default_threads
from edgespec.tuning.exactness import faster_formats

ADAPTIVE = "adaptive"
DEPTH = 64


def main() -> None:
    arguments = parse()
    path = resolve(arguments.model).path
    threads = default_threads()
    names = [*(str(n) for n in range(1, threads + 1)), ADAPTIVE]
    speeds: dict[int, dict[str, list[float]]] = {n: {} for n in arguments.busy}
    options = ModelOptions(faster_formats(read_header(path)), threads)
    with Model(path, options) as model:
        for number in range(arguments.rounds):
            for busy in arguments.busy:
                order = names if number % 2 == 0 else names[::-1]
                with programs(busy):
                    for name in order:
                        speed = decode(model, name, threads, arguments.seconds)
                        speeds[busy].setdefault(name, []).append(speed)
    for line in report(speeds, names):
        print(line)
    if arguments.json:
        facts = {"machine": machine_facts(), "threads": threads, "tokens_per_second": speeds}
        arguments.json.write_text(json.dumps(facts, indent=2))


def parse() -> argparse.Namespace:
    parser = Parser("busy", __doc__ or "")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 4], help="other programs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each setting")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


@contextmanager
def programs(count: int) -> Iterator[None]:
    """Run so many programs that want a processor each."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def decode(model: Model, name: str, threads: int, seconds: float) -> float:
    """Tokens per second of plain greedy decoding."""
    room: Callable[[], int] | None = None
    if name == ADAPTIVE:
        room = SpareProcessors().look
    else:
        threads = int(name)
    options = ContextOptions(length=2048, threads=threads, outputs=1, room=room)
    token = np.full(1, 1, np.int32)
    with Context(model, options) as context:
        context.prefill(np.repeat(token, DEPTH))
        count, started = 0, monotonic()
        while monotonic() - started < seconds:
            if context.length == context.capacity:
                context.truncate(DEPTH)
            token[0] = context.evaluate(token, 1)[0].argmax()
            count += 1
        return count / (monotonic() - started)


def report(speeds: dict[int, dict[str, list[float]]], names: list[str]) -> Iterator[str]:
    yield f"{'programs':<10}" + "".join(f"{name:>12}" for name in names) + "    of the best fixed"
    for busy, found in speeds.items():
        medians = {name: median(found[name]) for name in names}
        best = max(value for name, value in medians.items() if name != ADAPTIVE)
        row = "".join(f"{medians[name]:12.1f}" for name in names)
        yield f"{busy:<10}{row}{medians[ADAPTIVE] / best:12.2f}"


if __name__ == "__main__":
    main()
