"""Whose turn it is: order, slices, slow readers, cancelling; without a model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, sleep

import pytest

from edgespec.errors import CancelledError
from edgespec.runtime.scheduler import FairLock

LONG_S = 60.0


def run_beside(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + LONG_S
    while not condition():
        assert monotonic() < deadline
        sleep(0.001)


def take(turns: FairLock, holder: object, order: list[object]) -> None:
    with turns.hold(holder):
        order.append(holder)
    turns.end(holder)


def test_who_comes_first_is_first() -> None:
    turns, order = FairLock(LONG_S, LONG_S), []
    with turns.hold("first"):
        threads = []
        for number in range(5):
            threads.append(run_beside(lambda n=number: take(turns, n, order)))  # type: ignore[misc]
            wait_until(lambda: turns.waiting == number + 1)  # noqa: B023
    turns.end("first")
    for thread in threads:
        thread.join(LONG_S)
    assert order == [0, 1, 2, 3, 4]


def test_a_generation_keeps_its_turn_between_cycles_and_gives_it_up_at_its_end() -> None:
    turns, order = FairLock(LONG_S, LONG_S), []
    with turns.hold("long"):
        thread = run_beside(lambda: take(turns, "other", order))
        wait_until(lambda: turns.waiting == 1)
    for _ in range(3):
        with turns.hold("long"):
            order.append("long")
    turns.end("long")
    thread.join(LONG_S)
    assert order == ["long", "long", "long", "other"]


def test_after_its_slice_a_generation_stands_in_line_again() -> None:
    turns, order = FairLock(0.0, LONG_S), []
    with turns.hold("long"):
        thread = run_beside(lambda: take(turns, "other", order))
        wait_until(lambda: turns.waiting == 1)
    with turns.hold("long"):
        order.append("long")
    thread.join(LONG_S)
    assert order == ["other", "long"]


def test_an_idle_generation_keeps_nobody_waiting() -> None:
    turns, order = FairLock(LONG_S, 0.01), []
    with turns.hold("slow reader"):
        thread = run_beside(lambda: take(turns, "other", order))
        wait_until(lambda: turns.waiting == 1)
    thread.join(LONG_S)
    assert order == ["other"]


def test_one_thread_may_go_to_and_fro_between_generations() -> None:
    turns, order = FairLock(LONG_S, LONG_S), []
    for holder in ("a", "b", "a", "b"):
        with turns.hold(holder):
            order.append(holder)
    assert order == ["a", "b", "a", "b"]


def test_an_unwanted_one_leaves_the_line_at_once() -> None:
    turns, unwanted = FairLock(LONG_S, LONG_S), threading.Event()
    errors: list[Exception] = []

    def take_never() -> None:
        try:
            with turns.hold("unwanted", unwanted.is_set):
                raise AssertionError
        except CancelledError as error:
            errors.append(error)

    with turns.hold("first"):
        thread = run_beside(take_never)
        wait_until(lambda: turns.waiting == 1)
        unwanted.set()
        turns.wake()
        thread.join(LONG_S)
        assert len(errors) == 1
        assert turns.waiting == 0


def test_an_error_in_a_turn_lets_the_next_one_go_on() -> None:
    turns, order = FairLock(LONG_S, LONG_S), []
    with pytest.raises(ZeroDivisionError), turns.hold("failing"):
        thread = run_beside(lambda: take(turns, "other", order))
        wait_until(lambda: turns.waiting == 1)
        1 / 0  # noqa: B018
    turns.end("failing")
    thread.join(LONG_S)
    assert order == ["other"]


def test_never_two_at_once() -> None:
    turns, inside, most = FairLock(0.0, 0.0), [0], [0]

    def work(holder: int) -> None:
        for _ in range(200):
            with turns.hold(holder):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1
        turns.end(holder)

    threads = [run_beside(lambda n=n: work(n)) for n in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert most == [1]
