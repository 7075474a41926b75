"""Shared by the tests of chat templates: one call that compiles, one that renders as well."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from edgespec.templates import ChatTemplate


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], ChatTemplate]:
    """A template whose clock stands still."""
    return _compiled


@pytest.fixture(scope="session")
def render() -> Callable[..., str]:
    """(source, *messages, **arguments) -> text; one short message unless there are some."""

    def rendered(source: str, *messages: Any, **arguments: Any) -> str:
        return _compiled(source).render(
            messages or [{"role": "user", "content": "Hi"}], **arguments
        )

    return rendered


def _compiled(source: str) -> ChatTemplate:
    return ChatTemplate(
        source, bos_token="<s>", eos_token="</s>", now=lambda: datetime(2024, 7, 26)
    )
