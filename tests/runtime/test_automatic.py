"""`--draft auto`: the registry's draft is used where it is expected to pay, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits
from edgespec.backend import capabilities
from edgespec.drafters import ComposedDrafter, PromptLookupDrafter
from edgespec.errors import RegistryError
from edgespec.gguf.draft_metadata import HeldOut
from edgespec.gguf.header import read_header
from edgespec.registry.resolve import ResolvedModel
from edgespec.runtime import plan
from tests.runtime.exact import GREEDY, emitted

pytestmark = pytest.mark.skipif(
    not capabilities().eagle, reason="this build of llama.cpp cannot run EAGLE-3 heads"
)


@pytest.fixture
def opened(
    built_models: ModuleType,
    default_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Engine]:
    """Opens the default model as if the registry knew a head of random weights for it."""
    kept = np.arange(100, 900)
    head = built_models.write_eagle(default_model, tmp_path / "head.gguf", kept)

    def open_one(held_out: HeldOut | None, missing: bool = False, **options: Any) -> Engine:
        def resolve(name: object, **_: object) -> ResolvedModel:
            if name == "the-head":
                if missing:
                    raise RegistryError("the-head is not downloaded")
                return ResolvedModel(head, "the-head")
            entry: Any = SimpleNamespace(drafts=("the-head",), sha256="known")
            return ResolvedModel(default_model, "target", entry)

        def read(path: Path) -> Any:
            header = read_header(path)
            return replace(header, held_out=held_out) if path == head else header

        monkeypatch.setattr(plan, "resolve", resolve)
        monkeypatch.setattr(plan, "read_header", read)
        return Engine(None, EngineOptions(context=512, threads=2, **options))

    return open_one


SURE, HOPELESS = HeldOut((0.99,), (0.98,)), HeldOut((0.05,), (0.01,))


def test_a_head_that_should_pay(opened: Callable[..., Engine], open_engine: Any) -> None:
    prompt = "One two three one two three one two"
    with opened(SURE) as engine:
        assert isinstance(engine.drafter, ComposedDrafter)
        assert engine.drafter_name == "the-head"
        stream = engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=24))
        assert list(stream.result.tokens) == emitted(open_engine(), prompt, GREEDY, 24)


@pytest.mark.parametrize("held_out", [HOPELESS, None])
def test_a_head_that_should_not(opened: Callable[..., Engine], held_out: HeldOut | None) -> None:
    with opened(held_out) as engine:
        assert isinstance(engine.drafter, PromptLookupDrafter)
        assert engine.drafter_name == "ngram"
        assert engine.notice is None


def test_where_it_is_not_wanted(opened: Callable[..., Engine]) -> None:
    for options in ({"k": 2}, {"draft": "ngram"}, {"missing": True}):
        with opened(SURE, **options) as engine:
            assert isinstance(engine.drafter, PromptLookupDrafter)
    with opened(HOPELESS, draft="the-head") as engine:
        assert isinstance(engine.drafter, ComposedDrafter)
