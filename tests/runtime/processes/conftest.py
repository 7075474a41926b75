"""Real programs in processes of their own: how they start and end is what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

LONG_S = 120

BEGINNING = '''\
import asyncio, multiprocessing, os, signal, sys, threading
import edgespec
from edgespec import EngineOptions, GenerationLimits, SamplingParameters

MODEL = sys.argv[1]
GREEDY = SamplingParameters(temperature=0.0)
SHORT, LONG = GenerationLimits(8), GenerationLimits(1500, allow_loops=True)


def load(model=MODEL):
    return edgespec.load(model, EngineOptions(threads=2, context=2048, k=3, draft="ngram"))


def endless(engine):
    """Greedy, without an end."""
    ends = dict.fromkeys(engine.vocabulary.end_tokens, float("-inf"))
    return SamplingParameters(temperature=0.0, logit_bias=ends)


'''


@pytest.fixture
def run(default_model: Path, tmp_path: Path) -> Callable[..., str]:
    """Run a script behind BEGINNING; it has to end by itself with status 0 and no complaint."""

    def run_script(text: str, *arguments: object) -> str:
        script = tmp_path / "program.py"
        script.write_text(BEGINNING + dedent(text))
        here = Path(__file__).parent
        done = subprocess.run(
            [sys.executable, script, default_model, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
            env={**os.environ, "PYTHONPATH": f"{here.parents[2]}{os.pathsep}{here}"},
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done.stdout

    return run_script
