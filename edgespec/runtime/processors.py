"""Which processors this process may use, its control groups, and how many others keep busy.

A team of threads that wait for each other collapses when one of them is not running: tokens then
take as long as the system's time slices. So there are never more threads than processors that
nobody else wants.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

__all__ = [
    "Load",
    "SpareProcessors",
    "allowed_processors",
    "control_groups",
    "default_threads",
    "fast_processors",
    "read_lines",
    "read_number",
    "spare_processors",
]

_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def control_groups(
    controller: str, membership: Path = _MEMBERSHIP, root: Path = _ROOT
) -> Iterator[Path]:
    """Yield the folders of a controller's groups, from this process's own up to the mount.

    A container sees its own group as the mount's root, under a path of the host: so all levels
    are yielded, as each may have a limit, and not all have to be there.

    Args:
        controller: "cpu" or "memory".
        membership, root: of another file system, for tests.
    """
    for line in read_lines(membership):
        _, controllers, path = ([*line.split(":", 2), "", "", ""])[:3]
        if controllers == "":  # version 2
            yield from _levels(root, path)
        elif controller in controllers.split(","):
            yield from _levels(root / controller, path)


def _levels(mount: Path, path: str) -> Iterator[Path]:
    group = mount / path.strip().lstrip("/")
    for folder in (group, *group.parents):
        yield folder
        if folder == mount:
            return


def read_number(path: Path) -> int | None:
    """Return a file's only number; None for "max" or -1, and when there is no such file."""
    text = "".join(read_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def read_lines(path: Path) -> list[str]:
    """Return a file's lines; none if it cannot be read."""
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []


_DEVICES = Path("/sys")
_FAST_SHARE = 0.6
"""Of the largest capacity: slower cores would hold up the others at every barrier."""

_INTERVAL_S = 0.25
"""Between looks at the system's clocks, which count in hundredths of a second."""
_MEMORY_S = 0.4
_WORTH_A_THREAD = 0.6
"""Of a processor: with less than that to spare, a thread waits more often than it works."""
_CALM_S = 1.0


def default_threads() -> int:
    """Return one thread for each fast physical core that this process may use, within its quota."""
    allowed = allowed_processors()
    return max(1, min(_cores(fast_processors(allowed)), _whole(_quota())))


def allowed_processors() -> frozenset[int]:
    """Return the processors, hyperthreads included, that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def fast_processors(allowed: frozenset[int], root: Path = _DEVICES) -> frozenset[int]:
    """Return those without the small cores of a hybrid or big.LITTLE processor."""
    performance = _listed(root / "devices/cpu_core/cpus") & allowed
    if performance:
        return performance
    capacities = {
        cpu: read_number(root / f"devices/system/cpu/cpu{cpu}/cpu_capacity") or 0 for cpu in allowed
    }
    least = _FAST_SHARE * max(capacities.values())
    return frozenset(cpu for cpu, capacity in capacities.items() if capacity >= least)


def _cores(processors: frozenset[int], root: Path = _DEVICES) -> int:
    """Count physical cores: hyperthreads of one core name the same siblings."""
    topology = (root / f"devices/system/cpu/cpu{cpu}/topology" for cpu in processors)
    siblings = [_listed(folder / "thread_siblings_list") for folder in topology]
    if all(siblings):
        return len(set(siblings))
    return min(len(processors), psutil.cpu_count(logical=False) or 1)


def _listed(path: Path) -> frozenset[int]:
    """Return the numbers of a list like ``0-3,8``; none if there is no such file."""
    try:
        ranges = [part.split("-") for part in path.read_text("ascii").strip().split(",")]
        return frozenset(cpu for part in ranges for cpu in range(int(part[0]), int(part[-1]) + 1))
    except (OSError, ValueError):
        return frozenset()


def _quota() -> float:
    """Return how many processors' time the control groups allow, versions 1 and 2."""
    return min(_quotas(), default=math.inf)


def _quotas(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[float]:
    for folder in control_groups("cpu", membership, root):
        quota = read_number(folder / "cpu.cfs_quota_us")
        period = read_number(folder / "cpu.cfs_period_us")
        try:
            first, second = (folder / "cpu.max").read_text("ascii").split()
            quota, period = (int(first) if first.isdecimal() else None), int(second)
        except (OSError, ValueError):
            pass
        if quota and period:
            yield quota / period


def _whole(processors: float) -> int:
    """Round down: a team that is throttled stops at every barrier."""
    return max(1, math.floor(processors + 0.25)) if math.isfinite(processors) else 1 << 16


# -- how busy others keep them ----------------------------------------------------------------


class Load(NamedTuple):
    """Processor seconds since any fixed moment.

    Attributes:
        busy: of all allowed processors.
        own: of this process.
    """

    busy: float
    own: float


class SpareProcessors:
    """How many threads the machine has room for at the moment.

    Args:
        count: allowed processors.
        now: seconds.
        load: what they did until now.
    """

    def __init__(
        self,
        count: int | None = None,
        now: Callable[[], float] = time.monotonic,
        load: Callable[[], Load] | None = None,
    ) -> None:
        self._count = count or len(allowed_processors())
        self._now, self._load = now, load or _system_load
        self._seen, self._before = self._now(), self._load()
        self._others = 0.0
        self._calm_since: float | None = None
        self.threads = self._count

    def look(self) -> int:
        """Return the threads there is room for, at least 1. Cheap if asked again soon."""
        now = self._now()
        passed = now - self._seen
        if passed >= _INTERVAL_S:
            load = self._load()
            others = (load.busy - self._before.busy) - (load.own - self._before.own)
            self._seen, self._before = now, load
            weight = 1.0 - math.exp(-passed / _MEMORY_S)
            self._others += weight * (max(0.0, others / passed) - self._others)
            self._decide(now)
        return self.threads

    def _decide(self, now: float) -> None:
        room = max(1, math.floor(self._count - self._others + 1.0 - _WORTH_A_THREAD))
        if room <= self.threads:
            self.threads, self._calm_since = room, None
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= _CALM_S:  # compilers and browsers work in bursts
            self.threads, self._calm_since = room, None


@cache
def spare_processors() -> SpareProcessors:
    """Return the one of this process: all engines share its processors."""
    return SpareProcessors()


def _system_load() -> Load:
    """Read what the system counts. Work started to be nice to others leaves room for ours."""
    each, nice = psutil.cpu_times(percpu=True), _is_nice()
    busy = 0.0
    for cpu in allowed_processors():
        if cpu < len(each):
            times = each[cpu]._asdict()
            idle = times["idle"] + times.get("iowait", 0.0)
            polite = 0.0 if nice else times.get("nice", 0.0)
            # Guests' time is part of user and nice.
            guests = times.get("guest", 0.0) + times.get("guest_nice", 0.0)
            busy += sum(times.values()) - guests - idle - polite
    return Load(busy, time.process_time())


def _is_nice() -> bool:
    return hasattr(os, "getpriority") and os.getpriority(os.PRIO_PROCESS, 0) > 0
