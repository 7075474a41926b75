"""What preparing a grammar, and one step in it, may take; and what the library says is wrong.

The library counts its work and gives up, so that nothing has to be stopped from outside. In what
was tried, preparing takes seconds at most, and a step about 40 ms.
"""

from __future__ import annotations

import re

from llguidance import LLMatcher, LLParserLimits

__all__ = ["LIMITS", "reason_of", "validation_error"]

LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    step_max_items=200_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)


def validation_error(text: str) -> str:
    """Return what is wrong with a grammar in the library's language, in one line; or nothing."""
    wrong, said = LLMatcher.validate_grammar_with_warnings(text, None, limits=LIMITS)
    return reason_of(said[0]) if wrong else ""


def reason_of(message: str) -> str:
    """Return the library's message as one line, without what it quotes."""
    if message.startswith("panic"):
        return "it is too large"
    if message.startswith("lexer error: too many"):
        return "it is too complex"
    if "recursion limit" in message:
        return "it is nested too deeply"
    if (
        said := re.search(r"regex parse error:.*^error: ([^\n]*)", message, re.M | re.S)
    ) is not None:
        return f"wrong regular expression: {said[1]}"
    line = message.strip().partition("\n")[0]
    line = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"in line \1, column \2: ", line)
    line = re.sub(r"^in line \d+, column \d+: failed to compile JSON schema: ", "", line)
    if line.startswith("Unable to determine if regex is empty") or "Regex is empty" in line:
        line = line.partition(":")[0] if "Unable" in line else "no text is allowed"
    return line[:300].rstrip(" :") or "unknown"
