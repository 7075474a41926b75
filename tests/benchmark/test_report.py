"""The table for the terminal."""

from __future__ import annotations

from typing import Any

from edgespec.benchmark.report import table_lines


def test_the_table_says_what_it_is_of(pairs: list[dict[str, Any]]) -> None:
    head = {
        "settings": {
            "model": "m",
            "draft": "ngram",
            "k": "auto",
            "threads": 2,
            "flash_attention": False,
            "exactness": "bitwise",
            "tokens": 10,
        },
        "machine": {"processor": "P", "cores": 2},
    }
    text = "\n".join(table_lines(pairs, head, 4, 2**20))
    for part in ("1: 0.75", "3 of 3", "1 pairs were left out", "1 MiB"):
        assert part in text
    for some, shown in ((pairs[2:] * 5, "4.00   "), (pairs[2:] * 6, "4.00 [4.00, 4.00]")):
        text = "\n".join(table_lines(some, head, len(some), 2**20))
        assert shown in text
        assert ("have no interval" in text) == (len(some) < 6)
