"""Joules that the processor used, where the system tells (Linux, Intel's and AMD's RAPL)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["EnergyMeter"]

_PACKAGES = "intel-rapl:?"
_ROOT = Path("/sys/class/powercap")


class EnergyMeter:
    """Counts what all packages together use, other programs' work included.

    Most systems let only the administrator read it; without that there is no figure.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._counters = [folder / "energy_uj" for folder in sorted(root.glob(_PACKAGES))]
        self._spans = [
            _read(counter.with_name("max_energy_range_uj")) for counter in self._counters
        ]
        self._before = [_read(counter) for counter in self._counters]

    def joules(self) -> float | None:
        """Since the last call, or since it was made; None where it cannot be read."""
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
