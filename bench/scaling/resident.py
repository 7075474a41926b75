"""Report resident memory, step by step, while a model is opened and its context filled.

    python -m bench.scaling.resident MODEL --ctx 2048 [--threads 2] [--flash-attention]

Prints a line of JSON: for each step, in order, the bytes resident after it, and how many of them
are pages of files. The process does nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import psutil

from bench.command import Parser

if TYPE_CHECKING:
    from edgespec.backend import Context

Step = tuple[str, int, int]

_process = psutil.Process()


def now(step: str) -> Step:
    """Return the name of the last step, resident bytes, and how many of them are pages of files."""
    memory = _process.memory_info()
    return step, memory.rss, getattr(memory, "shared", 0)


def steps(arguments: argparse.Namespace) -> Iterator[Step]:
    yield now("interpreter and NumPy")
    import numba

    assert numba.__version__
    yield now("Numba")
    from edgespec.backend import Context, ContextOptions, Model
    from edgespec.backend.lifetime import initialize

    initialize()
    yield now("llama.cpp")
    from edgespec.runtime.loading import warm_up
    from edgespec.runtime.options import EngineOptions

    warm_up()
    yield now("kernels")
    with Model(arguments.model) as model:
        yield now("weights")
        options = ContextOptions(
            length=arguments.ctx,
            threads=arguments.threads,
            flash_attention=arguments.flash_attention,
            outputs=EngineOptions().most + 1,
        )
        with Context(model, options) as context:
            yield now("KV cache")
            yield from used(context)


def used(context: Context) -> Iterator[Step]:
    """Fill the context to its last token, and index it by prompt lookup."""
    from edgespec.drafters import PromptLookupDrafter
    from edgespec.runtime.decoder import Decoder
    from edgespec.tuning.measure import measuring_text

    rows = context.options.outputs
    text = measuring_text(context, context.capacity)[: context.capacity]
    context.prefill(text[:-rows])
    context.evaluate(text[-rows:], rows)
    assert context.native_length() == context.capacity
    yield now("compute")
    drafter = PromptLookupDrafter(context.capacity)
    decoder = Decoder(context, drafter, rows - 1)
    decoder.history[: len(text)] = text
    drafter.commit(decoder.history, len(text))
    yield now("drafter and decoder")
    state = context.save_state()
    assert len(state) and isinstance(state, np.ndarray)
    yield now("a kept cache")


def main() -> None:
    parser = Parser("scaling.resident", __doc__)
    parser.add_argument("model")
    parser.add_argument("--ctx", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flash-attention", action="store_true")
    print(json.dumps(list(steps(parser.parse_args()))))


if __name__ == "__main__":
    main()
