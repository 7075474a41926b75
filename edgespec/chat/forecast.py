"""Says before a context is full what the model will no longer see."""

from __future__ import annotations

import logging

from edgespec.errors import EdgespecError
from edgespec.runtime.session import Session

__all__ = ["Forecast"]

_log = logging.getLogger("edgespec.chat")

_NEARLY_FULL = 0.85


class Forecast:
    """Of one conversation: a next message, with its answer, is taken to be like those before."""

    def __init__(self) -> None:
        self._said = False

    def after(self, session: Session, used: int) -> str | None:
        """A line if the next message will probably not fit, once until that has happened.

        Args:
            used: tokens that the context holds after an answer.
        """
        capacity = session.engine.decoder.capacity
        seen = sum(message.role == "user" for message in session.messages) - session.dropped // 2
        room = max(used // max(1, seen), round(capacity * (1 - _NEARLY_FULL)))
        if used + room <= capacity:
            self._said = False
            return None
        if self._said:
            return None
        self._said = True
        state = f"the context is {used / capacity:.0%} full"
        if session.limits.overflow == "stop":
            return f"{state}: it ends soon; /reset begins anew, a larger --ctx holds more"
        dropped = self._dropped(session, max(room, capacity - used))
        return f"{state}: soon the model will not see the oldest {dropped} messages any more"

    def _dropped(self, session: Session, tokens: int) -> int:
        try:
            return max(session.would_drop(tokens), session.dropped + 2)
        except EdgespecError as error:
            _log.info("no forecast: %s", error)
            return session.dropped + 2
