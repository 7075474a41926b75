"""What is said about an answer: one line behind it, and all of it on request."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.runtime.stream import Result

__all__ = ["notices", "statistics_lines", "status_line"]

_SHORTEST_NAME = 8


def status_line(result: Result, used: int, capacity: int, width: int = 80) -> str:
    """One line that fits `width` columns: speed, acceptance, drafter, context."""
    statistics = result.statistics
    count = len(result.tokens)
    parts = [
        f"{count} token{'' if count == 1 else 's'}",
        f"{statistics.tokens_per_second:.1f}/s",
    ]
    if statistics.acceptance_rate is not None:
        parts.append(f"{statistics.acceptance_rate:.0%} accepted")
    if statistics.cycles:
        parts.append(f"{statistics.emitted / statistics.cycles:.2f} a cycle")
    context = f"context {used}/{capacity}"
    room = width - 1 - len(", ".join([*parts, "", context]))
    drafter = _shortened(result.drafter, max(room, _SHORTEST_NAME))
    return ", ".join([*parts, drafter, context])[: width - 1]


def notices(result: Result, dropped: int, newly_dropped: int) -> Iterator[str]:
    """What the user should know about how an answer came about and ended."""
    if newly_dropped > 0:
        yield f"the context is full: the model no longer sees the first {dropped} messages"
    if result.finish_reason == "length":
        yield f"cut off at {len(result.tokens)} tokens: /set max-tokens changes that"
    if result.finish_reason == "context":
        yield "cut off, the context is full: /reset, or start again with a larger --ctx"
    if result.finish_reason == "cancelled":
        yield "stopped" if result.text else "stopped before the first word: /retry asks again"
    elif not result.text:
        yield "the model said nothing: /retry asks again"


def statistics_lines(result: Result) -> Iterator[str]:
    """Everything that was measured for one answer."""
    statistics = result.statistics
    reused = min(statistics.reused_tokens, result.prompt_tokens)
    facts = {
        "model": result.model,
        "drafter": result.drafter,
        "prompt": f"{result.prompt_tokens} tokens, {reused} of them from the cache",
        "prefill": f"{statistics.prefill_s:.2f} s",
        "answer": f"{len(result.tokens)} tokens, ended by {result.finish_reason}",
        "decoding": f"{statistics.decode_s:.2f} s, {statistics.tokens_per_second:.1f} tokens/s",
        "of that": f"draft {statistics.draft_s:.2f} s, verify {statistics.verify_s:.2f} s, "
        f"sample {statistics.sample_s:.2f} s",
        "cycles": f"{statistics.cycles}, {statistics.fallback_cycles} of them without a proposal "
        "from the drafter",
        "proposed": f"{statistics.proposed} tokens, {statistics.accepted} accepted, "
        f"{statistics.bonus} bonus tokens",
        "block length": ", ".join(
            f"{k}: {n} cycles" for k, n in sorted(statistics.k_histogram.items())
        ),
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        yield f"{name:{width}}  {value}"


def _shortened(name: str, room: int) -> str:
    return name if len(name) <= room else name[: room - 3] + "..."
