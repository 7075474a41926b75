"""Recent answers that prompt lookup may copy from: of each key its own, never another one's."""

from __future__ import annotations

from collections import OrderedDict

from edgespec.drafters import EarlierTexts

__all__ = ["RecentAnswers"]

_USERS = 32


class RecentAnswers:
    """Keeps the latest answers of the users that asked last.

    Args:
        tokens: the most of each user; 0 keeps nothing.
        users: the most of them.
    """

    def __init__(self, tokens: int, users: int = _USERS) -> None:
        self._tokens, self._users = tokens, users
        self._texts: OrderedDict[str, EarlierTexts] = OrderedDict()

    def of(self, key: str) -> EarlierTexts | None:
        """Return where the answers to this key are kept; empty is whoever needs no key."""
        if not self._tokens:
            return None
        texts = self._texts.setdefault(key, EarlierTexts(self._tokens))
        self._texts.move_to_end(key)
        if len(self._texts) > self._users:
            self._texts.popitem(last=False)
        return texts

    @property
    def nbytes(self) -> int:
        """Memory that all of them take."""
        return sum(texts.nbytes for texts in [*self._texts.values()])
