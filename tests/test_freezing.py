"""A program that PyInstaller packs has all that edgespec needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.freezing import hook_folders
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
    entry = '[project.entry-points.pyinstaller40]\nhook-dirs = "edgespec.freezing:hook_folders"\n'
    assert entry in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.slow
def test_a_packed_program_answers(default_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller", reason="PyInstaller is not installed")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, "utf-8")
    places = [f"--{kind}path={tmp_path / kind}" for kind in ("dist", "work", "spec")]
    hooks = f"--additional-hooks-dir={hook_folders()[0]}"
    build = [sys.executable, "-m", "PyInstaller", "--noconfirm", hooks, *places, str(script)]
    subprocess.run(build, check=True, capture_output=True, timeout=1800)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["EDGESPEC_CACHE"] = str(tmp_path / "cache")
    packed = [tmp_path / "dist" / "program" / "program", default_model]
    plain = [sys.executable, script, default_model]
    answers = [
        subprocess.run(command, check=True, capture_output=True, text=True, env=more).stdout
        for command, more in ((packed, environment), (plain, dict(os.environ)))
    ]
    assert answers[0] == answers[1] != ""
    assert list((tmp_path / "cache" / "kernels").iterdir())
