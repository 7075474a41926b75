"""What every cycle did, as one JSON line each in a file: to be read, plotted, or replayed.

A generation is a line of type "generation", one of type "cycle" for each cycle, and one of type
"end"; all of them have its `id`, as generations may be interleaved. The file holds the prompts
and answers, as token ids.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.control.controller import Policy
from edgespec.drafters import Drafter
from edgespec.errors import EdgespecError, UsageError
from edgespec.runtime.cycle import CycleReport, Statistics
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.settings import ACCEPT_COUPLED, DrawSettings
from edgespec.tuning.setting import SettingFigures

__all__ = ["GenerationTrace", "Trace", "costs_and_learning", "request_facts"]

_DIGITS = 7  # of seconds
_SHORT_ID = 12


class Trace:
    """A file that lines are appended to; a crash loses the one being written, at most.

    Args:
        path: made if it is not there, readable for the user only.

    Raises:
        UsageError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # generations may end in other threads
        self._open = True
        try:
            path.touch(mode=0o600)
            self._file = path.open("ab", buffering=0)
        except (OSError, ValueError) as error:
            raise UsageError(self._complaint(error)) from None

    def begin(self, facts: Mapping[str, Any]) -> GenerationTrace:
        """Write what a generation starts from."""
        return GenerationTrace(self, facts)

    def write(self, line: dict[str, Any]) -> None:
        """Append it, unless the file was closed.

        Raises:
            EdgespecError: the disk is full, or gone; nothing more is written.
        """
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if not self._open:
                return
            try:
                self._file.write(data)
            except OSError as error:
                self._open = False
                raise EdgespecError(self._complaint(error)) from None

    def close(self) -> None:
        """Close the file; what generations still write is dropped."""
        with self._lock:
            self._open = False
            self._file.close()

    def _complaint(self, error: Exception) -> str:
        reason = getattr(error, "strerror", None) or error
        return f"cannot write the trace {self._path}: {reason}"


class GenerationTrace:
    """The lines of one generation; the first one is written at once."""

    def __init__(self, trace: Trace, facts: Mapping[str, Any]) -> None:
        self._trace = trace
        self._id = uuid.uuid4().hex[:_SHORT_ID]
        self._write("generation", facts)

    def cycle(self, report: CycleReport) -> None:
        """Write one cycle."""
        timing, predicted_s = report.timing, report.predicted_s
        acceptance = report.budget.acceptance[: timing.proposed]
        self._write(
            "cycle",
            {
                "drafter": report.drafter,
                "depth": timing.depth,
                "n": timing.evaluated,
                "predicted_s": None if predicted_s is None else round(predicted_s, _DIGITS),
                "verify_s": round(timing.verify_s, _DIGITS),
                "draft_s": round(timing.draft_s, _DIGITS),
                "seconds": round(report.seconds, _DIGITS),
                "proposed": timing.proposed,
                "accepted": timing.emitted - 1,
                "tokens": report.cycle.tokens,
                "origins": [origin.value for origin in report.cycle.origins],
                "acceptance": [round(float(a), 4) for a in acceptance],
            },
        )

    def end(self, finish_reason: str | None, emitted: int, statistics: Statistics) -> None:
        """Write how it ended; without a reason it failed, or nobody wanted the rest."""
        self._write(
            "end",
            {
                "finish_reason": finish_reason,
                "emitted": emitted,
                "timings": statistics.timings(),
                "speculation": statistics.speculation(),
            },
        )

    def _write(self, kind: str, content: Mapping[str, Any]) -> None:
        self._trace.write({"type": kind, "id": self._id, **content})


def costs_and_learning(
    setting: SettingFigures | None, policy: Policy, drafter: Drafter, ngram: Mapping[str, Any]
) -> dict[str, Any]:
    """Return measured costs, their corrections, and what was learned about drafting until now.

    Args:
        ngram: what was learned about prompt lookup.
    """
    costs = None
    if setting is not None:
        costs = {name: getattr(setting, name) for name in ("depths", "sizes", "seconds")}
        costs["switch_s"] = setting.switch_s
    return {
        "costs": costs,
        "corrections": policy.costs and policy.costs.corrections(),
        "learned": {"ngram": ngram, "draft": drafter.learned().model},
    }


def request_facts(max_tokens: int | None, settings: DrawSettings) -> dict[str, Any]:
    """Return how a generation was asked for."""
    rule = "coupled" if settings.rule == ACCEPT_COUPLED else "rejection"
    return {
        "max_tokens": max_tokens,
        "temperature": float(settings.arguments.temperature),
        "rule": "greedy" if is_greedy(settings.arguments) else rule,
    }
