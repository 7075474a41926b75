"""Fixtures that need a real model: fetched once, through the registry, like a user's.

Tests run in two processes at once. Threads of llama.cpp's that wait must not spin then, and what
both would compile or fetch is had before they start.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import settings

from edgespec.errors import RegistryError

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same examples in every run, so that none fails by luck, nor because a machine is busy; the
# option --hypothesis-profile=explore of pytest looks for new ones. (Hypothesis also tries constants
# that it finds in the project's own source: changing that may change the examples.)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("repeatable")


# The tier of a test that asks for a fixture.
TIERS = {"default_model": "model", "browser": "browser", "spawn": "terminal", "tmux": "terminal"}


def pytest_configure(config: pytest.Config) -> None:
    """Compile once, before a command would say on standard error that it does; fetch the model."""
    from edgespec.cli.opening import SAID
    from edgespec.files import cache_root
    from edgespec.registry.resolve import resolve
    from edgespec.runtime.loading import warm_up
    from edgespec.tuning.exactness import fast_options

    if hasattr(config, "workerinput"):
        return  # a second process finds it done
    data = tempfile.TemporaryDirectory()
    config.add_cleanup(data.cleanup)
    os.environ["XDG_DATA_HOME"] = data.name  # what tests say is no conversation of the user's
    with contextlib.suppress(FileNotFoundError):
        (cache_root() / SAID).touch()  # terminals show what they always show
    warm_up()
    with contextlib.suppress(RegistryError):
        fast_options(resolve(None).path, 1)  # one verdict for both processes


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in set(TIERS).intersection(getattr(item, "fixturenames", ())):
            item.add_marker(TIERS[fixture])


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


@pytest.fixture(scope="session")
def built_models() -> ModuleType:
    """The module `built_models.py` of this folder."""
    path = Path(__file__).with_name("built_models.py")
    spec = importlib.util.spec_from_file_location("edgespec_built_models", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def recurrent_model(built_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Mamba of random weights."""
    path: Path = built_models.write_mamba(tmp_path_factory.mktemp("models") / "mamba.gguf")
    return path


@pytest.fixture(scope="session")
def toy_target(built_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama of random weights that reads and writes bytes."""
    path: Path = built_models.write_llama(tmp_path_factory.mktemp("models") / "toy.gguf")
    return path


@pytest.fixture(scope="session")
def encoder_model(built_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of random weights that pools by the mean."""
    path: Path = built_models.write_bert(tmp_path_factory.mktemp("models") / "bert.gguf")
    return path


@pytest.fixture(scope="session")
def windowed_model(built_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 of random weights; two of four layers see 64 tokens."""
    path: Path = built_models.write_windowed(tmp_path_factory.mktemp("models") / "windowed.gguf")
    return path


@pytest.fixture(scope="session")
def hybrid_model(built_models: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LFM2 of random weights."""
    path: Path = built_models.write_hybrid(tmp_path_factory.mktemp("models") / "hybrid.gguf")
    return path


@pytest.fixture(scope="session")
def renumbered_model(
    built_models: ModuleType, default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The default model with its tokens in another order: the same texts, other ids."""
    order = np.random.default_rng(7).permutation(_vocabulary_size(default_model))
    path = tmp_path_factory.mktemp("models") / "renumbered.gguf"
    built_models.rewrite_vocabulary(default_model, path, order, lambda _id, text: text)
    return path


@pytest.fixture(scope="session")
def reworded_model(
    built_models: ModuleType, default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The default model with other ids, and other texts for a third of its longer tokens."""
    order = np.random.default_rng(8).permutation(_vocabulary_size(default_model))
    path = tmp_path_factory.mktemp("models") / "reworded.gguf"

    def text(token: int, old: str) -> str:
        special = old.startswith("<")
        return f"Qqz{token}" if token % 3 == 0 and len(old) > 1 and not special else old

    built_models.rewrite_vocabulary(default_model, path, order, text)
    return path


@pytest.fixture(scope="session")
def other_model() -> Callable[[str], Path]:
    """A file of the folder EDGESPEC_TEST_MODELS, by its name; the test is skipped without it."""

    def find(name: str) -> Path:
        folder = os.environ.get("EDGESPEC_TEST_MODELS")
        if not folder or not (Path(folder) / name).is_file():
            pytest.skip(f"no {name} in the folder that EDGESPEC_TEST_MODELS names")
        return Path(folder) / name

    return find


def _vocabulary_size(path: Path) -> int:
    from edgespec.gguf.header import read_header

    return read_header(path).vocabulary_size
