"""The cost curve of a model on this machine."""

from __future__ import annotations

from edgespec.backend import Context, ContextOptions, Model
from edgespec.lab.reading import Curve, read_curve
from edgespec.registry.progress import Progress, silent
from edgespec.registry.resolve import resolve
from edgespec.runtime.options import default_threads
from edgespec.tuning.measure import measure_cost

__all__ = ["measured_curve"]

_DEPTH = 256
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)


def measured_curve(model: str | None, download: Progress = silent) -> Curve:
    """Measure v(n) up to n = 17 at 256 tokens of context.

    Args:
        model: a path, a registry name, an hf: reference, or None for the default model.
        download: called with bytes done and in all while a file is fetched.

    Raises: whatever `resolve`, `Model` and `Context` raise.
    """
    found = resolve(model, progress=download)
    threads = default_threads()
    options = ContextOptions(length=2 * _DEPTH, threads=threads, outputs=max(_SIZES))
    with Model(found.path) as loaded, Context(loaded, options) as context:
        seconds = measure_cost(context, _DEPTH, _SIZES)
    curve = read_curve(",".join(f"{n}:{cost:.7f}" for n, cost in seconds.items()))
    label = f"{found.name} on this machine, {threads} threads, {_DEPTH} tokens of context"
    return curve._replace(name=label)
