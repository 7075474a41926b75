"""Which tasks there are, and in what order: our own, and files of Spec-Bench's form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec.benchmark.measuring import Task, choose_tasks, own_tasks, read_tasks
from edgespec.errors import UsageError


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def test_own_tasks_have_names_and_words() -> None:
    tasks = own_tasks()
    assert len({task.name for task in tasks}) == len(tasks) >= 18
    assert len({task.category for task in tasks}) == 9
    assert all(turn.strip() for task in tasks for turn in task.turns)


def test_a_file_of_questions(tmp_path: Path) -> None:
    path = write(
        tmp_path / "questions.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["One?", "Two?"]},
        {"question_id": 7, "category": "qa", "turns": ["Ä?"], "reference": ["more"]},
        {"turns": ["Three?"]},
    )
    assert read_tasks(path) == [
        Task("writing-81", "writing", ("One?", "Two?")),
        Task("qa-7", "qa", ("Ä?",)),
        Task("all-3", "all", ("Three?",)),
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no tasks"),
        (b"\n\n", "no tasks"),
        (b"\xff\xfe", "UTF-8"),
        (b"[]\n", "line 1"),
        (b'{"turns": ["a"]}\nnonsense\n', "line 2"),
        (b'{"turns": []}\n', "list of"),
        (b'{"turns": "a"}\n', "list of"),
        (b'{"turns": ["a", 3]}\n', "not text"),
        (b'{"turns": [" "]}\n', "empty"),
        (b'{"turns": ["a"], "category": 5}\n', "category"),
        (b'{"turns": ["a"], "question_id": 1}\n' * 2, "same question_id"),
        (b"[" * 100_000, "line 1"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        read_tasks(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_tasks(tmp_path / "missing.jsonl")


def test_categories_take_turns() -> None:
    tasks = [
        Task(f"{c}-{n}", c, ("x",))
        for c, count in (("a", 3), ("b", 1), ("c", 2))
        for n in range(count)
    ]
    names = [task.name for task in choose_tasks(tasks)]
    assert names == ["a-0", "b-0", "c-0", "a-1", "c-1", "a-2"]
    assert [task.name for task in choose_tasks(tasks, ["c", "a"], 1)] == ["c-0", "a-0"]
    with pytest.raises(UsageError, match="there are a, b, c"):
        choose_tasks(tasks, ["d"])
