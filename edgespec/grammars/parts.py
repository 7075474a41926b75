"""Grammars of parts of an answer that is free otherwise, as the arguments of a tool's call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PartGrammars"]


@dataclass(frozen=True)
class PartGrammars:
    """What holds parts of a text, and where these begin.

    Attributes:
        begins: matches the text before a part. One of its groups matches; the group's name and its
            text name the grammar; where there is none of that text, the empty one does.
        grammars: in llguidance's language. A part ends where its grammar may end.
        asides: openings and closings of passages in which no part begins.
        aside: the closing of the passage in which the text begins; empty if it begins in none.
    """

    begins: re.Pattern[bytes]
    grammars: Mapping[tuple[str, bytes], str]
    asides: Mapping[str, str] = field(default_factory=dict)
    aside: str = ""

    def forms(self, name: str) -> set[str]:
        """Return the forms in which parts of this name are held."""
        groups = {group for group, held in self.grammars if held in (name.encode(), b"")}
        return {group.partition("_")[0] for group in groups}
