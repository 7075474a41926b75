"""How cost grows: with context, vocabulary, k, length of the answer, conversations; and memory.

    python bench/scaling.py [MODEL] [--only context vocabulary k length sessions memory]
                            [--deepest 8000] [--tokens 2048] [--rounds 5] [--threads N]
                            [--flash-attention] [--json FILE] [--png FOLDER]

Each part measures its sizes in turns, in every round once, and shows medians over the rounds with
95% bootstrap intervals, and a least-squares fit: its formula, its coefficients with the intervals
of their medians over the rounds, and the root mean square of what is left. The file of --json is
written anew after every part, so that a run that is interrupted leaves what it has found; --png
writes PART.png into a folder.

What endless answers teach prompt lookup is forgotten in the end; what was measured on this
machine before is used.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from bench.scaling.block import measure_k
from bench.scaling.chart import Chart, Setup, show
from bench.scaling.context import measure_context
from bench.scaling.length import measure_length
from bench.scaling.memory import measure_memory
from bench.scaling.pictures import write_charts
from bench.scaling.sessions import measure_sessions
from bench.scaling.vocabulary import measure_vocabulary
from edgespec.benchmark.machine import machine_facts
from edgespec.errors import EdgespecError, UsageError
from edgespec.files import cache_root
from edgespec.pictures import check_picture_path
from edgespec.registry.resolve import resolve
from edgespec.runtime.options import default_threads

PARTS: dict[str, Callable[[Setup], list[Chart]]] = {
    "context": measure_context,
    "vocabulary": measure_vocabulary,
    "k": measure_k,
    "length": measure_length,
    "sessions": measure_sessions,
    "memory": measure_memory,
}
_SHARED = ("kernels", "models")  # of the cache folder


class Parser(argparse.ArgumentParser):
    """One line says what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("scaling.py", description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
        help=f"of {', '.join(PARTS)}",
    )  # fmt: skip
    parser.add_argument("--deepest", type=int, default=8000, help="tokens of the longest context")
    parser.add_argument("--tokens", type=int, default=2048, help="of the longest answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--flash-attention", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path, help="a folder")
    return parser.parse_args(arguments)


def check(wanted: argparse.Namespace) -> None:
    """Say before any work what could not be done.

    Raises:
        UsageError: a number out of range, or no such folder.
    """
    least = {"deepest": 32, "tokens": 16, "rounds": 1, "threads": 1}
    for name, number in least.items():
        given = getattr(wanted, name)
        if given < number:
            raise UsageError(f"--{name} is {given}: it has to be {number} or more")
    if wanted.json and not wanted.json.parent.is_dir():
        raise UsageError(f"{wanted.json}: there is no folder {wanted.json.parent}")
    if wanted.png:
        check_picture_path(wanted.png / "part.png")


@contextmanager
def copied_cache() -> Iterator[None]:
    """For a while a copy of what was measured and learned, in place of the user's."""
    root, before = cache_root(), os.environ.get("EDGESPEC_CACHE")
    with tempfile.TemporaryDirectory() as name:
        for shared in _SHARED:
            (root / shared).mkdir(parents=True, exist_ok=True)
            (Path(name) / shared).symlink_to((root / shared).resolve())
        if (root / "measurements").is_dir():
            shutil.copytree(root / "measurements", Path(name) / "measurements")
        os.environ["EDGESPEC_CACHE"] = name
        try:
            yield
        finally:
            os.environ.pop("EDGESPEC_CACHE")
            if before is not None:
                os.environ["EDGESPEC_CACHE"] = before


def run(wanted: argparse.Namespace, setup: Setup) -> None:
    report: dict[str, Any] = {
        "machine": machine_facts(),
        "settings": {**setup._asdict(), "model": setup.model.name},
        "parts": {},
    }
    for part in dict.fromkeys(wanted.only):
        charts = PARTS[part](setup)
        for chart in charts:
            show(chart)
        report["parts"][part] = [chart.as_json() for chart in charts]
        if wanted.json:
            wanted.json.write_text(json.dumps(report, indent=2) + "\n")
        if wanted.png:
            write_charts(charts, wanted.png / f"{part}.png")


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = parse(arguments)
    try:
        check(wanted)
        with copied_cache():
            model = resolve(wanted.model).path
            own = {name: getattr(wanted, name) for name in Setup._fields if name != "model"}
            run(wanted, Setup(model, **own))
    except EdgespecError as error:
        print(f"scaling.py: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
