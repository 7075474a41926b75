"""How do costs and memory grow with context, vocabulary, k, answers and conversations?

    python -m bench.scaling [MODEL] [--only context vocabulary k length sessions memory]
                            [--deepest 8000] [--tokens 2048] [--rounds 5] [--threads N]
                            [--flash-attention] [--json FILE] [--png FOLDER]

Each part measures all of its sizes once per round. It shows medians over the rounds with 95%
bootstrap intervals, and a least-squares fit: its formula, its coefficients with the intervals of
their medians over the rounds, and the root mean square of the residuals. The file of --json is
rewritten after every part, so that an interrupted run keeps what it found; --png writes PART.png
into a folder.

Earlier measurements of this machine are used. What prompt lookup learns here is not kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.cache import private_cache
from bench.command import Parser
from edgespec.errors import EdgespecError, UsageError
from edgespec.pictures import check_picture_path
from edgespec.runtime.processors import default_threads

PARTS = ("context", "vocabulary", "k", "length", "sessions", "memory")
_LEAST = {"deepest": 32, "tokens": 16, "rounds": 1, "threads": 1}

parser = Parser("scaling", __doc__)
parser.add_argument("model", nargs="?")
parser.add_argument(
    "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART",
    help=f"of {', '.join(PARTS)}",
)  # fmt: skip
parser.add_argument("--deepest", type=int, default=8000, help="tokens of the longest context")
parser.add_argument("--tokens", type=int, default=2048, help="tokens of the longest answer")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", type=int, default=default_threads())
parser.add_argument("--flash-attention", action="store_true")
parser.add_argument("--json", type=Path)
parser.add_argument("--png", type=Path, help="a folder for the pictures")


def check(wanted: argparse.Namespace) -> None:
    """Refuse before any work what could not be done.

    Raises:
        UsageError: a number out of range, or no such folder.
    """
    for name, number in _LEAST.items():
        given = getattr(wanted, name)
        if given < number:
            raise UsageError(f"--{name} is {given}: it has to be {number} or more")
    if wanted.json and not wanted.json.parent.is_dir():
        raise UsageError(f"{wanted.json}: there is no folder {wanted.json.parent}")
    if wanted.png:
        check_picture_path(wanted.png / "part.png")


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = parser.parse_args(arguments)
    try:
        check(wanted)
        with private_cache(measurements=True):
            from bench.scaling.parts import measure_parts

            measure_parts(wanted)
    except EdgespecError as error:
        return parser.report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
