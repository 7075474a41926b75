"""Pairs made by hand."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def pairs() -> list[dict[str, Any]]:
    return [
        pair("a", 1.0, 0.5, tried=[4, 2], accepted=[2, 1]),
        pair("a", 1.0, 1.0, tried=[4], accepted=[4]),
        pair("b", 2.0, 0.5),
    ]


def run(tokens: int, seconds: float, **other: Any) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "decode_s": seconds,
        "first_token_s": 0.5,
        "cycles": tokens // 2,
        "tried": [],
        "accepted": [],
        "depths": {"0": [tokens, seconds]},
        "joules": None,
        **other,
    }


def pair(category: str, plain_s: float, speculative_s: float, **other: Any) -> dict[str, Any]:
    return {
        "category": category,
        "temperature": 0.0,
        "plain": run(10, plain_s),
        "speculative": run(10, speculative_s, **other),
        "same_text": True,
    }
