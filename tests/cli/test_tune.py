"""`edgespec tune`: what it prints, what it stores, and what it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edgespec.cli.doctor import doctor
from edgespec.cli.tune import tune
from edgespec.control.speedup import Achieved
from edgespec.errors import EdgespecError
from edgespec.files import cache_root
from edgespec.runtime.processors import default_threads
from edgespec.tuning.profile import load_profile
from edgespec.tuning.setting import Setting, find_setting

_ON_A_CALM_MACHINE = (
    "import edgespec.cli.tune as tune; from edgespec.cli.main import main; "
    "tune.is_busy = lambda: False; main()"
)


class Command:
    """`edgespec tune MODEL` in this process, with a cache of its own."""

    def __init__(self, model: Path) -> None:
        self.model = model

    def __call__(self, *words: str) -> Result:
        words = (str(self.model), *words)
        return CliRunner().invoke(tune, words, standalone_mode=False, catch_exceptions=False)


def of_the_model(cache: Path) -> list[str]:
    """Names of what was kept of a model; how fast kernels are is the machine's alone."""
    names = [path.name for path in (cache / "measurements").glob("*")]
    return [name for name in names if not name.startswith("kernels-")]


@pytest.fixture
def command(default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    monkeypatch.setattr("edgespec.cli.tune.is_busy", lambda: False)  # other tests run beside it
    return Command(default_model)


@pytest.mark.slow
def test_what_was_measured_is_reported_and_kept(command: Command, tmp_path: Path) -> None:
    picture = tmp_path / "costs.png"
    profile = load_profile(command.model)
    profile.ngram["achieved"] = Achieved(1, 1.0, 1.0).as_json()
    profile.save()
    facts = json.loads(command("--seconds", "5", "--json", "--png", str(picture)).stdout)

    settings = facts["settings"]
    assert [s["chosen"] for s in settings].count(True) == 1
    chosen = next(s for s in settings if s["chosen"])
    assert chosen["kv_type"] == "f16"
    assert all(s["score_s"] > 0 and 0 < s["identical"] <= s["compared"] for s in settings)
    expected = {name: chosen[name] for name in ("threads", "flash_attention", "repack", "kernels")}
    assert facts["best"] == expected

    # Weighed as documented, by what is shown beside it.
    mix = facts["mix"]
    for s in settings:
        if len(s["scores"]) == 1:
            score = mix["prompt"] * s["prefill_s"] + mix["answer"] * s["token_s"]
            assert s["score_s"] == pytest.approx(score)

    kept = load_profile(command.model)
    assert kept.best == Setting(**expected)
    figures = facts["figures"]
    assert figures["sizes"][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    found = find_setting(command.model, kept.tuned["setting"])
    assert found is not None
    assert found.as_json() == figures
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "tuned" in CliRunner().invoke(doctor, [], standalone_mode=False).stdout

    shown = command("--explain")
    assert "v(n)" in shown.stdout
    assert "What would help most" in shown.stdout
    assert "(tuned)" in shown.stdout

    command("--reset")
    assert load_profile(command.model).best is None
    assert find_setting(command.model, kept.tuned["setting"]) is None
    assert of_the_model(tmp_path) == []


@pytest.mark.slow
def test_the_table_fits_and_says_what_changed(command: Command) -> None:
    done = command("--seconds", "5")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["threads", "flash", "kernels"]
    assert max(map(len, lines)) <= 80
    assert sum(line.endswith("*") for line in lines) == 1
    assert any("Engines open this model" in line for line in lines)
    assert "measuring" in done.stderr


@pytest.mark.slow
def test_a_draft_is_measured_beside_its_target(command: Command, default_model: Path) -> None:
    facts = json.loads(command("--seconds", "5", "--json", "--draft", str(default_model)).stdout)
    assert default_threads() in {trial["threads"] for trial in facts["draft"]}
    best = facts["draft"][0]
    assert best["cycle_s"] == min(trial["cycle_s"] for trial in facts["draft"])
    known = load_profile(command.model).draft(default_model)
    assert (known["threads"], known["step_s"]) == (best["threads"], best["step_s"])
    explained = json.loads(command("--explain", "--json", "--draft", str(default_model)).stdout)
    c = best["step_s"] / explained["token_s"]
    assert explained["draft"]["c"] == pytest.approx(c)
    assert explained["draft"]["outlooks"][1]["cost"] == pytest.approx(explained["v"][1] + c)


def test_wrong_calls_are_one_line(edgespec: Any, default_model: Path, tmp_path: Path) -> None:
    model = str(default_model)
    fresh = {**os.environ, "EDGESPEC_CACHE": str(tmp_path)}
    calls: tuple[tuple[int, tuple[str, ...]], ...] = (
        (2, (str(tmp_path / "none.gguf"),)),
        (2, (model, "--explain", "--reset")),
        (2, (model, "--png", "costs.pdf")),
        (2, (model, "--seconds", "0")),
        (1, (model, "--explain")),
    )
    for status, words in calls:
        done = edgespec("tune", *words, env=fresh)
        assert done.returncode == status, (words, done.stderr)
        assert len(done.stderr.decode().splitlines()) == 1, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(default_model: Path, tmp_path: Path) -> None:
    kernels = cache_root() / "kernels"
    if kernels.is_dir():
        (tmp_path / "kernels").symlink_to(kernels)  # compiled already
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_A_CALM_MACHINE, "tune", str(default_model), "--seconds", "300"],
        env={**os.environ, "EDGESPEC_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"measuring" in line:
                break
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.decode().strip() == "edgespec: interrupted"
    assert of_the_model(tmp_path) == []


def test_on_a_busy_machine_nothing_is_measured(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.cli.tune.is_busy", lambda: True)
    with pytest.raises(EdgespecError, match="this machine is busy") as caught:
        command("--seconds", "5")
    assert "\n" not in str(caught.value)
    assert of_the_model(tmp_path) == []


@pytest.mark.slow
def test_a_machine_that_gets_busy_leaves_no_figures(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([False] * 4)
    monkeypatch.setattr("edgespec.cli.tune.is_busy", lambda: next(looks, True))
    with pytest.raises(EdgespecError, match="this machine is busy"):
        command("--seconds", "30")
    assert of_the_model(tmp_path) == []
