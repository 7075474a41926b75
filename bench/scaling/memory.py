"""How much memory each component takes, beside the estimate of `edgespec.runtime.memory`.

Every context is opened in a process of its own, `bench.scaling.resident`, as memory that another
one had freed would hide what this one takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

from bench.scaling.chart import LINE, Chart, Series, Setup, sizes_up_to
from edgespec.backend import ContextOptions
from edgespec.errors import BackendError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.runtime.memory import MemoryEstimate, estimate
from edgespec.runtime.options import EngineOptions

__all__ = ["components", "measure_memory"]

CONTEXTS = (512, 1024, 2048, 4096)
PROGRAM = ("interpreter and NumPy", "Numba", "llama.cpp", "kernels")
ESTIMATED = ("weights, mapped", "weights, copied", "KV cache", "compute")
GROWING = ("KV cache", "compute")
OTHERS = ("drafter and decoder", "a kept cache")
_MIB = 1 << 20

Parts = dict[str, float]


def measure_memory(setup: Setup) -> list[Chart]:
    """Measure MiB of the program, of the model at the longest context, and by context."""
    header = read_header(setup.model)
    contexts = sizes_up_to(min(setup.deepest, header.context_length), CONTEXTS)
    measured = [
        [components(_steps(setup, context)) for context in contexts] for _ in range(setup.rounds)
    ]
    estimates = [_estimated(header, context, setup) for context in contexts]
    return _charts(contexts, measured, estimates)


def components(steps: Iterable[tuple[str, int, int]]) -> Parts:
    """Return the MiB that each step added.

    Pages of the model's file are "weights, mapped", whenever they were first read. All else that
    loading took, such as the vocabulary, is "weights, copied". Where the system does not tell
    pages of files apart, everything is "copied".

    Args:
        steps: names, resident bytes, and bytes of those that are a file's, from
            `bench.scaling.resident`.
    """
    parts: Parts = {}
    resident = files = 0
    for name, new_resident, new_files in steps:
        more, more_files = (new_resident - resident) / _MIB, (new_files - files) / _MIB
        resident, files = new_resident, new_files
        if name == "weights":
            parts["weights, mapped"] = 0.0
        if "weights, mapped" in parts:
            parts["weights, mapped"] += more_files
            more -= more_files
        parts["weights, copied" if name == "weights" else name] = more
    return parts


def _steps(setup: Setup, context: int) -> list[tuple[str, int, int]]:
    command = [sys.executable, "-m", "bench.scaling.resident", str(setup.model)]
    command += ["--ctx", str(context), "--threads", str(setup.threads)]
    command += ["--flash-attention"] if setup.flash_attention else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BackendError(f"memory with a context of {context} tokens: {reason}")
    return [tuple(step) for step in json.loads(done.stdout)]  # type: ignore[misc]


def _estimated(header: GGUFHeader, context: int, setup: Setup) -> Parts:
    found: MemoryEstimate = estimate(
        header,
        context=context,
        batch=ContextOptions().batch,
        outputs=EngineOptions().most + 1,
        flash_attention=setup.flash_attention,
        repack=True,
    )
    mapped, copied = found.weights - found.reclaimable, found.reclaimable
    sizes = (mapped, copied, found.kv_cache, found.compute)
    return {name: size / _MIB for name, size in zip(ESTIMATED, sizes, strict=True)}


def _charts(
    contexts: list[int], measured: list[list[Parts]], estimates: list[Parts]
) -> list[Chart]:
    last = [*estimates[-1].values()]
    taken = [[row[-1][name] for name in ESTIMATED] for row in measured]
    by_context = [
        Series(name, [[parts[name] for parts in row] for row in measured], LINE)
        for name in (*GROWING, *OTHERS)
    ]
    by_context += [
        Series(f"{name}, estimated", [[parts[name] for parts in estimates]], LINE)
        for name in GROWING
    ]
    return [
        Chart(
            "MiB of the program that each component adds to those before",
            "component",
            "",
            PROGRAM,
            [Series("measured", [[row[-1][name] for name in PROGRAM] for row in measured])],
        ),
        Chart(
            f"MiB of the model, with a context of {contexts[-1]} tokens",
            "component",
            "",
            (*ESTIMATED, "all of these"),
            [
                Series("measured", [[*row, sum(row)] for row in taken]),
                Series("estimated", [[*last, sum(last)]]),
                Series("measured - estimated", _differences(taken, last)),
            ],
        ),
        Chart("MiB by the length of the context", "tokens, c", "c", contexts, by_context),
    ]


def _differences(taken: list[list[float]], estimated: list[float]) -> list[list[float]]:
    rows = [[a - b for a, b in zip(row, estimated, strict=True)] for row in taken]
    return [[*row, sum(row)] for row in rows]
