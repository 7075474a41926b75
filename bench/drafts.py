"""Measure what a draft brings at a fixed block length, beside plain decoding.

    python -m bench.drafts [MODEL] [--draft ngram] [--k 3] [--rounds 5] [--tokens 96] [--json FILE]

Decoding is greedy, and the texts are compared. For every prompt, plain and speculative runs follow
each other in random order; a ratio is speculative / plain tokens per second of decoding in one
round. The table has the median of each kind of prompts and its 95% bootstrap interval.
"""

from __future__ import annotations

import json
import platform
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.command import Parser
from edgespec.benchmark.results import median_interval

if TYPE_CHECKING:
    from edgespec import Engine

CODE = """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)
"""
ARTICLE = (
    "The harbour of Saltmere was dredged in 1911 and again in 1954. After the second dredging the "
    "herring fleet came back, and with it the cooperage, the rope walk and the smokehouses. "
)
PROMPTS = {
    "prose": [
        "Write a short story about a lighthouse keeper.",
        "Describe a market in the early morning.",
    ],
    "questions": ["What is photosynthesis?", "Why is the sea salty?"],
    "code": [
        "Write a Python function that reverses a list.",
        "Write a SQL query that counts the orders of each customer.",
    ],
    "copying": [
        f"Repeat this code with the name average instead of mean:\n\n{CODE}",
        f"Copy this text word for word:\n\n{ARTICLE}",
    ],
}


def decode(engine: Engine, prompt: str, count: int) -> tuple[tuple[int, ...], float, Any]:
    """Return tokens, tokens per second of decoding, and statistics."""
    from edgespec import GenerationLimits, SamplingParameters

    text = engine.template.render([{"role": "user", "content": prompt}])
    engine.forget()
    stream = engine.generate(
        text, SamplingParameters(temperature=0), GenerationLimits(max_tokens=count)
    )
    result = stream.result
    return result.tokens, result.statistics.tokens_per_second, result.statistics


def measure(engines: dict[str, Engine], rounds: int, count: int) -> list[dict[str, Any]]:
    """Measure, and return a row for each prompt."""
    rows = []
    for kind, prompts in PROMPTS.items():
        for prompt in prompts:
            speeds: dict[str, list[float]] = {name: [] for name in engines}
            tokens, statistics = {}, {}
            for turn in range(rounds + 1):
                for name in random.sample(sorted(engines), len(engines)):
                    tokens[name], speed, statistics[name] = decode(engines[name], prompt, count)
                    if turn:  # the first round warms up
                        speeds[name].append(speed)
            figures = statistics["speculative"].speculation()
            rows.append(
                {
                    "kind": kind,
                    "same_tokens": tokens["plain"] == tokens["speculative"],
                    "tokens": len(tokens["plain"]),
                    "tokens_per_second": speeds,
                    "acceptance_rate": figures["acceptance_rate"],
                    "tokens_per_cycle": figures["tokens_per_cycle"],
                }
            )
    return rows


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median of speculative / plain over all rounds, with a bootstrap interval."""
    values = np.concatenate(
        [
            np.divide(row["tokens_per_second"]["speculative"], row["tokens_per_second"]["plain"])
            for row in rows
        ]
    )
    return median_interval(values)


def main() -> None:
    parser = Parser("drafts", __doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from edgespec import Engine, EngineOptions
    from edgespec.runtime.loading import warm_up

    warm_up()
    engines = {
        "plain": Engine(arguments.model, EngineOptions(draft="none", context=arguments.ctx)),
        "speculative": Engine(
            arguments.model,
            EngineOptions(draft=arguments.draft, k=arguments.k, context=arguments.ctx),
        ),
    }
    rows = measure(engines, arguments.rounds, arguments.tokens)
    by_kind = {kind: ratios([row for row in rows if row["kind"] == kind]) for kind in PROMPTS}
    print(f"{'':10} {'ratio':>6}  {'95% interval':14} tokens/cycle  same tokens")
    for kind, r in by_kind.items():
        part = [row for row in rows if row["kind"] == kind]
        cycle = np.mean([row["tokens_per_cycle"] for row in part])
        same = all(row["same_tokens"] for row in part)
        interval = f"[{r['low']:.2f}, {r['high']:.2f}]"
        print(f"{kind:10} {r['median']:6.2f}  {interval:14} {cycle:12.2f}  {same}")
    if arguments.json:
        report = {
            "model": engines["plain"].model_name,
            "draft": engines["speculative"].drafter_name,
            "k": engines["speculative"].largest_k,
            "threads": engines["plain"].options.thread_count,
            "machine": platform.machine(),
            "ratios": by_kind,
            "prompts": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
