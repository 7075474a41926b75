"""`--trace FILE` from outside: what it holds, and a file that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

OPTIONS = ("--temperature", "0", "--max-tokens", "8", "--threads", "2", "--ctx", "512")


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_run_and_chat_append_to_one_file(edgespec: Any, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    trace = ("--trace", str(file))
    done = edgespec("run", "-p", "Count to ten.", "--json", *OPTIONS, *trace)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    cycles = [line for line in read(file) if line["type"] == "cycle"]
    tokens = [token for cycle in cycles for token in cycle["tokens"]]
    assert tokens[: len(answer["tokens"])] == answer["tokens"]
    assert read(file)[-1]["speculation"] == answer["speculation"]

    done = edgespec("chat", *OPTIONS, *trace, input=b"Name a river.\nAnother one.\n")
    assert done.returncode == 0, done.stderr
    lines = read(file)
    starts = [line for line in lines if line["type"] == "generation"]
    assert len(starts) == len([line for line in lines if line["type"] == "end"]) == 3
    # The second message's prompt has the first one's answer in it.
    assert len(starts[2]["prompt"]) > len(starts[1]["prompt"])


@pytest.mark.parametrize("command", [("run", "-p", "hi"), ("chat",)])
def test_a_file_that_cannot_be_written_is_one_line(
    edgespec: Any, tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = edgespec(*command, "--trace", str(tmp_path / "missing" / "file"))
    assert done.returncode == 2
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("edgespec: cannot write the trace")


def test_help_says_that_it_holds_the_text(edgespec: Any) -> None:
    for command in ("run", "chat"):
        words = edgespec(command, "--help").stdout.decode().split()
        described = " ".join(words[words.index("--trace") :][:14])
        assert "prompts and answers" in described
