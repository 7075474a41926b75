"""`LlamaGrammar`: the interface of llama-cpp-python's class, without its converter of schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgespec.errors import UsageError
from edgespec.grammars import grammar_from_schema

__all__ = ["LlamaGrammar"]


class LlamaGrammar:
    """A grammar for a call of a `Llama`; a text does as well.

    Args:
        _grammar: GBNF, or a text in llguidance's language.
    """

    def __init__(self, *args: Any, _grammar: str, **kwargs: Any) -> None:
        self._grammar = _grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Take a text; whether it compiles is seen when it is used."""
        return cls(_grammar=grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """Read a file.

        Raises:
            UsageError: it cannot be read.
        """
        try:
            text = Path(file).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the grammar {file}: {error}") from None
        return cls.from_string(text, verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Take JSON that obeys a schema.

        Raises:
            GrammarError: as of `edgespec.grammar_from_schema`.
        """
        return cls(_grammar=grammar_from_schema(json_schema))
