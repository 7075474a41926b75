"""What every cycle did, as one JSON line each in a file: to be read, plotted, or replayed.

A generation is a line of type "generation", one of type "cycle" for each cycle, and one of type
"end"; all of them have its `id`, as generations may be interleaved. The file holds the prompts
and answers, as token ids.
"""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.control.budget import DraftBudget
from edgespec.control.controller import CycleTiming
from edgespec.errors import EdgespecError, UsageError
from edgespec.sampling.parameters import is_greedy
from edgespec.speculation.settings import ACCEPT_COUPLED, DrawSettings

if TYPE_CHECKING:
    from edgespec.runtime.cycle import Cycle
    from edgespec.runtime.engine import Engine
    from edgespec.runtime.stream import Stream

__all__ = ["GenerationTrace", "Trace"]

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

    def begin(self, engine: Engine, stream: Stream) -> GenerationTrace:
        """A generation is about to start."""
        return GenerationTrace(self, _describe(engine, stream))

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

    def __init__(self, trace: Trace, description: dict[str, Any]) -> None:
        self._trace = trace
        self._id = uuid.uuid4().hex[:_SHORT_ID]
        self._write("generation", description)

    def cycle(
        self,
        drafter: str,
        budget: DraftBudget,
        timing: CycleTiming,
        predicted_s: float | None,
        seconds: float,
        cycle: Cycle,
    ) -> None:
        """One cycle, committed."""
        acceptance = budget.acceptance[: timing.proposed]
        self._write(
            "cycle",
            {
                "drafter": drafter if timing.proposed else "none",
                "depth": timing.depth,
                "n": timing.evaluated,
                "predicted_s": None if predicted_s is None else round(predicted_s, _DIGITS),
                "verify_s": round(timing.verify_s, _DIGITS),
                "draft_s": round(timing.draft_s, _DIGITS),
                "seconds": round(seconds, _DIGITS),
                "proposed": timing.proposed,
                "accepted": timing.emitted - 1,
                "tokens": cycle.tokens,
                "origins": [origin.value for origin in cycle.origins],
                "acceptance": [round(float(a), 4) for a in acceptance],
            },
        )

    def end(self, stream: Stream, finish_reason: str | None) -> None:
        """It is over; without a reason it failed, or nobody wanted the rest."""
        statistics = stream.statistics
        self._write(
            "end",
            {
                "finish_reason": finish_reason,
                "emitted": len(stream.emitted),
                "timings": statistics.timings(),
                "speculation": statistics.speculation(),
            },
        )

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        self._trace.write({"type": kind, "id": self._id, **content})


def _describe(engine: Engine, stream: Stream) -> dict[str, Any]:
    """What a generation starts from: settings, prompt, costs, and what was learned until now."""
    setting, policy = engine.exactness.setting, engine.policy
    costs = None
    if setting is not None:
        costs = {name: getattr(setting, name) for name in ("depths", "sizes", "seconds")}
        costs["switch_s"] = setting.switch_s
    return {
        "model": engine.model_name,
        "drafter": engine.drafter_name,
        "setting": None if setting is None else setting.name,
        "k": engine.options.k,
        "largest_k": engine.decoder.k,
        "context": engine.decoder.capacity,
        "max_tokens": stream.limits.max_tokens,
        "temperature": float(stream.settings.arguments.temperature),
        "rule": _rule(stream.settings),
        "prompt": stream.sequence[: stream.prompt_tokens],
        "costs": costs,
        "corrections": policy.costs and policy.costs.corrections(),
        "learned": {"ngram": engine.profile.ngram, "draft": engine.drafter.learned().model},
    }


def _rule(settings: DrawSettings) -> str:
    if is_greedy(settings.arguments):
        return "greedy"
    return "coupled" if settings.rule == ACCEPT_COUPLED else "rejection"
