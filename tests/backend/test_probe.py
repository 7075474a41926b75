"""A file that ends the process is found out in a process of its own, once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from edgespec import Engine, EngineOptions
from edgespec.backend import probe, require_sound
from edgespec.errors import ModelFileError
from edgespec.gguf import checks
from edgespec.gguf.header import read_header


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


_BLINDED = "from edgespec.gguf import checks\nchecks._SECTIONED = frozenset()\n"


@pytest.fixture
def aborting(built_models: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that llama.cpp loads, and ends the process at its first evaluation.

    The header's check knows what is wrong with it, and is made not to: here, and in processes that
    are started with this path.
    """
    monkeypatch.setattr(checks, "_SECTIONED", frozenset())
    folder = tmp_path / "blinded"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_BLINDED)
    monkeypatch.syspath_prepend(folder)
    path: Path = built_models.write_llama(tmp_path / "odd.gguf", architecture="paddleocr")
    return path


def test_a_sound_file_is_tried_once(
    toy_target: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = read_header(toy_target)
    require_sound(header)
    assert len([*(cache / "probed").iterdir()]) == 1
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    require_sound(header)
    copy = cache / "copy.gguf"
    copy.write_bytes(toy_target.read_bytes())
    require_sound(read_header(copy))  # known by its content
    assert len([*(cache / "probed").iterdir()]) == 1


@pytest.mark.parametrize(
    "model", ["recurrent_model", "windowed_model", "hybrid_model", "toy_target"]
)
def test_every_kind_of_model_passes(
    model: str, request: pytest.FixtureRequest, cache: Path
) -> None:
    require_sound(read_header(request.getfixturevalue(model)))
    assert len([*(cache / "probed").iterdir()]) == 1


def test_what_ends_the_process_is_one_line(aborting: Path, cache: Path) -> None:
    with pytest.raises(ModelFileError, match=r"ended the process.*--no-probe") as raised:
        Engine(aborting, EngineOptions(draft="none"))
    assert "\n" not in str(raised.value)
    assert not (cache / "probed").exists()
    with pytest.raises(ModelFileError, match="ended the process"):
        require_sound(read_header(aborting))  # not remembered as sound


def test_a_draft_that_ends_the_process_is_one_line(toy_target: Path, aborting: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be used: trying it ended"):
        Engine(toy_target, EngineOptions(draft=str(aborting), threads=1))


def test_what_takes_too_long_is_ended(toy_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LEAST_S", 0.02)
    with pytest.raises(ModelFileError, match="was not done in 0 seconds"):
        require_sound(read_header(toy_target))


def test_what_llama_cpp_refuses_itself_is_left_to_it(
    built_models: ModuleType, tmp_path: Path, cache: Path
) -> None:
    path = built_models.write_llama(tmp_path / "unknown.gguf", architecture="nosuch")
    require_sound(read_header(path))
    assert not (cache / "probed").exists()


def test_without_an_interpreter_nothing_is_tried(
    aborting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    require_sound(read_header(aborting))
