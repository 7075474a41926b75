"""Puts tasks together: from words that are built in, from an excerpt, or from an earlier answer."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random
from typing import Any

from edgespec.distill.documents import Excerpt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

__all__ = ["excerpt_task", "follow_up", "free_task", "system_prompt"]

Messages = list[dict[str, Any]]

_SEEDS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("seeds.toml").read_text("utf-8")
)
"""Words that tasks are put together from."""

_PROSE_FORMS = (
    "Summarize this in {length}.",
    "What is this about? Answer in one sentence.",
    "Explain this to {reader}.",
    "Explain the most difficult word in this text.",
    "Rewrite this so that it is {style}.",
    "Rewrite this as {length} for {reader}.",
    "Translate the beginning into {language}.",
    "Translate this into {language}.",
    "Extract the most important facts as JSON: an array of objects with {fields}.",
    "List all names and numbers that occur here.",
    "Answer as JSON with the keys \"title\", \"summary\" and \"keywords\".",
    "Make a list of the main points.",
    "Turn this into a table in Markdown.",
    "Write three questions that this text answers, and the answers.",
    "Answer from the text only: what is the first thing that it says, and what follows from it?",
    "Answer from this text only, and say so if it is not in there: who is {name}?",
    "What does the text not say about {topic}?",
    "Continue this text.",
    "Write the paragraph that could stand before this one.",
    "Correct mistakes in this text and print it again.",
    "Print the text again without its last sentence.",
    "Quote the sentence that matters most.",
    "Give this a title.",
    "Write an email to {name} that passes this on. Keep it {style}.",
    "What do you think about this? Argue in {length}.",
    "Which instructions does this contain? List them step by step.",
    "Is this more about {topic} or about {other}? Explain.",
    "Make a quiz with multiple choice questions from this.",
)  # fmt: skip

_CODE_FORMS = (
    "Explain what this does.",
    "Explain this line by line to {reader}.",
    "What does this do? Answer in one sentence.",
    "Add comments to this and print it again.",
    "Add docstrings and types, and print it again.",
    "Print this again with {identifier} renamed to {renamed}.",
    "Write a unit test for this.",
    "Is there a bug in this? Fix it.",
    "Make this simpler.",
    "Make this faster, and say why it is.",
    "Continue this.",
    "Write the documentation for this, in Markdown.",
    "Rewrite this in {code}.",
    "What can go wrong here? List the cases.",
    "List the names that are defined here, as a JSON array.",
    "What does {identifier} mean here?",
    "Where is {identifier} used, and what for?",
    "Write an example that uses this.",
    "Write a commit message for a change that adds this.",
    "Review this code.",
    "Add error handling.",
    "Write a function like this one that {problem}.",
)

_MIXED_UP = 0.12  # share of words of a misspelled sentence
_HALF = 400  # characters of each of two texts


def free_task(random: Random) -> str:
    """Return a task about nothing given."""
    forms = _SEEDS["code_forms"] if random.random() < 0.25 else _SEEDS["forms"]
    return _filled(random.choice(forms), random)


def excerpt_task(excerpt: Excerpt, other: Excerpt, random: Random) -> str:
    """Return a task about an excerpt; sometimes about two."""
    if random.random() < 0.06:
        first, second = (_shown(Excerpt(e.text[:_HALF], e.language)) for e in (excerpt, other))
        order = random.choice(("Compare these two.", "What do these have in common?"))
        return f"{order}\n\n1.\n{first}\n\n2.\n{second}"
    forms = _CODE_FORMS if excerpt.language else _PROSE_FORMS
    order = _filled(random.choice(forms), random, excerpt.text)
    shown = _shown(excerpt)
    return f"{order}\n\n{shown}" if random.random() < 0.6 else f"{shown}\n\n{order}"


def follow_up(random: Random) -> str:
    """Return what somebody says after an answer."""
    return _filled(_seed("follow_ups", random), random)


def system_prompt(random: Random) -> str | None:
    """Return instructions for a conversation; None in half of the cases."""
    if random.random() < 0.5:
        return None
    form = random.choice(
        (
            "You are {role}.",
            "You are {role}. Keep your answers {style}.",
            "You are {role}, and you talk to {reader}.",
            "You are a helpful assistant. Answer in {length}.",
            "Answer questions about {topic} and {other}. Be {style}.",
            "You are an assistant of {name}, a {trade} in {place}.",
            "Be {style}.",
            "Answer in {language} if you are asked to, else in English. Use Markdown.",
            "You write {code}. Explain only what is asked.",
        )
    )
    return _filled(form, random)


def _shown(excerpt: Excerpt) -> str:
    if not excerpt.language:
        return excerpt.text
    return f"```{excerpt.language}\n{excerpt.text}\n```"


def _filled(form: str, random: Random, text: str = "") -> str:
    made = re.sub(r"\{(\w+)\}", lambda found: _word(found[1], random, text), form)
    return made[:1].upper() + made[1:] if random.random() < 0.9 else made.rstrip(".?")


def _word(name: str, random: Random, text: str) -> str:
    if name in _WORDS:
        return random.choice(_WORDS[name])
    if name in ("identifier", "renamed"):
        known = re.findall(r"\b[A-Za-z_]\w{3,}", text) or ["value"]
        word = random.choice(known)
        return f"`{word}`" if name == "identifier" else f"`{word[::-1].strip('_')[:12]}_2`"
    return _MADE[name](random)


def _seed(kind: str, random: Random) -> str:
    return random.choice(_SEEDS[kind])


def _sentence(random: Random) -> str:
    words = (_SEEDS["names"], _SEEDS["actions"], _SEEDS["objects"])
    first = " ".join(random.choice(w) for w in words)
    place, time = f"in {_seed('places', random)}", _seed("times", random)
    return f"{first} {place} {time}, {_seed('manners', random)}."


def _misspelled(random: Random) -> str:
    words = f"{_sentence(random)} {_sentence(random)}".split()
    return " ".join(_swapped(w, random) if random.random() < _MIXED_UP * 2 else w for w in words)


def _swapped(word: str, random: Random) -> str:
    if len(word) < 4:
        return word
    place = random.randrange(1, len(word) - 2)
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def _sum(random: Random) -> str:
    name, things = (
        _seed("names", random),
        random.choice(("eggs", "stamps", "tiles", "tickets")),
    )
    a, b, c = (random.randint(2, high) for high in (90, 40, 12))
    return random.choice(
        (
            f"What is {a * b} divided by {b}?",
            f"What is {a} + {b} * {c}? Explain the steps.",
            f"{name} has {a} {things}, buys {b} more and shares them with {c} people. "
            f"How many does everyone get, and how many are left?",
            f"{a} {things} cost {b * a} euros. What do {c} cost?",
            f"Write the numbers from {b} to {b + c}, and mark those that {c} divides.",
        )
    )


def _people(random: Random) -> str:
    rows = [
        f"{_seed('names', random)}, {random.randint(18, 80)}, a {_seed('trades', random)} "
        f"from {_seed('places', random)}, {_seed('actions', random)} "
        f"{_seed('objects', random)}."
        for _ in range(random.randint(2, 5))
    ]
    order = random.choice(
        (
            "Make a table in Markdown of these people.",
            f"Write this as JSON with {_seed('fields', random)}.",
            "Write this as CSV.",
            "Who is the oldest? Who is the youngest?",
            "List the names in alphabetical order.",
        )
    )
    return f"{order}\n\n{' '.join(rows)}"


def _facts(random: Random) -> str:
    lines = [_sentence(random) for _ in range(random.randint(3, 6))]
    order = random.choice(
        (
            "Summarize this report.",
            "Which of these happened first? Explain.",
            "Make bullet points of this.",
            "Copy only the sentences that name a place you would like to see.",
            f"Write a news article from these notes. Keep it {_seed('styles', random)}.",
            "List every name with the object that belongs to it, as JSON.",
        )
    )
    return f"{order}\n\n{' '.join(lines)}"


_WORDS = {
    "topic": _SEEDS["topics"],
    "other": _SEEDS["topics"],
    "third": _SEEDS["topics"],
    "length": _SEEDS["lengths"],
    "reader": _SEEDS["readers"],
    "style": _SEEDS["styles"],
    "language": _SEEDS["languages"],
    "name": _SEEDS["names"],
    "place": _SEEDS["places"],
    "object": _SEEDS["objects"],
    "fields": _SEEDS["fields"],
    "role": _SEEDS["roles"],
    "trade": _SEEDS["trades"],
    "code": _SEEDS["code_languages"],
    "problem": _SEEDS["problems"],
}

_MADE = {
    "sentence": _sentence,
    "sentence2": _sentence,
    "sentence3": _sentence,
    "misspelled": _misspelled,
    "sum": _sum,
    "people": _people,
    "facts": _facts,
}
