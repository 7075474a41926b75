"""What prompt lookup may copy from beside the text itself: files that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec.backend import Vocabulary
from edgespec.drafters import ComposedDrafter, Drafter, EarlierTexts, PromptLookupDrafter
from edgespec.errors import UsageError
from edgespec.files import read_text

__all__ = ["index_texts", "prompt_lookup_of", "read_texts"]

_MOST_BYTES = 4 << 20

_MOST_TOKENS = 1 << 18
"""Of all files together."""


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Return the texts of files.

    Raises:
        UsageError: one cannot be read, or is no text, or they are too long.
    """
    texts: list[str] = []
    left = _MOST_BYTES
    for path in paths:
        texts.append(read_text(path, left, "is too long to be looked up"))
        left = max(0, left - len(texts[-1].encode()))
    return texts


def index_texts(texts: Sequence[str], vocabulary: Vocabulary) -> EarlierTexts:
    """Index texts, in which control tokens have no meaning.

    Raises:
        UsageError: they have too many tokens.
    """
    tokens = [vocabulary.tokenize(text, add_special=False) for text in texts]
    size = sum(len(each) + 1 for each in tokens)
    if size > _MOST_TOKENS:
        raise UsageError(
            f"the files to look up have {size:,} tokens and {_MOST_TOKENS:,} fit: give fewer"
        )
    found = EarlierTexts(size)
    for each in tokens:
        found.add(each)
    found.settle()
    return found


def prompt_lookup_of(drafter: Drafter) -> PromptLookupDrafter | None:
    """Return the part of a drafter that copies, if it has one."""
    if isinstance(drafter, ComposedDrafter):
        return drafter.lookup
    return drafter if isinstance(drafter, PromptLookupDrafter) else None
