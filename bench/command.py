"""The command line that all benchmarks share: `python -m bench.NAME`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from edgespec.errors import EdgespecError

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """Arguments of one benchmark; whatever is wrong is told in one line.

    Args:
        name: as in `python -m bench.NAME`.
        text: the module's docstring, whose first line describes the benchmark.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"python -m bench.{name}", description=text.partition("\n")[0])

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")

    def report(self, error: EdgespecError) -> int:
        """Print an error of edgespec's, and return the exit status it stands for."""
        print(f"{self.prog}: {error}", file=sys.stderr)
        return error.exit_status
