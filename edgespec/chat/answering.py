"""Showing an answer while the model writes it."""

from __future__ import annotations

from edgespec.chat.keyboard import no_echo, on_interrupt
from edgespec.chat.meter import Meter
from edgespec.chat.reasoning import OPENING
from edgespec.chat.screen import Screen
from edgespec.chat.status import status_line
from edgespec.runtime.engine import Engine
from edgespec.runtime.reading import consume
from edgespec.runtime.session import Turn
from edgespec.runtime.stream import Result

__all__ = ["begins_thinking", "show_answer"]

_LAST_TOKENS = 4  # of a prompt, among which a mark would be


def show_answer(turn: Turn, meter: Meter, engine: Engine, screen: Screen) -> Result:
    """Run a turn to its end; Ctrl-C ends it early.

    Raises: what the turn raises.
    """

    def status() -> str:
        return status_line(meter.read(), screen.width)

    thinking = begins_thinking(engine, turn)
    with (
        no_echo(),
        on_interrupt(turn.cancel),
        screen.answer(status, thinking=thinking) as view,
    ):
        turn.stream.progress = view.reading
        return consume(turn, view)


def begins_thinking(engine: Engine, turn: Turn) -> bool:
    """Whether the prompt ends inside of reasoning: some templates begin it for the model."""
    stream = turn.stream
    end = stream.sequence[: stream.prompt_tokens][-_LAST_TOKENS:]
    text = b"".join(engine.vocabulary.piece(token, special=True) for token in end)
    return text.rstrip().endswith(OPENING.encode())
