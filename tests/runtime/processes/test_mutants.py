"""Mutants of tiny models: `models info` and `run` say one clear line or an answer, and end."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

KINDS = ("toy_target", "windowed_model", "recurrent_model", "hybrid_model", "experts_model")
SECONDS = 60  # that a whole command may take, on a busy machine
NOTICE = "Compiling kernels"  # once in a new cache
ODD = (0, 1, 2, 3, 5, 17, 63, 65, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


@pytest.fixture(scope="module")
def experts_model(built_models: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = built_models.write_experts(tmp_path_factory.mktemp("models") / "experts.gguf")
    return path


def mutate(source: Path, target: Path, seed: int) -> str:
    """Write a copy with a few changes in what stands before the weights; return what they were."""
    chance = random.Random(seed)
    data = bytearray(source.read_bytes())
    reader = GGUFReader(source)
    end = int(reader.data_offset)
    scalars = [
        field
        for field in reader.fields.values()
        if len(field.types) == 1 and field.parts[-1].nbytes == 4 and not field.name.startswith("GG")
    ]
    kinds = [(tensor.name, tensor.field) for tensor in reader.tensors]
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        way = chance.randrange(4)
        if way == 0:  # a number of the metadata
            field = chance.choice(scalars)
            place, value = int(field.offset + sum(p.nbytes for p in field.parts[:-1])), 0
            value = chance.choice(ODD)
            data[place : place + 4] = struct.pack("<I", value)
            done.append(f"{field.name}={value}")
        elif way == 1:  # a tensor's type
            name, field = chance.choice(kinds)
            place = int(field.offset + sum(part.nbytes for part in field.parts[:4]))
            value = chance.choice((1, 2, 8, 9, 12, 15, 24, 25, 26, 27, 28, 30, 99))
            data[place : place + 4] = struct.pack("<I", value)
            done.append(f"{name}:{value}")
        elif way == 2:  # a bit anywhere
            place = chance.randrange(24, end)
            data[place] ^= 1 << chance.randrange(8)
            done.append(f"bit of {place}")
        else:  # the weights are cut off
            data = data[: chance.randrange(24, len(data))]
            done.append(f"cut to {len(data)}")
            break
    target.write_bytes(data)
    return f"{source.stem}, seed {seed}: {'; '.join(done)}"


def check(path: Path, what: str, folder: Path) -> None:
    environment = {**os.environ, "EDGESPEC_CACHE": str(folder), "OMP_WAIT_POLICY": "PASSIVE"}
    for command in (
        ["models", "info", str(path)],
        ["run", str(path), "--raw", "--draft", "none", "-p", "Hé 12", "--max-tokens", "3"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "edgespec", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        said = done.stderr.decode("utf-8", "replace")
        said = "".join(f"{line}\n" for line in said.splitlines() if not line.startswith(NOTICE))
        assert done.returncode in (0, 1, 2), (what, command[0], done.returncode, said)
        if done.returncode:
            assert said.count("\n") == 1 and said.startswith("edgespec: "), (what, said)
            assert "internal error" not in said, (what, said)


def mutants(find: Callable[[str], Path], folder: Path, seeds: range) -> None:
    for seed in seeds:
        path = folder / f"mutant{seed}.gguf"
        check(path, mutate(find(KINDS[seed % len(KINDS)]), path, seed), folder)
        path.unlink()


def test_mutants_end_in_a_line_or_an_answer(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    mutants(request.getfixturevalue, tmp_path, range(4))


@pytest.mark.slow
def test_many_mutants_end_in_a_line_or_an_answer(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    first = int(os.environ.get("EDGESPEC_MUTANTS_FROM", "4"))
    count = int(os.environ.get("EDGESPEC_MUTANTS", "120"))
    mutants(request.getfixturevalue, tmp_path, range(first, first + count))


ARCHITECTURES = ("llama", "qwen2", "internlm2", "minicpm", "smollm3", "exaone", "ernie4_5")
TOKENIZERS = ("llama", "t5", "plamo2", "rwkv")
# Imports once, and forks for each file that it is told: tried as a new file is, and then used.
TRYING = """
import os, sys, time
from edgespec import Engine, EngineOptions, GenerationLimits
from edgespec.backend.probe import use
from edgespec.errors import EdgespecError

def answer(path, size):
    try:
        with Engine(path, EngineOptions(draft="none", k=0, threads=1, probe=False)) as engine:
            engine.generate("H\\u00e9 12", limits=GenerationLimits(max_tokens=3)).result
    except EdgespecError as error:
        sys.exit(0 if "\\n" not in str(error) else 4)
    return 0

def ended(work, path):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        status = 5
        try:
            status = work(path, str(os.stat(path).st_size))
        except SystemExit as end:
            status = end.code
        finally:
            os._exit(status)
    for _ in range(int(sys.argv[1]) * 100):
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss
        time.sleep(0.01)
    os.kill(child, 9)
    os.wait4(child, 0)
    return "hangs", 0

for line in sys.stdin:
    path = line.rstrip("\\n")
    tried, _ = ended(use, path)
    status, peak = ended(answer, path) if tried == 0 else (0, 0)
    print(tried, status, peak, flush=True)
"""


@pytest.fixture(scope="module")
def sound_models(
    built_models: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """Every architecture that is built here, and every kind of tokenizer."""
    folder = tmp_path_factory.mktemp("sound")
    models = [request.getfixturevalue(kind) for kind in KINDS]
    for name in ARCHITECTURES:
        models.append(built_models.write_llama(folder / f"{name}.gguf", architecture=name))
    for name in TOKENIZERS:
        models.append(built_models.write_llama(folder / f"{name}-words.gguf", tokenizer=name))
    return models


def tried(paths: list[Path], folder: Path, seconds: int) -> list[list[str]]:
    """How each ends when it is tried, how when it is used after that, and the memory it took."""
    done = subprocess.run(
        [sys.executable, "-c", TRYING, str(seconds)],
        env={**os.environ, "EDGESPEC_CACHE": str(folder)},
        input="".join(f"{path}\n" for path in paths).encode(),
        capture_output=True,
        check=True,
    )
    return [line.split() for line in done.stdout.decode().splitlines()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_what_was_tried_can_be_used(sound_models: list[Path], tmp_path: Path, count: int) -> None:
    """A mutant that may end the process does so where it is tried, and not later."""
    first = int(os.environ.get("EDGESPEC_MUTANTS_FROM", "0"))
    seeds = range(first, first + int(os.environ.get("EDGESPEC_MUTANTS", count)))
    paths, what = [], []
    for seed in seeds:
        paths.append(tmp_path / f"mutant{seed}.gguf")
        what.append(mutate(sound_models[seed % len(sound_models)], paths[-1], seed))
    sound = tried(sound_models, tmp_path, 300)  # what is compiled once is compiled here
    assert [entry[:2] for entry in sound] == [["0", "0"]] * len(sound_models)
    most = max(int(peak) for *_, peak in sound)
    found = tried(paths, tmp_path, 20)
    assert len(found) == len(paths)
    for mutant, (trial, use, peak) in zip(what, found, strict=True):
        assert use == "0", (mutant, trial, use)
        assert trial != "5", mutant
        assert int(peak) - most < 100 << 10, (mutant, peak)
    assert {"0", "3"} <= {trial for trial, *_ in found}
