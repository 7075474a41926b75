from __future__ import annotations

from edgespec.chat.events import Conversation, Entry
from edgespec.chat.listing import hits, matches

ONE = Conversation(
    "1ngtwrt",
    "t",
    entries=[Entry("user", "Where is the\nStraße to Rome?"), Entry("assistant", "In Italy. " * 9)],
    replaced=[(0, Entry("user", "An older question about Paris"))],
)


def test_all_words_somewhere() -> None:
    assert matches(ONE, ["STRASSE", "italy"])
    assert matches(ONE, ["paris"])
    assert not matches(ONE, ["rome", "berlin"])


def test_all_words_in_one_message() -> None:
    assert [(hit.number, hit.role) for hit in hits(ONE, ["the", "rome"])] == [(1, "user")]
    assert next(hits(ONE, ["the rome"]), None) is None
    assert next(hits(ONE, ["rome", "italy"]), None) is None
    assert next(hits(ONE, ["older"])).excerpt == "An older question about Paris"


def test_an_excerpt_begins_shortly_before_the_word() -> None:
    text = "far away " * 20 + "needle in it"
    found = next(hits(Conversation("1ngtwrt", "t", entries=[Entry("user", text)]), ["needle"]))
    assert found.excerpt.startswith("...")
    assert 10 < found.excerpt.index("needle") < 40
