from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from edgespec.chat.conversation import Chat
from edgespec.chat.status import Forecast
from edgespec.runtime.engine import Engine
from edgespec.runtime.session import Message, Session

Say = Callable[..., list[str]]
MESSAGE = "Tell me a story about the sea and the ships. " * 12


def test_it_is_said_before_it_happens_and_once(chat: Chat, say: Say) -> None:
    said: list[list[str]] = []
    while not any("no longer sees" in line for line in (said[-1] if said else ())):
        assert len(said) < 20
        said.append(say(MESSAGE))
    warned = [turn for turn, lines in enumerate(said) if any("any more" in x for x in lines)]
    happened = len(said) - 1
    assert warned[0] in (happened - 1, happened - 2)
    assert len([turn for turn in warned if turn < happened]) == 1
    (warning,) = [line for line in said[warned[0]] if "any more" in line]
    promised = re.fullmatch(
        r"the context is (\d\d)% full: soon the model will not see the oldest (\d+) messages "
        r"any more",
        warning,
    )
    assert promised
    (dropped,) = [line for line in said[happened] if "no longer sees" in line]
    assert f"first {promised.group(2)} messages" in dropped


@pytest.mark.parametrize(("used", "warns"), [(500, False), (860, False), (880, True)])
def test_at_85_percent(engine: Engine, used: int, warns: bool) -> None:
    session = Session(engine)
    session.messages = [Message("user", "hi"), Message("assistant", "hello")] * 10
    assert bool(Forecast().after(session, used)) is warns


def test_without_dropping_it_says_that_it_ends(engine: Engine) -> None:
    session = Session(engine)
    session.limits = replace(session.limits, overflow="stop")
    session.messages = [Message("user", "hi"), Message("assistant", "hello")]
    assert "it ends soon; /reset" in str(Forecast().after(session, 1000))


def test_it_is_said_again_after_room_was_made(engine: Engine) -> None:
    session, forecast = Session(engine), Forecast()
    session.messages = [Message("user", "hi"), Message("assistant", "hello")] * 10
    said = [forecast.after(session, used) is not None for used in (900, 950, 500, 900)]
    assert said == [True, False, False, True]
