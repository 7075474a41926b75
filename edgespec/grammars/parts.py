"""Grammars of parts of an answer that is free otherwise, as the arguments of a tool's call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgespec.grammars.texts import schema_rule

__all__ = ["PartGrammars", "grammars_of_arguments"]

_KEYS = "arguments|parameters"


@dataclass(frozen=True)
class PartGrammars:
    """What holds parts of a text, and where these begin.

    Attributes:
        begins: matches the text before a part; its first group names the grammar.
        grammars: in llguidance's language. A part ends where its grammar may end.
        asides: openings and closings of passages in which no part begins.
        aside: the closing of the passage in which the text begins; empty if it begins in none.
    """

    begins: re.Pattern[bytes]
    grammars: Mapping[bytes, str]
    asides: Mapping[str, str] = field(default_factory=dict)
    aside: str = ""


def grammars_of_arguments(
    schemas: Mapping[str, Any], asides: Mapping[str, str]
) -> PartGrammars | None:
    """Return what holds the arguments of calls that are JSON, with the name before the arguments.

    Args:
        schemas: of the arguments of each tool.
        asides: openings and closings of reasoning.
    """
    if not schemas:
        return None
    names = "|".join(re.escape(name) for name in sorted(schemas, key=len, reverse=True))
    # Without the key's closing quote: a token may have that and the beginning of the arguments.
    begins = rf'"name"\s*:\s*"({names})"\s*,\s*"(?:{_KEYS})'
    grammars = {
        name.encode(): "\n".join(
            (
                r"%llguidance {}" "\n" r'start: /"[ \n\t]*:[ \n\t]*/ arguments REST?',
                f"arguments: {schema_rule(json.dumps(schema))}",
                "REST: /(?s:.+)/",
            )
        )
        for name, schema in schemas.items()
    }
    return PartGrammars(re.compile(begins.encode()), grammars, asides)
