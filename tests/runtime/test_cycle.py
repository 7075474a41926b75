"""What an answer's figures say."""

from __future__ import annotations

import pytest

from edgespec.runtime.cycle import Statistics


def _answer(plain_steps_s: list[float], proposed: int, decode_s: float = 1.0) -> Statistics:
    """Ten tokens in eight cycles."""
    figures = Statistics(decode_s=decode_s, emitted=10, plain_steps_s=plain_steps_s)
    figures.count_cycle(proposed, min(proposed, 2), drafting=True)
    for _ in range(7):
        figures.count_cycle(0, 0, drafting=True)
    return figures


def test_plain_speed_comes_from_this_answers_own_steps() -> None:
    figures = _answer([0.1, 0.11, 0.12, 3.0], 4)
    assert figures.plain_tokens_per_second == pytest.approx(1 / 0.12)
    assert figures.speedup == pytest.approx(10 * 0.12)


def test_a_speedup_is_at_most_tokens_a_cycle() -> None:
    figures = _answer([0.5] * 8, 4)
    assert figures.tokens_per_cycle == 1.25
    assert figures.speedup == pytest.approx(1.25)
    assert figures.plain_tokens_per_second == pytest.approx(8.0)


@pytest.mark.parametrize("figures", [Statistics(), _answer([0.1] * 8, 0), _answer([0.1] * 3, 4)])
def test_nothing_is_said_where_nothing_was_proposed_or_too_little_is_known(
    figures: Statistics,
) -> None:
    assert figures.plain_tokens_per_second is None and figures.speedup is None
