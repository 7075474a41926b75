"""Other libraries' wrappers of llama_cpp.Llama, with edgespec's class in its place."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import edgespec

ASKED: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "repeat_penalty": 1.0}


@pytest.fixture(params=["theirs", "ours"])
def replaced(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The import of the wrappers, for each class."""
    cls = edgespec.Llama if request.param == "ours" else llama_cpp.Llama
    monkeypatch.setattr(llama_cpp, "Llama", cls)
    return cls


def settings(path: Path) -> dict[str, Any]:
    # The wrapper's own defaults would change the model's rotary embedding.
    own = {"rope_freq_base": 0.0, "rope_freq_scale": 0.0}
    return {"model_path": str(path), "n_ctx": 256, "n_threads": 2, "verbose": False, **own, **ASKED}


def test_langchain(replaced: Any, default_model: Path, ours: Any) -> None:
    llms = pytest.importorskip("langchain_community.llms")
    model = llms.LlamaCpp(**settings(default_model))
    assert isinstance(model.client, replaced)
    expected = ours("The sea is", **ASKED)["choices"][0]["text"]
    assert model.invoke("The sea is") == expected
    assert "".join(model.stream("The sea is")) == expected
    assert model.get_num_tokens("The sea is") == 3
    model.client.close()


def test_langchain_chat(replaced: Any, default_model: Path, ours: Any) -> None:
    models = pytest.importorskip("langchain_community.chat_models")
    model = models.ChatLlamaCpp(**settings(default_model))
    assert isinstance(model.client, replaced)
    said = [{"role": "user", "content": "Name a river."}]
    answer = ours.create_chat_completion(said, **ASKED)["choices"][0]["message"]["content"]
    assert model.invoke("Name a river.").content == answer
    assert "".join(chunk.content for chunk in model.stream("Name a river.")) == answer
    model.client.close()


def test_llama_index(replaced: Any, default_model: Path, ours: Any, monkeypatch: Any) -> None:
    base = pytest.importorskip("llama_index.llms.llama_cpp.base")
    monkeypatch.setattr(base, "Llama", replaced)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library's own
        model = base.LlamaCPP(
            model_path=str(default_model),
            temperature=0.0,
            max_new_tokens=8,
            context_window=256,
            model_kwargs={"n_threads": 2},
            verbose=False,
        )
    expected = ours("The sea is", **ASKED)["choices"][0]["text"]
    assert model.complete("The sea is", formatted=True).text == expected
    pieces = [one.delta for one in model.stream_complete("The sea is", formatted=True)]
    assert "".join(pieces) == expected
    assert model.metadata.context_window == 256
    model._model.close()
