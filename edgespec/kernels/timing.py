"""How long our kernels take for a format on this machine, and how long llama.cpp's do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from edgespec.kernels.check import sample_weights
from edgespec.kernels.device import Device
from edgespec.kernels.formats import Format
from edgespec.kernels.operations import Backend, Operation, cpu_device, repacking_buffers

__all__ = ["FormatTimes", "time_format"]


class FormatTimes(NamedTuple):
    """Seconds of a multiplication, by columns.

    Attributes:
        ours: by our kernels.
        theirs: by the faster of llama.cpp's, with weights as in the file or rearranged.
    """

    ours: dict[int, float]
    theirs: dict[int, float]


def time_format(
    device: Device,
    library: Any,
    format: Format,
    *,
    threads: int,
    columns: Sequence[int],
    width: int = 2048,
    height: int = 2048,
    seconds: float,
) -> FormatTimes:
    """Multiply random weights, the rivals taking turns; the best of all rounds counts.

    Args:
        seconds: after which no round is begun but the first two.

    Weights are far larger than one core's caches but not than the last level's: enough to tell
    which kernels are faster, in a fraction of a second.
    """
    weights = sample_weights(format, height, width, 1)[None]
    x = np.random.default_rng(2).standard_normal((max(columns), width)).astype(np.float32)
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Backend(library, device.address, threads)))
        cpu = stack.enter_context(closing(Backend(library, cpu_device(library), threads)))
        rearranged = repacking_buffers(library, format.type, width, height)
        places = [(ours, device.buffer_type), *((cpu, place) for place in (None, *rearranged))]
        rivals = [
            stack.enter_context(closing(Operation(backend, place, format.type, weights, width)))
            for backend, place in places
        ]
        best: list[dict[int, float]] = [{} for _ in rivals]
        started, finished = perf_counter(), 0
        while finished < 2 or perf_counter() - started < seconds:
            finished += 1
            for rival, times in zip(rivals, best, strict=True):
                for count in columns:
                    _, taken = rival.multiply(x[:count], 2)
                    times[count] = min(times.get(count, 1e9), *taken)
    theirs = {count: min(times[count] for times in best[1:]) for count in columns}
    return FormatTimes(best[0], theirs)
