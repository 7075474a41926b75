"""Near-duplicates: what is reworded in a word or two is found, what shares a form is not."""

from __future__ import annotations

import random

from edgespec.distill.alike import Seen

WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ala", "eno", "iru", "osi", "ume")]


def text(seed: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=80)


def test_texts_that_differ_in_a_word_are_alike() -> None:
    seen = Seen()
    for seed in range(50):
        assert seen.add(" ".join(text(seed)))
    for seed in range(50):
        words = text(seed)
        words[seed] = "another"
        assert not seen.add(f"{' '.join(words).upper()}!")


def test_texts_that_share_a_third_are_not() -> None:
    seen = Seen()
    common = text(-1)[:26]
    assert all(seen.add(" ".join(common + text(seed)[:54])) for seed in range(100))


def test_short_texts() -> None:
    seen = Seen()
    assert [seen.add(t) for t in ("", "one", "One!", "one two", "")] == [
        True,
        True,
        False,
        True,
        False,
    ]
