"""One multiplication of every format: bytes and products per second, by columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from edgespec.backend import kernel_status, time_formats
from edgespec.kernels.formats import FORMATS
from edgespec.kernels.isa import INSTRUCTION_SETS, VARIABLE, runnable

__all__ = ["COLUMNS", "measure_formats"]

COLUMNS = (1, 2, 4, 6, 8, 16, 64)
WIDTH = HEIGHT = 2048


def measure_formats(threads: int) -> dict[str, Any]:
    """By instruction set that this machine can run, then by format; each in its own process."""
    found = {}
    for name, isa in INSTRUCTION_SETS.items():
        if runnable(isa):
            command = [sys.executable, "-m", "bench.kernels.formats", str(threads)]
            run = subprocess.run(
                command,
                env={**os.environ, VARIABLE: name},
                capture_output=True,
                text=True,
                check=True,
            )
            found[name] = json.loads(run.stdout)
    return found


def _main() -> None:
    kernel_status()
    figures: dict[str, Any] = {}
    for format in FORMATS.values():
        times = time_formats([format.name], threads=int(sys.argv[1]), columns=COLUMNS, seconds=1.0)
        if format.name in times:
            size = WIDTH * HEIGHT // format.weights * format.block
            found = times[format.name]
            figures[format.name] = {
                side: {
                    str(n): {"GB/s": size / s / 1e9, "GMAC/s": n * WIDTH * HEIGHT / s / 1e9}
                    for n, s in seconds.items()
                }
                for side, seconds in (("edgespec", found.ours), ("llama.cpp", found.theirs))
            }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    _main()
