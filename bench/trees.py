"""What trees of proposals bring beside chains of the same draft.

    python -m bench.trees [MODEL] [--draft FILE] [--rounds 3] [--tokens 96] [--temperature 0]
                          [--settings plain chain tree chain:2 tree:4,1] [--json FILE]

Settings, all in one run and in random order for every task and round: `plain` decodes without a
draft; `chain` and `tree` let costs decide, prompt lookup beside the draft; `chain:N` proposes N
tokens in every cycle, `tree:A,B,...` a tree of that shape, without prompt lookup. A ratio is tokens
per second of decoding over plain in the same round; brackets are 95% bootstrap intervals of the
median. The first round warms up. Texts are compared at any temperature: by the coupled rule there
is one for each seed.
"""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.command import Parser
from edgespec.benchmark.measuring import Task, machine_facts, own_tasks
from edgespec.benchmark.results import median_interval

if TYPE_CHECKING:
    from edgespec import Engine

USUAL = "plain chain tree"


def open_setting(stack: ExitStack, name: str, model: str | None, draft: str) -> Engine:
    """Open an engine for a setting."""
    from edgespec import Engine, EngineOptions

    kind, _, shape = name.partition(":")
    options = {
        "plain": {"draft": "none"},
        "chain": {"tree": "none", "k": int(shape) if shape else None},
        "tree": {"tree": shape or "auto"},
    }[kind]
    return stack.enter_context(Engine(model, EngineOptions(**{"draft": draft, **options})))


def decode(engine: Engine, task: Task, tokens: int, temperature: float, seed: int) -> Any:
    """Answer a task's first message; the stream, at its end."""
    from edgespec import GenerationLimits, SamplingParameters

    engine.forget()
    stream = engine.chat(
        [{"role": "user", "content": task.turns[0]}],
        SamplingParameters(temperature=temperature, seed=seed),
        GenerationLimits(max_tokens=tokens),
        accept="auto" if temperature == 0 else "coupled",
    )
    stream.result  # noqa: B018 (decodes)
    return stream


def measure(
    engines: dict[str, Engine], rounds: int, tokens: int, temperature: float
) -> list[dict[str, Any]]:
    """Return a row for each task, round and setting."""
    rows = []
    for turn in range(rounds + 1):
        for task in own_tasks():
            streams = {
                name: decode(engines[name], task, tokens, temperature, turn)
                for name in random.sample(list(engines), len(engines))
            }
            plain = streams["plain"]
            for name, stream in streams.items():
                statistics = stream.statistics
                row = {
                    "task": task.name,
                    "category": task.category,
                    "setting": name,
                    "same_tokens": stream.result.tokens == plain.result.tokens,
                    "tokens": statistics.emitted,
                    "cycles": statistics.cycles,
                    "proposed": statistics.proposed,
                    "accepted": statistics.accepted,
                    "draft_s": statistics.draft_s,
                    "verify_s": statistics.verify_s,
                    "decode_s": statistics.decode_s,
                    "ratio": statistics.tokens_per_second / plain.statistics.tokens_per_second,
                }
                rows += [row] if turn else []
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a setting brought, over these rows."""
    total = {name: sum(row[name] for row in rows) for name in ("tokens", "cycles", "proposed")}
    ratio = median_interval([row["ratio"] for row in rows])
    return {
        "tokens_per_cycle": total["tokens"] / total["cycles"],
        "nodes_per_cycle": total["proposed"] / total["cycles"],
        "ratio": ratio,
        "same_tokens": all(row["same_tokens"] for row in rows),
    }


def table(rows: list[dict[str, Any]], settings: list[str]) -> list[str]:
    """Return lines of a table in Markdown: settings by category."""
    lines = ["| category | setting | tokens a cycle | nodes | speed over plain |", "|---" * 5 + "|"]
    for category in [*sorted({row["category"] for row in rows}), "all"]:
        for name in settings:
            found = summary(
                [r for r in rows if r["setting"] == name and category in (r["category"], "all")]
            )
            ratio = "{median:.2f} [{low:.2f}, {high:.2f}]".format(**found["ratio"])
            lines.append(
                f"| {category} | {name} | {found['tokens_per_cycle']:.2f} | "
                f"{found['nodes_per_cycle']:.1f} | {ratio} |"
            )
    return lines


def main() -> None:
    parser = Parser("trees", __doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--draft", default="models/smollm2-135m-eagle3.gguf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--settings", nargs="+", default=USUAL.split())
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = list(dict.fromkeys(["plain", *arguments.settings]))
    with ExitStack() as stack:
        engines = {
            name: open_setting(stack, name, arguments.model, arguments.draft) for name in settings
        }
        rows = measure(engines, arguments.rounds, arguments.tokens, arguments.temperature)
    lines = table(rows, settings)
    print("\n".join(lines))
    if arguments.json:
        facts = {"machine": machine_facts(), "temperature": arguments.temperature}
        arguments.json.write_text(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
