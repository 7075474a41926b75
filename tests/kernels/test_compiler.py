from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.kernels import compiler
from edgespec.kernels.compiler import Kernels, compile_object
from edgespec.kernels.formats import FORMATS
from edgespec.kernels.isa import INSTRUCTION_SETS, choose

Q8_0 = FORMATS[8]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiler, "cache_folder", lambda _: tmp_path)
    return tmp_path


def test_an_object_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kernels(choose()).multiply(Q8_0)
    assert len(first) == choose().columns and all(first)
    assert len(list(folder.iterdir())) == 1

    def fail(*_: object, **__: object) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "compile_object", fail)
    assert all(Kernels(choose()).multiply(Q8_0))


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_object_is_compiled_again(folder: Path, damage: bytes | None) -> None:
    Kernels(choose()).multiply(Q8_0)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert all(Kernels(choose()).multiply(Q8_0))
    assert path.read_bytes() == whole


def test_a_folder_that_is_full_or_gone_costs_only_compiling(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(compiler, "replace_file", full)
    assert all(Kernels(choose()).multiply(Q8_0))
    monkeypatch.setattr(compiler, "cache_folder", lambda _: None)
    assert all(Kernels(choose()).multiply(Q8_0))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS.values(), ids=lambda isa: isa.name)
def test_code_is_made_for_every_processor_on_any(isa: object) -> None:
    """Objects for processors that this one is not: compiled, with the instruction they need."""
    assert len(compile_object(isa, FORMATS[12])) > 4096  # type: ignore[arg-type]
