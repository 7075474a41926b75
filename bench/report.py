"""What the benchmarks have in common: medians with their intervals, and the machine's facts.

Imports nothing of edgespec: a benchmark that compares with something else may need none of it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["machine_facts", "median_interval"]

_RESAMPLES = 2000


def median_interval(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The median, and a 95% bootstrap interval of it."""
    values = np.asarray(values, np.float64)
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(values, (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return {"median": float(np.median(values)), "low": float(low), "high": float(high)}


def machine_facts() -> dict[str, Any]:
    """Processor, cores and instruction sets, as far as the system tells them."""
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
