"""Joules that the processor used, where the system reports them (Linux, RAPL)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["EnergyMeter"]

_PACKAGES = "intel-rapl:?"
_ROOT = Path("/sys/class/powercap")


class EnergyMeter:
    """Count what all processor packages use together, other programs' work included.

    RAPL counts for Intel and AMD. On most systems only the administrator may read it.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._counters = [folder / "energy_uj" for folder in sorted(root.glob(_PACKAGES))]
        self._spans = [
            _read(counter.with_name("max_energy_range_uj")) for counter in self._counters
        ]
        self._before = [_read(counter) for counter in self._counters]

    def joules(self) -> float | None:
        """Return joules since the last call, or since opening; None where they cannot be read."""
        now = [_read(counter) for counter in self._counters]
        before, self._before = self._before, now
        total = 0
        for old, new, span in zip(before, now, self._spans, strict=True):
            if old is None or new is None:
                return None
            total += new - old if new >= old else new - old + (span or 0)  # it starts over
        return total / 1e6 if now else None


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
