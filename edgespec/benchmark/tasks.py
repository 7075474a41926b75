"""Tasks: those that edgespec brings, or a file in the form of Spec-Bench's questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from edgespec.errors import UsageError

__all__ = ["WORKLOADS", "Task", "choose_tasks", "own_tasks", "read_tasks"]

_MOST_BYTES = 64 << 20

_TEXTS = Path(__file__).with_name("texts")


@dataclass(frozen=True)
class Task:
    """One conversation.

    Attributes:
        name: unique.
        category: what it is summarized under.
        turns: the user's messages, in order.
    """

    name: str
    category: str
    turns: tuple[str, ...]


def own_tasks() -> list[Task]:
    """Return the tasks that edgespec brings."""
    return [
        Task(f"{category}-{number}", category, tuple(turns))
        for category, conversations in WORKLOADS.items()
        for number, turns in enumerate(conversations, 1)
    ]


def read_tasks(path: Path) -> list[Task]:
    """Read tasks: each line a JSON object with "turns", "category" and "question_id".

    This is the form of Spec-Bench (Xia et al. 2024) and of MT-Bench.

    Raises:
        UsageError: it cannot be read, or a line is not of that form.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8: convert it first") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES >> 20} MiB: it is no list of tasks")
    tasks = list(_parse(path, text))
    if not tasks:
        raise UsageError(f"{path} has no tasks")
    if len({task.name for task in tasks}) < len(tasks):
        raise UsageError(f"{path} has two tasks of one category with the same question_id")
    return tasks


def choose_tasks(
    tasks: Sequence[Task], categories: Sequence[str] = (), limit: int | None = None
) -> list[Task]:
    """Choose tasks of these categories, or of all, at most `limit` of each.

    Categories take turns, so that a run that stops early has had as many of each.

    Raises:
        UsageError: there is no such category.
    """
    by_category: dict[str, list[Task]] = {}
    for task in tasks:
        by_category.setdefault(task.category, []).append(task)
    for name in categories:
        if name not in by_category:
            raise UsageError(f"no category {name!r}: there are {', '.join(sorted(by_category))}")
    wanted = [by_category[name][:limit] for name in dict.fromkeys(categories) or by_category]
    return [task for some in zip_longest(*wanted) for task in some if task is not None]


def _parse(path: Path, text: str) -> Iterator[Task]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _task(json.loads(line), number)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from None


def _task(item: Any, number: int) -> Task:
    turns = item.get("turns") if isinstance(item, dict) else None
    if not isinstance(turns, list) or not turns:
        raise ValueError('it is not an object with a list of "turns"')
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError("a turn is not text, or empty")
    category = item.get("category", "all")
    if not isinstance(category, str) or not category:
        raise ValueError("the category is not text")
    return Task(f"{category}-{item.get('question_id', number)}", category, tuple(turns))


# -- the tasks that edgespec brings -------------------------------------------------------


def _text(name: str) -> str:
    return (_TEXTS / name).read_text("utf-8").strip()


def _first_paragraph(name: str) -> str:
    return _text(name).partition("\n\n")[0]


WORKLOADS: dict[str, list[list[str]]] = {
    "prose": [
        ["Write a short story about a lighthouse keeper who finds a letter in a bottle."],
        ["Describe a market in the early morning, before the first customers come."],
    ],
    "questions": [
        ["What is photosynthesis, and why do plants need light for it?"],
        ["Why is the sea salty, and why are rivers not?"],
    ],
    "code": [
        ["Write a Python class for a queue with a limited size, with a short example."],
        ["Write a SQL query that counts the orders of each customer, and explain it."],
    ],
    "summarizing": [
        [f"{_text('harbour.txt')}\n\nRepeat the most important sentences of this text."],
        [
            f"{_text('bakery.txt')}\n\nWhat are the most important sentences of this report? "
            "Quote them."
        ],
    ],
    "editing": [
        [
            f"```python\n{_text('inventory.txt')}\n```\n\n"
            "Print this file again, with the class Store called Inventory."
        ],
        [
            f"```python\n{_text('matrix.txt')}\n```\n\n"
            "Print this file again, with a docstring for every function."
        ],
    ],
    "copying": [
        [f"Copy this text word for word:\n\n{_first_paragraph('harbour.txt')}"],
        [f"Copy this text word for word:\n\n{_first_paragraph('bakery.txt')}"],
    ],
    "translation": [
        [f"Translate this into French:\n\n{_first_paragraph('bakery.txt')}"],
        [
            "Translate into German: The committee met on Monday, argued until Thursday, and "
            "agreed on nothing but the date of the next meeting."
        ],
    ],
    "extraction": [
        [
            f"{_first_paragraph('harbour.txt')}\n\nList the years in this text, each with what "
            'happened in it, as a JSON array of objects with the keys "year" and "event".'
        ],
        [
            "Anna Weber, 34, lives in Graz and repairs violins. Tomás Silva, 51, lives in Porto "
            "and paints boats. Li Wei, 28, lives in Xiamen and writes songs.\n\nWrite this as a "
            'JSON array of objects with the keys "name", "age", "city" and "work".'
        ],
    ],
    "conversation": [
        [
            "I want to grow tomatoes on a balcony. What do I need?",
            "How often do I have to water them?",
            "And what can I do against lice without poison?",
        ],
        [
            "Tell me something about the city of Lisbon.",
            "What would you look at there in one day?",
            "Write a postcard from there to my grandmother.",
        ],
    ],
}
"""Kind -> conversations; a conversation is the user's messages, in order.

Where an answer is to repeat its prompt, small models really do so with this wording.
"""
