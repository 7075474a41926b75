"""What is known of a target on this machine: how to open it, and what drafting has brought.

One JSON file for each machine, build and model file. `edgespec tune` writes the settings it found
best; every engine adds what it learned when it is closed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.tuning.setting import (
    Setting,
    forget_measurements,
    load_measurement,
    measurement_key,
    store_measurement,
    stored_measurements,
)

__all__ = ["Profile", "Usage", "load_profile", "tuned_models"]

_USAGE_DECAY = 0.9


@dataclass
class Usage:
    """Typical lengths of prompts (what the cache did not hold) and answers, in tokens."""

    prompt: float = 200.0
    answer: float = 200.0

    def add(self, prompt: int, answer: int) -> None:
        """Add a generation."""
        self.prompt += (1 - _USAGE_DECAY) * (prompt - self.prompt)
        self.answer += (1 - _USAGE_DECAY) * (answer - self.answer)


@dataclass
class Profile:
    """The file's content; unreadable parts are left out.

    Attributes:
        key: its name in the store.
        best: how `edgespec tune` found the target fastest; None before that.
        tuned: what it found, for people: the model's name and file, and a few figures.
        usage: lengths that were seen.
        drafts: by `measurement_key` of the draft's file, what its `DraftStopping` knows.
        ngram: hits and trials of prompt lookup by match length.
        shapes: by setting, what each batch size was off by against its measurement.
    """

    key: str
    best: Setting | None = None
    tuned: dict[str, Any] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    drafts: dict[str, Any] = field(default_factory=dict)
    ngram: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, list[float]] = field(default_factory=dict)

    def draft(self, file: Path) -> dict[str, Any]:
        """Return what is known of drafting with this file; changes to it are kept."""
        return _dictionary(self.drafts.setdefault(measurement_key(file, {}), {}))

    def forget(self) -> None:
        """Remove the file."""
        forget_measurements(self.key)

    def save(self) -> None:
        """Write it; a folder that cannot be written costs only learning again."""
        store_measurement(
            self.key,
            {
                "best": self.best.as_json() if self.best else None,
                "tuned": self.tuned,
                "usage": vars(self.usage),
                "drafts": self.drafts,
                "ngram": self.ngram,
                "shapes": self.shapes,
            },
        )


def load_profile(model: Path) -> Profile:
    """Load the profile of this file; an empty one if there is none."""
    key = _key(model)
    data = load_measurement(key) or {}
    return Profile(
        key,
        _best(data.get("best")),
        _dictionary(data.get("tuned")),
        _usage(data.get("usage")),
        _dictionary(data.get("drafts")),
        _dictionary(data.get("ngram")),
        {k: v for k, v in _dictionary(data.get("shapes")).items() if _numbers(v)},
    )


def tuned_models() -> list[dict[str, Any]]:
    """Return what `edgespec tune` found for each model that is still where it was."""
    found = []
    for key, data in stored_measurements("profile-*").items():
        tuned = _dictionary(data.get("tuned"))
        with contextlib.suppress(OSError, TypeError, KeyError):
            whole = all(tuned[name] for name in ("model", "date", "setting"))
            timed = tuned["token_s"] > 0 and tuned["prefill_s"] > 0
            if whole and timed and key == _key(Path(tuned["path"])):
                found.append(tuned)
    return found


def _key(model: Path) -> str:
    return "profile-" + measurement_key(model, {})


def _best(data: Any) -> Setting | None:
    try:
        best = Setting(**data)
    except TypeError:
        return None
    sane = isinstance(best.threads, int) and 1 <= best.threads <= 512
    return best if sane else None


def _usage(data: Any) -> Usage:
    try:
        usage = Usage(**data)
    except TypeError:
        return Usage()
    return usage if _numbers([usage.prompt, usage.answer]) else Usage()


def _dictionary(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and all(
        isinstance(v, (int, float)) and math.isfinite(v) for v in values
    )
