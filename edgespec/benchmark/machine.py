"""The machine that figures are measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["machine_facts"]


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
