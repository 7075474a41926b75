"""Another model or draft in a running conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.chat.conversation import Chat, texts_of
from edgespec.chat.engines import Engines
from edgespec.errors import EdgespecError, InsufficientMemoryError, ModelFileError
from edgespec.runtime.engine import Engine
from edgespec.runtime.options import EngineOptions

Say = Callable[..., list[str]]
SMALL = EngineOptions(threads=2, context=512, draft="ngram", k=2, exact="bitwise")


@pytest.fixture
def engines(chat: Chat) -> Iterator[Engines]:
    """Of the conversation, with engines of its own."""
    with Engines(Engine, None, SMALL) as opened:
        chat.engines = opened
        chat.session = chat.session.moved_to(opened.engine)
        yield opened


def test_another_draft_goes_on_with_what_is_known(chat: Chat, say: Say, engines: Engines) -> None:
    say("/set temperature 0", "Tell me a story about the sea. " * 40)
    before, first = texts_of(chat.session), engines.engine
    assert say("/draft none")[-1].startswith("smollm2-135m, draft none, context 3")
    assert engines.engine is chat.session.engine is not first
    assert texts_of(chat.session) == before
    say("And?")
    assert chat.last is not None
    assert (chat.last[0].drafter, chat.last[1].acceptance) == ("none", None)
    assert chat.last[0].statistics.reused_tokens > 256
    facts = chat.archive.load(str(chat.recorder.id)).facts
    assert facts["model"]["draft"] == "none"


def test_another_model(chat: Chat, say: Say, engines: Engines, damaged_model: Path) -> None:
    say("Hello")
    assert say(f"/model {damaged_model}")[-1].startswith("damaged, draft ngram")
    say("And?")
    stored = chat.archive.load(str(chat.recorder.id))
    models = [e.details["model"] for e in stored.entries if e.role == "assistant"]
    assert models == ["smollm2-135m", "damaged"]
    assert stored.facts["model"]["file"] == str(damaged_model)
    assert say(f"/draft {damaged_model}")[-1].startswith("damaged, draft damaged")
    assert say("/model smollm2-135m")[-1].startswith("smollm2-135m, draft ngram")
    assert engines.model == "smollm2-135m"


@pytest.mark.parametrize("line", ["/model missing.gguf", "/model {bad}", "/draft {bad}"])
def test_the_old_engine_stays_when_the_new_one_cannot_be_opened(
    chat: Chat, say: Say, engines: Engines, tmp_path: Path, line: str
) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF no")
    say("Hello")
    before, engine = texts_of(chat.session), chat.session.engine
    assert say(line.format(bad=tmp_path / "bad.gguf"))[0].startswith("error: ")
    assert (texts_of(chat.session), chat.session.engine, engines.engine) == (before, engine, engine)
    say("And?")
    assert len(texts_of(chat.session)) == 4


def test_where_two_models_do_not_fit_the_old_one_is_closed_first(default_model: Path) -> None:
    alive: list[Engine] = []

    def open(model: str | None, options: EngineOptions) -> Engine:
        if any(not one.closed for one in alive):
            raise InsufficientMemoryError("they do not fit together")
        if model == "bad.gguf":
            raise ModelFileError("bad")
        alive.append(Engine(default_model, options))
        return alive[-1]

    with Engines(open, None, SMALL) as engines:
        first = engines.engine
        engines.change_draft("none")
        assert (first.closed, engines.engine.drafter_name) == (True, "none")
        with pytest.raises(EdgespecError, match="bad"):
            engines.change_model("bad.gguf")
        assert engines.engine.drafter_name == "none"
        assert not engines.engine.closed
    assert all(one.closed for one in alive)
    assert len(alive) == 3
