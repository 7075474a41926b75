"""Writing text until there is enough of it, a shard at a time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from edgespec.backend import ParallelContext
from edgespec.backend.interrupts import held_interrupts
from edgespec.distill.prompts import Prompts
from edgespec.distill.store import Corpus, Written
from edgespec.distill.writing import Writer

__all__ = ["measure_writing", "write_corpus"]

_SHARD = 32  # conversations
_PROBED = 8  # tokens of each sequence


def write_corpus(
    corpus: Corpus,
    context: ParallelContext,
    prompts: Prompts,
    goal: int,
    answer: int,
    show: Callable[[int, float], None] = lambda tokens, seconds: None,
) -> None:
    """Add conversations until the answers have `goal` tokens.

    Args:
        answer: the most tokens of one.
        show: called with the tokens of answers there are, and the seconds left.

    Raises:
        KeyboardInterrupt: interrupted; every finished conversation is on disk.
        NumericalError: the target's logits are broken, or the prompts are of no use.
    """
    pending: list[Written] = []
    have = before = corpus.answer_tokens
    if have >= goal:
        return
    writer = Writer(context, prompts, corpus.next_number, answer)
    started = perf_counter()
    try:
        for written in writer.run():
            pending.append(written)
            have += len(written.tokens) - written.prompt
            if len(pending) == _SHARD:
                with held_interrupts():
                    corpus.add(pending)
                    pending = []
            speed = (have - before) / (perf_counter() - started)
            show(have, max(0, goal - have) / speed)
            if have >= goal:
                return
    finally:
        corpus.add(pending)


def measure_writing(context: ParallelContext, prompts: Prompts, answer: int) -> float:
    """Tokens that are written in a second, from a short try whose text is thrown away."""
    writer = Writer(context, prompts, 0, answer)
    step = iter(writer.steps())
    next(step)
    before, started = writer.written, perf_counter()
    for _ in range(_PROBED):
        next(step)
    return (writer.written - before) / (perf_counter() - started)
