"""`edgespec doctor`, `--help`, `--version`."""

from __future__ import annotations

import json
from typing import Any

from edgespec import __version__
from edgespec.backend import capabilities


def test_doctor_says_what_the_build_has(edgespec: Any) -> None:
    done = edgespec("doctor", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    build = capabilities()
    assert facts["tinyblas_kernels"] == build.tinyblas
    assert facts["hidden_states_of_layers"] == build.layer_taps
    assert set(facts["instruction_sets"]) <= build.features
    assert 0 < facts["memory_available_bytes"] <= facts["memory_bytes"]
    assert any("Rebuild" in line for line in facts["advice"]) == (build.tinyblas or build.amx)


def test_doctor_is_readable(edgespec: Any) -> None:
    text = edgespec("doctor").stdout.decode()
    assert "GiB" in text
    assert "llama cpp python" in text


def test_version_and_help(edgespec: Any) -> None:
    assert __version__ in edgespec("--version").stdout.decode()
    text = edgespec("--help").stdout.decode()
    for command in ("run", "chat", "models", "doctor"):
        assert command in text
    assert edgespec().returncode == 2


def test_an_unknown_command_is_one_line(edgespec: Any) -> None:
    done = edgespec("walk")
    assert done.returncode == 2
    assert len(done.stderr.decode().splitlines()) == 1
