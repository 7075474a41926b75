"""`edgespec chats`, and conversations without a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from edgespec.chat.archive import Archive
from edgespec.chat.events import Entry, header
from edgespec.cli.main import main

Chats = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Chats:
    """`edgespec chats ARGUMENTS`: exit status, output, errors."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["chats", *arguments])
        shown = capfd.readouterr()
        return int(str(ended.value.code)), shown.out, shown.err

    return run


@pytest.fixture
def ids(chats: Chats) -> list[str]:
    """Of two stored conversations, the later one first."""
    stored = []
    for number, (said, answer) in enumerate((("One\x1b[31m?", "1"), ("Two 語?", "2"))):
        journal = Archive().create()
        texts = [Entry("user", said, "2026-01-02T03:04:05+00:00"), Entry("assistant", answer, "")]
        events = [entry.event(at) for at, entry in enumerate(texts)]
        journal.append([header(journal.id, "t", None), *events])
        journal.close()
        path = Archive().folder / f"{journal.id}.jsonl"
        os.utime(path, ns=(number, number))
        stored.append(journal.id)
    return stored[::-1]


def test_list(chats: Chats, ids: list[str]) -> None:
    status, out, err = chats("list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines] == [["1", ids[0]], ["2", ids[1]]]
    assert lines[0].endswith("Two 語?")
    assert lines[1].endswith("One[31m?")
    assert ids[1] not in chats("list", "-n", "1")[1]
    assert ids[0] not in chats("list", "one")[1]
    row = json.loads(chats("list", "--json")[1])[1]
    assert (row["id"], row["messages"], row["unanswered"]) == (ids[1], 1, False)


def test_search_show_and_export(chats: Chats, ids: list[str], tmp_path: Path) -> None:
    found = chats("search", "TWO")[1].splitlines()
    assert found[0].startswith(ids[0])
    assert found[1] == "     message 1, you: Two 語?"
    assert "## You\n\nOne[31m?\n" in chats("show", "2")[1]
    path = tmp_path / "one.json"
    assert chats("export", ids[1], str(path)) == (0, "", "")
    assert json.loads(path.read_text("utf-8"))["messages"][0]["content"] == "One\x1b[31m?"
    status, out, err = chats("export", ids[0], str(path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "--force writes over it" in err
    assert chats("export", ids[0], str(path), "--force")[0] == 0
    assert json.loads(path.read_text("utf-8"))["id"] == ids[0]


def test_remove(chats: Chats, ids: list[str]) -> None:
    assert chats("remove", ids[0], "--yes") == (0, "", "")
    assert Archive().ids() == [ids[1]]


@pytest.mark.parametrize(
    ("typed", "status", "last"),
    [
        ("", 2, "edgespec: nobody answered, nothing was deleted: --yes does not ask"),
        ("n\n", 0, "kept"),
    ],
)
def test_nothing_is_removed_without_a_yes(
    chats: Chats,
    ids: list[str],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    status: int,
    last: str,
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(typed))
    ended, out, err = chats("remove", ids[0])
    assert (ended, out) == (status, "")
    assert err.endswith(f"{last}\n")
    assert Archive().ids() == ids


def test_nothing_to_show_is_said(chats: Chats) -> None:
    assert chats("list") == (0, "", "edgespec: no conversation is stored yet\n")
    nothing = (0, "", "edgespec: no conversation has all these words\n")
    assert chats("list", "word") == nothing
    assert chats("search", "word") == (0, "", "edgespec: no message has all these words\n")
    assert chats("list", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("show", "7"), "there is no conversation '7'"),
        (("show", "../../etc"), "there is no conversation"),
        (("remove", "0000000", "--yes"), "there is no conversation"),
        (("export", "1", "x.txt"), ".json or .md"),
        (("search",), "Missing argument"),
    ],
)
def test_mistakes_cost_one_line(
    chats: Chats, ids: list[str], arguments: tuple[str, ...], problem: str
) -> None:
    status, out, err = chats(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert problem in err


def test_a_damaged_file_is_mentioned(chats: Chats, ids: list[str]) -> None:
    (Archive().folder / "0000000.jsonl").write_text("foreign\n")
    status, out, err = chats("list")
    assert (status, len(out.splitlines())) == (0, 2)
    assert "is not a stored conversation: line 1: it is not JSON" in err
    assert chats("remove", "0000000", "--yes")[0] == 0
    assert chats("list")[2] == ""


def test_no_numba_is_needed(chats: Chats, ids: list[str], edgespec: Any) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from edgespec.cli.main import main\n"
        "try: main(['chats', 'list'])\n"
        "finally: assert 'numba' not in sys.modules and 'llama_cpp' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
