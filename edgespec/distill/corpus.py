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
_ELSEWHERE = 1 << 40  # a number no text gets to: the try must not use up its prompts
_ANSWERED = 0.75  # of the time; the rest goes into making up questions and reading prompts


def write_corpus(
    corpus: Corpus,
    context: ParallelContext,
    prompts: Prompts,
    goal: int,
    answer: int,
    show: Callable[[int, float], None] = lambda tokens, seconds: None,
) -> None:
    """Add conversations until the answers have `goal` tokens and one of them is held out.

    Args:
        answer: the most tokens of one.
        show: called with the tokens of answers there are, and the seconds left.

    Raises:
        KeyboardInterrupt: interrupted; every finished conversation is on disk.
        NumericalError: the target's logits are broken, or the prompts are of no use.
    """
    pending: list[Written] = []
    have = before = corpus.answer_tokens
    held_out = bool(corpus.part(held_out=True))
    if have >= goal and held_out:
        return
    writer = Writer(context, prompts, corpus.next_number, answer)
    started = perf_counter()
    try:
        for written in writer.run():
            pending.append(written)
            have += len(written.tokens) - written.prompt
            held_out = held_out or written.held_out
            if len(pending) == _SHARD:
                with held_interrupts():
                    corpus.add(pending)
                    pending = []
            done = have + writer.unfinished - before
            left = max(0, goal - have - writer.unfinished)
            show(have, left * (perf_counter() - started) / done)
            if have >= goal and held_out:
                return
    finally:
        corpus.add(pending)


def measure_writing(context: ParallelContext, prompts: Prompts, answer: int) -> float:
    """Tokens of answers by the second, from a short try whose text is thrown away."""
    writer = Writer(context, prompts, _ELSEWHERE, answer)
    step = iter(writer.steps())
    next(step)
    before, started = writer.written, perf_counter()
    for _ in range(_PROBED):
        next(step)
    return _ANSWERED * (writer.written - before) / (perf_counter() - started)
