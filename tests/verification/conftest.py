"""Contexts of the default model, drafters on them, and mistakes to inject."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backend import Context, ContextOptions, Model
from edgespec.control.stopping import DraftStopping
from edgespec.drafters import ModelDrafter, PromptLookupDrafter
from edgespec.verification.checks import Prompt

OPTIONS = ContextOptions(length=512, threads=2, outputs=16)
K = 3

TEXTS = {
    "list": "List five fruits and say what colour each of them is.",
    "copying": "Repeat three times: one boat, two boats, one boat, two boats.",
}


class StaleContext(Context):
    """A rollback that is off by one, unnoticed: every cut is `error` tokens too short or long.

    With +1 a rejected token stays in front of what is evaluated next; with -1 an accepted one is
    lost. Lengths and positions look right from outside.
    """

    error = 1
    _extra = 0

    def truncate(self, length: int) -> None:
        if length >= self.length:
            return
        claimed, self.length = self.length, self.length + self._extra
        wanted = max(1, length + self._extra + self.error) if length > 0 else 0
        super().truncate(wanted)
        self._extra = min(wanted, claimed + self._extra) - length
        self.length = length

    def clear(self) -> None:
        super().clear()
        self._extra = 0

    def native_length(self, sequence: int = 0) -> int:
        return super().native_length(sequence) - self._extra

    def _decode(self, tokens: Any, outputs: int) -> None:
        self.length += self._extra
        try:
            super()._decode(tokens, outputs)
        finally:
            self.length -= self._extra


class HollowContext(StaleContext):
    error = -1


@pytest.fixture(scope="session")
def model(default_model: Path) -> Iterator[Model]:
    with Model(default_model) as model:
        yield model


@pytest.fixture(scope="session")
def damaged(damaged_model: Path) -> Iterator[Model]:
    with Model(damaged_model) as model:
        yield model


@pytest.fixture(scope="session")
def target(model: Model) -> Iterator[Context]:
    with Context(model, OPTIONS) as context:
        yield context


@pytest.fixture(scope="session")
def draft(damaged: Model) -> Iterator[Context]:
    with Context(damaged, OPTIONS) as context:
        yield context


@pytest.fixture(params=[StaleContext, HollowContext])
def stale(request: pytest.FixtureRequest) -> type[Context]:
    """Contexts whose rollback leaves one token too many, or one too few."""
    kind: type[Context] = request.param
    return kind


@pytest.fixture
def drafter(request: pytest.FixtureRequest, target: Context, draft: Context) -> Any:
    target.clear()
    draft.clear()
    if request.param == "ngram":
        return PromptLookupDrafter(target.capacity, threshold=0.3)
    return drafting(draft)


@pytest.fixture
def damaged_drafter(draft: Context) -> ModelDrafter:
    draft.clear()
    return drafting(draft)


def drafting(context: Context) -> ModelDrafter:
    size = context.model.vocabulary.size
    # Checks ask for a fixed number of proposals: costs are not looked at.
    return ModelDrafter(context, size, size, K, DraftStopping(step_s=1.0, reading_s=1.0, most=K))


@pytest.fixture(scope="session")
def make_drafter() -> Callable[[Context], ModelDrafter]:
    return drafting


@pytest.fixture(scope="session")
def options() -> ContextOptions:
    return OPTIONS


@pytest.fixture(scope="session")
def questions(model: Model) -> list[Prompt]:
    return [
        Prompt(
            name,
            model.vocabulary.tokenize(
                f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", parse_special=True
            ),
        )
        for name, text in TEXTS.items()
    ]


@pytest.fixture(scope="session")
def reading(questions: list[Prompt]) -> np.ndarray:
    """A text of 400 tokens."""
    return np.resize(np.concatenate([prompt.tokens for prompt in questions]), 400)
