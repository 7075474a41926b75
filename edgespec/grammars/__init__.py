"""What an answer may be: JSON Schemas, regular expressions, grammars, and who obeys them."""

from edgespec.grammars.call_forms import grammars_of_arguments, taught_forms
from edgespec.grammars.closing import Closer, End
from edgespec.grammars.guidance import Foresight, Guide, Likely, Matcher
from edgespec.grammars.texts import (
    PartGrammars,
    choice_of_calls,
    grammar_from_regex,
    grammar_from_schema,
    grammar_of_json,
    is_lark,
)

__all__ = [
    "Closer",
    "End",
    "Foresight",
    "Guide",
    "Likely",
    "Matcher",
    "PartGrammars",
    "choice_of_calls",
    "grammar_from_regex",
    "grammar_from_schema",
    "grammar_of_json",
    "grammars_of_arguments",
    "is_lark",
    "taught_forms",
]
