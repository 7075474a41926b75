"""Two reports: what became slower is found, what only jitters is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.compare import main


def write(path: Path, factor: dict[str, float], seed: int, count: int = 20) -> Path:
    generator = np.random.default_rng(seed)
    pairs: list[dict[str, Any]] = []
    for category, slowness in factor.items():
        for number in range(count):
            noise = generator.normal(1.0, 0.02, 2)
            pairs.append(
                {
                    "task": f"{category}-{number}",
                    "category": category,
                    "temperature": 0.0,
                    "round": 0,
                    "plain": {"tokens": 100, "decode_s": noise[0]},
                    "speculative": {"tokens": 100, "decode_s": slowness * noise[1]},
                }
            )
    path.write_text(json.dumps({"settings": {"k": "auto"}, "pairs": pairs}))
    return path


def run(monkeypatch: pytest.MonkeyPatch, old: Path, new: Path) -> object:
    monkeypatch.setattr(sys, "argv", ["compare", str(old), str(new)])
    try:
        main()
    except SystemExit as error:
        return error.code
    return 0


def test_noise_is_not_a_loss_and_a_loss_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.json", {"prose": 1.0, "copying": 0.7}, 1)
    same = write(tmp_path / "same.json", {"prose": 1.0, "copying": 0.7}, 2)
    slower = write(tmp_path / "slower.json", {"prose": 1.0, "copying": 0.8}, 3)
    assert run(monkeypatch, old, same) == 0
    assert "copying" in capsys.readouterr().out
    assert run(monkeypatch, old, slower) == "slower: copying"
    assert run(monkeypatch, slower, old) == 0


def test_what_cannot_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write(tmp_path / "old.json", {"prose": 1.0}, 1)
    few = write(tmp_path / "few.json", {"prose": 1.0}, 1, count=2)
    assert "nothing can be said" in str(run(monkeypatch, old, few))
    few.write_text("[]")
    assert "not a report" in str(run(monkeypatch, old, few))
