"""Measure the parts one after the other, with a table, a record and a picture of each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from bench.scaling.block_length import measure_k
from bench.scaling.chart import Chart, Setup, show
from bench.scaling.context import measure_context
from bench.scaling.length import measure_length
from bench.scaling.memory import measure_memory
from bench.scaling.pictures import write_charts
from bench.scaling.sessions import measure_sessions
from bench.scaling.vocabulary import measure_vocabulary
from edgespec.benchmark.measuring import machine_facts
from edgespec.registry.resolve import resolve

__all__ = ["MEASURES", "measure_parts"]

MEASURES: dict[str, Callable[[Setup], list[Chart]]] = {
    "context": measure_context,
    "vocabulary": measure_vocabulary,
    "k": measure_k,
    "length": measure_length,
    "sessions": measure_sessions,
    "memory": measure_memory,
}


def measure_parts(wanted: argparse.Namespace) -> None:
    """Measure the parts of the command line; a run that is interrupted leaves what it found."""
    own = {name: getattr(wanted, name) for name in Setup._fields if name != "model"}
    setup = Setup(resolve(wanted.model).path, **own)
    report: dict[str, Any] = {
        "machine": machine_facts(),
        "settings": {**setup._asdict(), "model": setup.model.name},
        "parts": {},
    }
    for part in dict.fromkeys(wanted.only):
        charts = MEASURES[part](setup)
        for chart in charts:
            show(chart)
        report["parts"][part] = [chart.as_json() for chart in charts]
        if wanted.json:
            wanted.json.write_text(json.dumps(report, indent=2) + "\n")
        if wanted.png:
            write_charts(charts, wanted.png / f"{part}.png")
