"""What people ask a chat model: two or three conversations of each kind, by the user's turns.

The long texts are in `texts/`. Where an answer is to repeat its prompt, small models
really do so with this wording.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["WORKLOADS"]

_TEXTS = Path(__file__).with_name("texts")


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
"""Kind -> conversations; a conversation is the user's messages, in order."""
