"""Names from before a renaming lead to what they name now, and say so."""

from __future__ import annotations

import pytest

from edgespec import drafters
from edgespec.control.controller import DraftBudget, fixed_budget
from edgespec.control.stopping import DraftStopping


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Allowance", DraftBudget),
        ("ForeignDrafter", drafters.CrossVocabularyDrafter),
        ("NgramDrafter", drafters.PromptLookupDrafter),
        ("Pace", DraftStopping),
        ("fixed_allowance", fixed_budget),
    ],
)
def test_an_old_name_is_the_new_one(old: str, new: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is now edgespec"):
        assert getattr(drafters, old) is new


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Motor'"):
        drafters.Motor  # noqa: B018
