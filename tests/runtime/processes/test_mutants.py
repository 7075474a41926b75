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
