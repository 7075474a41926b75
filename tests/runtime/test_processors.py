"""How many threads: by affinity, cores, quota, and by what other programs do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from edgespec.runtime import processors
from edgespec.runtime.processors import Load, SpareProcessors, fast_processors


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_small_cores_of_an_arm_board_are_left_out(tmp_path: Path) -> None:
    capacities = [370] * 4 + [871] * 3 + [1024]
    cpus = "devices/system/cpu"
    write(tmp_path, {f"{cpus}/cpu{i}/cpu_capacity": f"{c}\n" for i, c in enumerate(capacities)})
    assert fast_processors(frozenset(range(8)), tmp_path) == {4, 5, 6, 7}
    assert fast_processors(frozenset(range(4)), tmp_path) == {0, 1, 2, 3}  # all it may use


def test_efficiency_cores_of_a_hybrid_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"devices/cpu_core/cpus": "0-3,6\n", "devices/cpu_atom/cpus": "4-5\n"})
    assert fast_processors(frozenset(range(8)), tmp_path) == {0, 1, 2, 3, 6}
    assert fast_processors(frozenset({4, 5}), tmp_path) == {4, 5}


def test_hyperthreads_count_once(tmp_path: Path) -> None:
    siblings = ["0,4", "1,5", "2,6", "3,7"] * 2
    write(
        tmp_path,
        {
            f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{names}\n"
            for cpu, names in enumerate(siblings)
        },
    )
    assert processors._cores(frozenset(range(8)), tmp_path) == 4
    assert processors._cores(frozenset({0, 1, 4}), tmp_path) == 2


@pytest.mark.parametrize(
    ("files", "membership", "quota", "threads"),
    [
        ({"box/cpu.max": "100000 100000\n"}, "0::/box\n", 1.0, 1),
        ({"box/cpu.max": "max 100000\n"}, "0::/box\n", None, None),
        ({"cpu.max": "350000 100000\n", "box/cpu.max": "max 100000\n"}, "0::/box\n", 3.5, 3),
        ({"cpu.max": "175000 100000\n"}, "0::/of/the/host\n", 1.75, 2),
        ({"cpu.max": "50000 100000\n"}, "0::/\n", 0.5, 1),
        (
            {"cpu/box/cpu.cfs_quota_us": "200000\n", "cpu/box/cpu.cfs_period_us": "100000\n"},
            "4:cpu:/box\n0::/\n",
            2.0,
            2,
        ),
        (
            {"cpu/box/cpu.cfs_quota_us": "-1\n", "cpu/box/cpu.cfs_period_us": "100000\n"},
            "4:cpu:/box\n",
            None,
            None,
        ),
        ({"box/cpu.max": "nonsense"}, "0::/box\n", None, None),
    ],
)
def test_quotas(
    tmp_path: Path,
    files: dict[str, str],
    membership: str,
    quota: float | None,
    threads: int | None,
) -> None:
    write(tmp_path, {**files, "membership": membership})
    found = list(processors._quotas(tmp_path / "membership", tmp_path))
    assert found == ([] if quota is None else [quota])
    if quota is not None:
        assert processors._whole(quota) == threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_an_affinity_mask_is_obeyed() -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from edgespec.runtime.processors import default_threads; print(default_threads())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "1\n"


# -- a machine in use -------------------------------------------------------------------------


class Machine:
    """Processors with other programs on them, shared evenly by all that want to run."""

    def __init__(self, processors: int) -> None:
        self.processors, self.others = processors, 0.0
        self.now = self.busy = self.own = 0.0
        self.spare = SpareProcessors(
            processors, lambda: self.now, lambda: Load(self.busy, self.own)
        )

    def run(self, seconds: float, step: float = 0.05) -> list[int]:
        """Decode for some time; return the threads of each step."""
        used = []
        for _ in range(round(seconds / step)):
            threads = self.spare.look()
            used.append(threads)
            share = min(1.0, self.processors / (threads + self.others))
            self.now += step
            self.own += step * threads * share
            self.busy += step * (threads + self.others) * share
        return used


def test_an_idle_machine_is_used_whole() -> None:
    assert set(Machine(4).run(10.0)) == {4}


@pytest.mark.parametrize(
    ("count", "others", "threads"),
    [(2, 1, 1), (2, 4, 1), (4, 1, 3), (4, 2, 2), (8, 3, 5), (2, 0.2, 2), (4, 50, 1)],
)
def test_as_many_threads_as_others_leave(count: int, others: float, threads: int) -> None:
    machine = Machine(count)
    machine.others = others
    used = machine.run(10.0)
    assert used[40:] == [threads] * len(used[40:])  # two seconds later at the latest, for good


def test_threads_come_back_when_the_others_end() -> None:
    machine = Machine(2)
    machine.others = 2
    machine.run(5.0)
    machine.others = 0
    used = machine.run(4.0)
    assert used[0] == 1
    assert used[-1] == 2


def test_bursts_do_not_make_it_change_its_mind_all_the_time() -> None:
    machine, used = Machine(2), []
    for burst in range(40):
        machine.others = 2 * (burst % 2)
        used += machine.run(0.5)
    changes = sum(a != b for a, b in pairwise(used))
    assert changes <= 10


def test_one_slow_step_is_enough_to_know() -> None:
    """A collapsed team takes a second for a token: there are not many looks."""
    machine = Machine(2)
    machine.others = 1
    machine.run(2.0, step=1.0)
    assert machine.spare.look() == 1


def test_the_systems_clocks_see_another_process() -> None:
    """Against a program that does nothing but run, whatever else this machine does."""
    before, started = processors._system_load(), time.monotonic()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while time.monotonic() - started < 2.0:
            time.sleep(0.1)  # this process does not run
        after = processors._system_load()
    finally:
        busy.kill()
        busy.wait()
    assert after.own - before.own < 0.5
    assert after.busy - before.busy > 0.5
