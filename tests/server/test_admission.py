"""Turns: in order, given back whatever happens, and ended by time or by closing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from edgespec.server.errors import ApiError
from edgespec.server.guard import Admission


class Generation:
    """Has a turn until it is cancelled or told to end."""

    def __init__(self, admission: Admission, seconds: float = 60.0) -> None:
        self.began, self.ended, self.cancelled = asyncio.Event(), asyncio.Event(), False
        self.task = asyncio.create_task(self._run(admission, seconds))

    def cancel(self) -> None:
        self.cancelled = True
        self.ended.set()

    async def _run(self, admission: Admission, seconds: float) -> None:
        with admission.place():
            async with admission.turn(self, seconds):
                self.began.set()
                await self.ended.wait()


def within_loop(test: Callable[[Admission], Awaitable[None]]) -> Callable[[], None]:
    """Run it with one turn and two places in the queue; nothing may be taken at its end."""

    def run() -> None:
        async def main() -> None:
            admission = Admission(parallel=1, queue=2)
            await asyncio.wait_for(test(admission), 30)
            assert (admission.running, admission.waiting) == (0, 0)

        asyncio.run(main())

    return run


async def others() -> None:
    """Let the others come as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


@within_loop
async def test_first_come_first_served(admission: Admission) -> None:
    ones = [Generation(admission) for _ in range(3)]
    for number, one in enumerate(ones):
        await one.began.wait()
        assert (admission.running, admission.waiting) == (1, 2 - number)
        assert not any(other.began.is_set() for other in ones[number + 1 :])
        one.ended.set()
        await one.task


@within_loop
async def test_too_many(admission: Admission) -> None:
    ones = [Generation(admission) for _ in range(4)]
    with pytest.raises(ApiError) as caught:
        await ones[3].task
    assert caught.value.status == 429
    assert int((caught.value.headers or {})["Retry-After"]) >= 1
    for one in ones[:3]:
        one.ended.set()
        await one.task


@within_loop
async def test_who_leaves_the_queue_takes_nothing_along(admission: Admission) -> None:
    first, second, third = (Generation(admission) for _ in range(3))
    await first.began.wait()
    second.task.cancel()
    await asyncio.wait([second.task])
    first.ended.set()
    await third.began.wait()
    third.ended.set()
    await asyncio.gather(first.task, third.task)


@within_loop
async def test_who_leaves_just_when_it_is_its_turn_passes_it_on(admission: Admission) -> None:
    first = Generation.__new__(Generation)
    with admission.place():
        async with admission.turn(first, 60):
            second, third = (Generation(admission) for _ in range(2))
            await others()
        second.task.cancel()  # which has its turn by now, and does not know it yet
    await third.began.wait()
    third.ended.set()
    await third.task
    assert second.task.cancelled() and not second.began.is_set()


@within_loop
async def test_the_time_is_over(admission: Admission) -> None:
    running, waiting = Generation(admission, 0.02), Generation(admission, 0.01)
    await running.task
    assert running.cancelled
    with pytest.raises(ApiError) as caught:
        await waiting.task
    assert caught.value.status == 504


@within_loop
async def test_closing_ends_all(admission: Admission) -> None:
    running, waiting = Generation(admission), Generation(admission)
    await running.began.wait()
    await others()
    admission.close()
    await running.task
    assert running.cancelled
    late = Generation(admission)
    for one in (waiting, late):
        with pytest.raises(ApiError) as caught:
            await one.task
        assert caught.value.status == 503


def test_an_error_gives_the_turn_back() -> None:
    async def main() -> None:
        admission = Admission(parallel=1, queue=0)
        stream: Any = Generation.__new__(Generation)
        with pytest.raises(ValueError, match="broken"), admission.place():
            async with admission.turn(stream, 5):
                raise ValueError("broken")
        with admission.place():
            async with admission.turn(stream, 5):
                assert admission.running == 1

    asyncio.run(main())
