from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec.chat.savefile import exporter, load_conversation
from edgespec.chat.store.events import Conversation, Entry
from edgespec.errors import UsageError
from edgespec.runtime.session import Message

ENTRIES = [
    Entry("user", "Grüße 👋🏽\n\n# not a heading", "t0"),
    Entry("assistant", "```py\nx = 1\n```\n", "t1", details={"model": "other", "tokens": 4}),
    Entry("user", "and?", "t2"),
]
FACTS = {"model": {"name": "test"}, "system": {"text": "Be brief."}}
WHOLE = Conversation("1ngtwrt", "t0", facts={**FACTS}, entries=ENTRIES)


def test_json_has_everything_and_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chat.JSON"
    path.write_text(exporter(path)(WHOLE), "utf-8")
    data = json.loads(path.read_text("utf-8"))
    assert (data["id"], data["title"], data["model"]) == ("1ngtwrt", "Grüße 👋🏽", "test")
    assert data["messages"][2]["details"]["tokens"] == 4
    loaded = load_conversation(path)
    expected = [Message("system", "Be brief."), *(Message(e.role, e.content) for e in ENTRIES)]
    assert list(loaded.messages) == expected


def test_markdown_names_who_speaks() -> None:
    text = exporter(Path("chat.md"))(WHOLE)
    headings = [line for line in text.split("\n") if line.startswith("## ")]
    assert headings == ["## System", "## You", "## other", "## You"]
    assert text.startswith("# Grüße 👋🏽\n")
    assert text.endswith("and?\n\n*(no answer)*\n")
    assert ENTRIES[1].content in text


@pytest.mark.parametrize("name", ["chat", "chat.txt", "json", ".md"])
def test_other_endings_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.json or \.md"):
        exporter(Path(name))
