"""How one engine serves several conversations at once, each in a thread of its own."""

from __future__ import annotations

import ctypes
import gc
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import psutil

from bench.scaling.chart import LINE, Chart, Series, Setup
from bench.scaling.length import endless
from edgespec import Engine, EngineOptions, GenerationLimits, Session
from edgespec.benchmark.measuring import WORKLOADS

__all__ = ["Crowd", "converse", "measure_sessions"]

CROWDS = (1, 2, 4, 8)
_KINDS = ("prose", "questions", "code", "translation")
_MOST_TOKENS = 128  # of an answer: takes a few turns of one second
_CONTEXT = 1024
_MIB = 1 << 20


class Crowd(NamedTuple):
    """Conversations at once.

    Attributes:
        tokens: emitted by each.
        first_s: seconds to the first token of each.
        took_s: seconds until the last of them ended.
        resident: bytes that this process grew by, with the caches of all conversations kept.
        kept: bytes of those caches.
    """

    tokens: list[int]
    first_s: list[float]
    took_s: float
    resident: int
    kept: int


def measure_sessions(setup: Setup) -> list[Chart]:
    """Measure tokens per second in total, seconds to the first token, and memory."""
    options = EngineOptions(
        context=_CONTEXT, threads=setup.threads, flash_attention=setup.flash_attention
    )
    most = min(setup.tokens, _MOST_TOKENS)
    crowds: list[list[Crowd]] = []
    with Engine(setup.model, options) as engine:
        converse(engine, _questions(CROWDS[-1]), min(most, 16))  # a warm-up
        for _ in range(setup.rounds):
            found = {
                m: converse(engine, _questions(m), most) for m in random.sample(CROWDS, len(CROWDS))
            }
            crowds.append([found[m] for m in CROWDS])
    return _charts(crowds)


def converse(engine: Engine, questions: Sequence[str], tokens: int) -> Crowd:
    """Ask all questions at the same moment, each in a conversation of its own."""
    engine.forget()
    before = _resident()
    limits = GenerationLimits(max_tokens=tokens)
    sessions = [Session(engine, None, endless(engine), limits) for _ in questions]
    begin = threading.Barrier(len(questions))

    def talk(session: Session, question: str) -> tuple[int, float, float]:
        begin.wait()
        started = perf_counter()
        turn = session.send(question)
        next(iter(turn), None)
        first = perf_counter()
        return len(turn.result.tokens), first - started, perf_counter() - started

    with ThreadPoolExecutor(len(questions)) as pool:
        emitted, first_s, took_s = zip(*pool.map(talk, sessions, questions), strict=True)
    more = _resident() - before
    kept = engine.kept_bytes
    return Crowd(list(emitted), list(first_s), max(took_s), more, kept)


def _resident() -> int:
    """Return bytes in use, after giving back what was freed if the C library can do that."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def _questions(count: int) -> list[str]:
    known = [conversation[0] for kind in _KINDS for conversation in WORKLOADS[kind]]
    return known[:count]


def _charts(crowds: list[list[Crowd]]) -> list[Chart]:
    def series(name: str, figure: Callable[[Crowd, list[Crowd]], Any]) -> Series:
        return Series(name, [[float(figure(each, row)) for each in row] for row in crowds], LINE)

    def chart(title: str, *parts: Series) -> Chart:
        return Chart(title, "conversations at once, m", "m", CROWDS, parts)

    return [
        chart(
            "Tokens per second, of all conversations",
            series("tokens/s", lambda crowd, _: sum(crowd.tokens) / crowd.took_s),
        ),
        chart(
            "Seconds to the first token",
            series("median", lambda crowd, _: np.median(crowd.first_s)),
            series("largest", lambda crowd, _: max(crowd.first_s)),
        ),
        chart(
            "MiB of memory beyond that of one conversation",
            series("resident", lambda crowd, row: (crowd.resident - row[0].resident) / _MIB),
            series("kept caches", lambda crowd, row: (crowd.kept - row[0].kept) / _MIB),
        ),
    ]
