"""Ctrl-C in the midst of a first load leaves nothing half done in the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
import signal
import sys

import edgespec

every, seen, waiting, caught = int(sys.argv[2]), 0, False, 0


def interrupt_sometimes(event, _arguments):
    '''At every so many imports and opened files, once the last Ctrl-C was noticed.'''
    global seen, waiting
    if every and not waiting and event in ("import", "open"):
        seen += 1
        if seen % every == 0:
            waiting = True
            signal.raise_signal(signal.SIGINT)


def answer():
    global every
    with edgespec.load(sys.argv[1], edgespec.EngineOptions(draft="ngram")) as engine:
        every = 0
        limits = edgespec.GenerationLimits(max_tokens=8)
        greedy = edgespec.SamplingParameters(temperature=0)
        return [chunk.token for chunk in engine.generate("The sky is", greedy, limits)]


sys.addaudithook(interrupt_sometimes)
while True:
    try:
        tokens = answer()
        break
    except KeyboardInterrupt:
        caught += 1
        waiting, every = False, 2 * every
print(caught, *tokens)
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", [11, 160, 700])
def test_a_first_load_that_is_interrupted(default_model: Path, tmp_path: Path, every: int) -> None:
    def tokens(often: int) -> tuple[int, list[str]]:
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "EDGESPEC_CACHE": str(tmp_path / str(often)),
        }  # fmt: skip
        command = [sys.executable, "-c", PROGRAM, default_model, str(often)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=environment
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
        caught, *ids = done.stdout.split()
        return int(caught), ids

    (times, interrupted), (never, whole) = tokens(every), tokens(0)
    assert times > 0 == never
    assert interrupted == whole and len(whole) == 8
