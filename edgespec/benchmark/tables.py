"""Show the results as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from edgespec.benchmark.summary import alpha_by_position, summarize

__all__ = ["table_lines"]

# With fewer, not even the smallest and the largest ratio enclose the median in 95% of all cases.
_FEWEST_FOR_INTERVAL = 6

_HEAD = (
    f"{'':4} {'':14} {'pairs':>5} {'plain':>7} {'spec.':>7}  {'speedup':18} "
    f"{'first token':18} {'a cycle':>7} {'accepted':>8}"
)


def table_lines(
    pairs: Sequence[dict[str, Any]], head: dict[str, Any], asked: int, memory: int
) -> Iterator[str]:
    """Yield what was measured, by temperature and category, and on which machine."""
    settings = head["settings"]
    flash = "on" if settings["flash_attention"] else "off"
    yield (
        f"{settings['model']}, draft {settings['draft']}, k {settings['k']}, "
        f"{settings['threads']} threads, flash attention {flash}, {settings['exactness']}, "
        f"up to {settings['tokens']} tokens"
    )
    yield f"{head['machine']['processor']}, {head['machine']['cores']} cores"
    yield ""
    yield _HEAD
    lines = summarize(pairs)
    for line in lines:
        yield _row(line)
    yield ""
    yield "plain, spec.: median tokens per second of decoding. speedup and first token are"
    yield "speculative / plain, medians of pairs with 95% intervals. a cycle: tokens emitted."
    if any(line["pairs"] < _FEWEST_FOR_INTERVAL for line in lines):
        yield f"fewer than {_FEWEST_FOR_INTERVAL} pairs have no interval: give more --rounds"
    alpha = alpha_by_position(pairs)
    if alpha:
        shown = "  ".join(f"{position}: {value:.2f}" for position, value in enumerate(alpha, 1))
        yield f"accepted by position: {shown}"
    yield from _remarks(lines, len(pairs), asked, memory)


def _row(line: dict[str, Any]) -> str:
    accepted = line["acceptance_rate"]
    share = "-" if accepted is None else f"{accepted:.0%}"
    return (
        f"{line['temperature']:<4g} {line['category'][:14]:14} {line['pairs']:5} "
        f"{line['plain_tokens_per_second']:7.1f} {line['tokens_per_second']:7.1f}  "
        f"{_ratio(line, 'speedup'):18} {_ratio(line, 'first_token'):18} "
        f"{line['tokens_per_cycle']:7.2f} {share:>8}"
    )


def _remarks(
    lines: Sequence[dict[str, Any]], measured: int, asked: int, memory: int
) -> Iterator[str]:
    for line in lines:
        if line["category"] == "all" and "same_texts" in line:
            yield f"greedy texts that are the same: {line['same_texts']} of {line['pairs']}"
        if line["category"] == "all" and line["energy"]:
            energy = _ratio(line, "energy")
            yield f"energy of a token, temperature {line['temperature']:g}: {energy}"
    if asked > measured:
        yield f"{asked - measured} pairs were left out: their prompts do not fit into the context"
    yield f"peak memory, both sides in one process: {memory / 2**20:.0f} MiB"


def _ratio(line: dict[str, Any], name: str) -> str:
    ratio = line[name]
    if line["pairs"] < _FEWEST_FOR_INTERVAL:
        return f"{ratio['median']:.2f}"
    return f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
