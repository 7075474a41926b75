"""The machine that figures are measured on, and the energy that its processor uses."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["EnergyMeter", "machine_facts"]

_PACKAGES = "intel-rapl:?"
_ROOT = Path("/sys/class/powercap")


def machine_facts() -> dict[str, Any]:
    """Return processor, cores and instruction sets, as far as the system reports them."""
    facts = _cpuinfo()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": facts.get("model name") or facts.get("Model") or platform.processor(),
        "cores": allowed,
        "flags": (facts.get("flags") or facts.get("Features") or "").split(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines))  # the first processor's win
    return {name.strip(): value.strip() for name, _, value in pairs}


# -- energy -------------------------------------------------------------------------------


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
