"""How much faster is JSON extraction with a schema than plain decoding with the same schema?

    python -m bench.extraction [MODEL] [--draft auto] [--rounds 5] [--temperature 0] [--json FILE]

A plain run (--draft none) and a speculative one follow each other in random order, on short texts
and three schemas. A ratio is speculative / plain tokens per second of decoding in one round. By the
coupled rule both have one text per seed, so texts are compared at any temperature. The first round
warms up.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.command import Parser
from edgespec.benchmark.measuring import machine_facts
from edgespec.benchmark.results import median_interval

if TYPE_CHECKING:
    from edgespec import Engine
    from edgespec.runtime.stream import Result

_TEXT: dict[str, Any] = {"type": "string"}


def _record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Any, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


PERSON = _record(
    name=_TEXT,
    age={"type": "integer"},
    email=_TEXT,
    address=_record(street=_TEXT, city=_TEXT),
    skills=_list(_TEXT, 8),
)
ORDER = _record(
    order_number=_TEXT,
    customer=_TEXT,
    items=_list(_record(product=_TEXT, quantity={"type": "integer"}, price={"type": "number"}), 4),
    paid={"type": "boolean"},
)
MINUTES = _record(
    title=_TEXT,
    date={"type": "string", "format": "date"},
    attendees=_list(_TEXT, 6),
    decision=_TEXT,
    priority={"enum": ["low", "medium", "high"]},
)
TASKS = (
    (
        PERSON,
        "Maria Lopez, 34, lives at 12 Oak Street in Springfield. Her email is "
        "maria.lopez@example.com. She knows Python, Go and SQL.",
    ),
    (
        PERSON,
        "Contact: Jens Petersen (age 51), 4 Harbour Road, Aarhus, jens@petersen.example. "
        "Skills: welding, sailing.",
    ),
    (
        ORDER,
        "Order A-1093 by Green Cafe: 2 boxes of coffee beans at 14.50 each, 1 grinder at 89.00 "
        "and 3 packs of filters at 2.25. Paid by card.",
    ),
    (
        ORDER,
        "Hello, this is Tom Baker. My order is 77-B. I ordered 5 notebooks at 3.20 and 10 pens "
        "at 0.80. I have not paid yet.",
    ),
    (
        MINUTES,
        "Minutes of the budget meeting, 2024-03-18. Present: Anna, Bo, Carl and Dina. We decided "
        "to buy a new printer. This is urgent.",
    ),
    (
        MINUTES,
        "On 2025-01-09 Sara and Mike met about the garden project and agreed to plant the apple "
        "trees in April. It can wait.",
    ),
)


def extract(engine: Engine, task: tuple[Any, str], temperature: float, seed: int) -> Result:
    """Return the answer to one task."""
    from edgespec import GenerationLimits, SamplingParameters
    from edgespec.grammars import grammar_from_schema

    schema, text = task
    stream = engine.chat(
        [{"role": "user", "content": f"Extract the facts as JSON: {text}"}],
        SamplingParameters(temperature=temperature, seed=seed),
        GenerationLimits(max_tokens=160),
        grammar=grammar_from_schema(json.dumps(schema)),
        accept="coupled",
    )
    return stream.result


def measure(engines: dict[str, Engine], rounds: int, temperature: float) -> list[dict[str, Any]]:
    """Return a row for each task and round."""
    rows = []
    for turn in range(rounds + 1):
        for number, task in enumerate(TASKS):
            results = {
                name: extract(engines[name], task, temperature, turn)
                for name in random.sample(sorted(engines), len(engines))
            }
            speeds = {name: r.statistics.tokens_per_second for name, r in results.items()}
            own = results["speculative"].statistics
            row = {
                "task": number,
                "tokens": len(results["plain"].tokens),
                "same_tokens": results["plain"].tokens == results["speculative"].tokens,
                "tokens_per_second": speeds,
                "tokens_per_cycle": own.tokens_per_cycle,
                "acceptance_rate": own.acceptance_rate,
                "ratio": speeds["speculative"] / speeds["plain"],
            }
            rows += [row] if turn else []
    return rows


def main() -> None:
    parser = Parser("extraction", __doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from edgespec import Engine, EngineOptions

    with (
        Engine(arguments.model, EngineOptions(draft="none")) as plain,
        Engine(arguments.model, EngineOptions(draft=arguments.draft)) as speculative,
    ):
        engines = {"plain": plain, "speculative": speculative}
        rows = measure(engines, arguments.rounds, arguments.temperature)
    for number in range(len(TASKS)):
        own = [row for row in rows if row["task"] == number]
        ratios = np.sort([row["ratio"] for row in own])
        print(
            f"task {number + 1}: {np.median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
            f"{np.mean([row['tokens_per_cycle'] for row in own]):.2f} tokens a cycle, "
            f"{'same' if all(row['same_tokens'] for row in own) else 'OTHER'} texts"
        )
    overall = median_interval([row["ratio"] for row in rows])
    print(f"all: {overall['median']:.2f} [{overall['low']:.2f} to {overall['high']:.2f}]")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine_facts(), "rows": rows}))


if __name__ == "__main__":
    main()
