"""A program that PyInstaller packs has all that edgespec needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgespec.extras import hook_folders
from tests.pages import ROOT

PROGRAM = """
import sys
import edgespec

if __name__ == "__main__":
    limits = edgespec.GenerationLimits(max_tokens=8)
    with edgespec.load(sys.argv[1]) as engine:
        greedy = edgespec.SamplingParameters(temperature=0)
        print("".join(chunk.text for chunk in engine.generate("The sky is", greedy, limits)))
"""


def test_the_hook_is_found() -> None:
    (folder,) = hook_folders()
    assert (Path(folder) / "hook-edgespec.py").is_file()
    entry = '[project.entry-points.pyinstaller40]\nhook-dirs = "edgespec.extras:hook_folders"\n'
    assert entry in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["onedir", "onefile"])
def test_a_packed_program_answers_and_keeps_its_kernels(
    default_model: Path, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, "utf-8")
    places = [f"--{name}path={tmp_path / name}" for name in ("dist", "work", "spec")]
    options = [f"--{kind}", f"--additional-hooks-dir={hook_folders()[0]}", *places]
    build = [sys.executable, "-m", "PyInstaller", "--noconfirm", *options, str(script)]
    subprocess.run(build, check=True, capture_output=True, timeout=1800)
    program = tmp_path / "dist" / "program"
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    environment = {**os.environ, "EDGESPEC_CACHE": str(cache), "HOME": str(home)}
    environment.pop("PYTHONPATH", None)

    def answer(*command: object, **more: Any) -> str:
        text = [str(part) for part in (*command, default_model)]
        done = subprocess.run(text, check=True, capture_output=True, text=True, **more)
        return str(done.stdout)

    def compiled() -> dict[Path, int]:
        found = (cache / "kernels").rglob("*.nb[ic]")
        return {path: path.stat().st_mtime_ns for path in found}

    packed = program / "program" if kind == "onedir" else program
    first = answer(packed, env=environment, cwd=home)
    assert first == answer(sys.executable, script) != ""
    kept = compiled()
    assert len(kept) > 20
    assert answer(packed, env=environment, cwd=tmp_path) == first
    assert compiled() == kept
    assert not list(home.rglob("*.nb[ic]"))
