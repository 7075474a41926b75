"""Has it become slower? Compare two reports of `edgespec bench --json`.

    python -m bench.compare OLD.json NEW.json [--tolerance 0.03]

Pairs are the tasks that both reports have, at the same temperature and in the same round. The
figures are new / old of the speedup over plain decoding, and of tokens per second, as medians by
category with 95% bootstrap intervals; the speedup depends less on how busy the machine was. The
exit status is 1 if the speedup's interval, of a category or of all, lies below 1 - tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.command import Parser
from edgespec.benchmark.results import median_interval

Key = tuple[str, float, int]
LEAST_PAIRS = 3


def read(path: Path) -> tuple[dict[str, Any], dict[Key, dict[str, Any]]]:
    """Read settings, and pairs by task, temperature and round."""
    try:
        report = json.loads(path.read_text("utf-8"))
        pairs = [pair for pair in report["pairs"] if "skipped" not in pair]
        return report["settings"], {
            (pair["task"], pair["temperature"], pair["round"]): pair for pair in pairs
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} is not a report of `edgespec bench --json`: {error}") from None


def speed(pair: Mapping[str, Any], side: str) -> float:
    return float(pair[side]["tokens"] / pair[side]["decode_s"])


def speedup(pair: Mapping[str, Any]) -> float:
    return speed(pair, "speculative") / speed(pair, "plain")


def compare(old: dict[Key, Any], new: dict[Key, Any]) -> dict[str, dict[str, Any]]:
    """Return the ratios new / old, by category and for all."""
    both = [key for key in old if key in new]
    found = {}
    for category in (*dict.fromkeys(old[key]["category"] for key in both), "all"):
        part = [key for key in both if category in ("all", old[key]["category"])]
        if len(part) < LEAST_PAIRS:
            continue  # an interval of one or two pairs says nothing
        found[category] = {
            "pairs": len(part),
            "speedup": median_interval([speedup(new[key]) / speedup(old[key]) for key in part]),
            "tokens_per_second": median_interval(
                [speed(new[key], "speculative") / speed(old[key], "speculative") for key in part]
            ),
        }
    return found


def main() -> None:
    parser = Parser("compare", __doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.03)
    arguments = parser.parse_args()
    (old_settings, old), (new_settings, new) = read(arguments.old), read(arguments.new)
    for name in sorted(set(old_settings) | set(new_settings)):
        if old_settings.get(name) != new_settings.get(name):
            print(f"{name}: {old_settings.get(name)} before, {new_settings.get(name)} now")
    found = compare(old, new)
    if not found:
        raise SystemExit(f"fewer than {LEAST_PAIRS} pairs are in both: nothing can be said")
    slower = []
    print(f"{'':16} pairs  speedup, new / old   tokens/s, new / old")
    for category, line in found.items():
        cells = [
            f"{one['median']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
            for one in (line["speedup"], line["tokens_per_second"])
        ]
        print(f"{category[:16]:16} {line['pairs']:5}  {cells[0]:20}  {cells[1]}")
        if line["speedup"]["high"] < 1 - arguments.tolerance:
            slower.append(category)
    if slower:
        raise SystemExit(f"slower: {', '.join(slower)}")


if __name__ == "__main__":
    main()
