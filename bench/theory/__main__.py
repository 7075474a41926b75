"""Does theory predict what speculation brings? Compare predicted and measured speedups.

    python -m bench.theory [MODEL] [--draft auto] [--k 1 3 5 | auto] [--tasks FILE]
                           [--categories NAME ...] [--limit N] [--temperature 0] [--tokens 96]
                           [--rounds 3] [--ctx 2048] [--json FILE] [--png FILE]

First v(n) is measured at several depths, and the cost of drafting. Then, in every round, every
task is done plainly and with every k, one after the other in random order. The measured speedup is
plain seconds per token / speculative seconds per token, from the end of the prompt to the last
text; shown is the median round. The predictions are

    A  Leviathan et al. (2023), theorem 3.8: tokens per cycle from the prompt's alpha by position,
       over v(k + 1) + k c at its mean depth, for the block lengths that happened
    B  the costs of the cycles that happened, each at its depth

B / A has two parts: what alpha brings by varying along the text, compared with one alpha for all
positions (column alpha), and costs that the theorem leaves out (column costs), such as a draft that
reads the prompt. Measured / B is the product of the factors to the right of "both"; a factor above
1 makes the speedup greater than predicted. "both" is by how much both sides alike were slower than
measured before; it cancels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.command import Parser
from edgespec.errors import EdgespecError, UsageError
from edgespec.pictures import check_picture_path
from edgespec.runtime.options import EngineOptions
from edgespec.sampling.parameters import SamplingParameters


def read_k(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a number above 0")
    return int(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


parser = Parser("theory", __doc__)
parser.add_argument("model", nargs="?")
parser.add_argument("--draft", default="auto")
parser.add_argument("--k", nargs="+", type=read_k, default=[1, 3, 5], help="numbers, or auto")
parser.add_argument("--tasks", type=Path, help="in the form of Spec-Bench's questions")
parser.add_argument("--categories", nargs="+", default=[])
parser.add_argument("--limit", type=positive, help="tasks of each category")
parser.add_argument("--temperature", type=float, default=0.0)
parser.add_argument("--tokens", type=positive, default=96, help="most tokens of an answer")
parser.add_argument("--rounds", type=positive, default=3)
parser.add_argument("--ctx", type=positive, default=2048)
parser.add_argument("--json", type=Path)
parser.add_argument("--png", type=Path)


def check(arguments: argparse.Namespace) -> None:
    """Refuse before any work what would fail after it.

    Raises:
        UsageError: something would.
    """
    if arguments.draft == "none":
        raise UsageError("--draft none is what is compared with: choose a draft, or auto")
    if arguments.png is not None:
        check_picture_path(arguments.png)
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise UsageError(f"{arguments.json}: there is no folder {arguments.json.parent}")
    SamplingParameters(temperature=arguments.temperature)
    for k in arguments.k:
        EngineOptions(draft=arguments.draft, k=k)


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser.parse_args(words)
    try:
        check(arguments)
        from bench.theory.picture import write_scatter
        from bench.theory.report import make_report, show

        found = make_report(arguments)
    except EdgespecError as error:
        return parser.report(error)
    show(found["rows"], found["summary"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found) + "\n")
    if arguments.png is not None:
        settings = found["settings"]
        title = f"{settings['model']}, draft {settings['draft']}"
        write_scatter(found["rows"], title, arguments.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
