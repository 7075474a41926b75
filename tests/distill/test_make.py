"""`edgespec distill` from a target to a measured draft; interrupted, and gone on with."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec.backend import capabilities
from edgespec.cli.main import main
from edgespec.gguf.header import read_header
from tests.built_models import WIDTH

pytest.importorskip("torch", reason='PyTorch is not installed: pip install "edgespec[distill]"')

PLAN = {"hours": 1.0, "writing_rate": 1000.0, "training_rate": 2000.0, "tokens": 3000, "steps": 30}


def planned(work: Path, kind: str, vocabulary: int = 128, **changes: Any) -> list[str]:
    """Arguments of a small run: the plan of a work folder holds for the same hours."""
    folder = work / f"{kind}-{vocabulary}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps({**PLAN, **changes}))
    words = ["--kind", kind, "--hours", "1", "--vocabulary", str(vocabulary)]
    return [*words, "--work", str(work)]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["distill", *words])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize(("kind", "tokens"), [("medusa", 3000), ("eagle3", 3000), ("tiny", 5000)])
def test_from_a_target_to_a_draft(
    kind: str,
    tokens: int,
    work: Path,
    toy_target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kind == "eagle3" and not capabilities().eagle:
        pytest.skip("this build of llama.cpp cannot run EAGLE-3 heads")
    if kind == "medusa":  # its text has no states of layers, which a head needs
        work = tmp_path / "work"
    output = tmp_path / "draft.gguf"
    options = planned(work, kind, tokens=tokens)
    assert run(str(toy_target), "-o", str(output), "--threads", "1", *options) == 0
    said = capsys.readouterr().out
    assert f"write {tokens:,} tokens" in said and "of held-out answers" in said
    assert "c 0." in said or "c 1" in said
    record = json.loads(output.with_suffix(".json").read_text())
    assert record["target_sha256"] and len(record["v"]) == 8
    assert {entry["format"] for entry in record["formats"]} == {"Q8_0", "Q5_0", "Q4_0"}
    assert all(0 < entry["alpha_sampled"][0] < 1 for entry in record["formats"])
    header = read_header(output)
    assert record["tasks"]["sampled"] == pytest.approx(header.held_out.sampled)
    assert 0 < record["tasks"]["sampled"][0] < 1
    assert {"eagle3": header.eagle, "medusa": header.medusa, "tiny": header.reduced}[kind]

    # Text for the one kind is good for the other, also what was added for it.
    shards = [np.load(path) for path in (work / "text").glob("shard-*/layers.npy")]
    if kind == "tiny" and capabilities().eagle:
        assert len(shards) > 1 and {array.shape[1] for array in shards} == {3 * WIDTH}

    # Whatever it has learned, it changes nothing.
    answers = []
    for draft in ("none", str(output)):
        choices = EngineOptions(draft=draft, k=3 if draft != "none" else None, threads=1)
        with Engine(toy_target, choices) as engine:
            sampling = SamplingParameters(temperature=0.0)
            stream = engine.generate("Some text", sampling, GenerationLimits(max_tokens=40))
            answers.append(stream.result.tokens)
    assert answers[0] == answers[1]

    # A step on, from the file: as good at once; output rows of a head are the target's.
    words = planned(work, kind, tokens=tokens, steps=1, vocabulary=64)
    further = tmp_path / "further.gguf"
    words += ["--from", str(output), "--threads", "1"]
    assert run(str(toy_target), "-o", str(further), *words) == 0
    again = json.loads(further.with_suffix(".json").read_text())
    assert again["recipe"]["started_from"] == hashlib.sha256(output.read_bytes()).hexdigest()
    kept = 64 if kind != "tiny" else record["recipe"]["vocabulary"]
    assert again["recipe"]["vocabulary"] == kept
    best, found = (max(e["alpha_sampled"][0] for e in r["formats"]) for r in (record, again))
    assert found > best - 0.05
    other = "tiny" if kind != "tiny" else "eagle3"
    if other == "tiny" or capabilities().eagle:
        words = planned(tmp_path / "other", other, tokens=500, steps=1)
        assert run(str(toy_target), "-o", str(further), "--from", str(output), *words) == 2
        assert f"not shaped like the {other} drafts" in capsys.readouterr().err


def test_an_interruption(toy_target: Path, tmp_path: Path) -> None:
    work, output = tmp_path / "work", str(tmp_path / "draft.gguf")
    words = [str(toy_target), "-o", output, "--threads", "1"]
    words += planned(work, "tiny", tokens=10**7)
    command = [sys.executable, "-m", "edgespec", "distill", *words]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ctrl-C" in line:
                break
        while not list((work / "text").glob("shard-*")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command continues" in complaint and "Traceback" not in complaint
    assert not list((work / "text").glob("*.partial"))


def test_tasks_from_documents(
    toy_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(toy_target), "-o", str(tmp_path / "d.gguf"), "--threads", "1"]
    words += planned(tmp_path / "work", "tiny", tokens=500, steps=1)
    package = Path(__file__).parents[2] / "edgespec" / "speculation"
    assert run(*words, "--documents", str(package)) == 0
    facts = json.loads((tmp_path / "work" / "text" / "corpus.json").read_text())
    assert re.search(r"tasks of many kinds and \d+ pieces of documents", facts["data"])
    # Other prompts are other text.
    assert run(*words) == 2
    assert "give another --work" in capsys.readouterr().err


def test_calls_that_are_wrong(
    toy_target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, output = str(toy_target), str(tmp_path / "d.gguf")
    for words, message in (
        ((target, "-o", str(tmp_path / "d.bin")), ".gguf"),
        ((target, "-o", output, "--vocabulary", "3"), "64 or more"),
        ((target, "-o", output, "--hours", "0"), "hours is 0"),
        ((target, "-o", output, "--data", str(tmp_path / "none.txt")), "cannot read"),
        ((target, "-o", output, "--documents", str(tmp_path / "none")), "no such file or folder"),
        ((target, "-o", output, "--data", "a.txt", "--documents", "b"), "give either"),
        ((str(tmp_path / "none.gguf"), "-o", output), "none.gguf"),
    ):
        assert run(*words) == 2
        assert message in capsys.readouterr().err.strip().splitlines()[-1]
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find(name)
    )
    assert run(target, "-o", output) == 1
    assert 'pip install "edgespec[distill]"' in capsys.readouterr().err
