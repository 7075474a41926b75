"""Fixtures that need a real model: fetched once, through the registry, like a user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import RegistryError


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The registry's default model; pulled on first use."""
    from edgespec.registry.resolve import resolve

    try:
        return resolve(None).path
    except RegistryError as error:
        pytest.skip(reason=f"the default model cannot be obtained: {error}")


@pytest.fixture(scope="session")
def damaged_model(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model at a very low precision: agrees with it about two times in three."""
    from edgespec.backend import quantize

    path = tmp_path_factory.mktemp("models") / "damaged.gguf"
    quantize(default_model, path, "Q2_K")
    return path


@pytest.fixture(scope="session")
def pruned_model(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model without its last layers: agrees with it hardly ever."""
    from edgespec.backend import quantize

    path = tmp_path_factory.mktemp("models") / "pruned.gguf"
    quantize(default_model, path, "Q4_0", prune_layers=(24, 25, 26, 27))
    return path
