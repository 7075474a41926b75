"""Where compiled kernels are kept: no change of what a kernel calls leaves a stale one behind."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec.sampling import kernel

PACKAGE = Path(edgespec.__file__).parent
WITH_KERNELS = {
    path.relative_to(PACKAGE).parts[0]
    for path in PACKAGE.rglob("*.py")
    if re.search(r"^@kernel$", path.read_text("utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("name", kernel._PACKAGES)
def test_a_package_calls_kernels_only_of_those_that_its_key_covers(name: str) -> None:
    assert name in WITH_KERNELS
    covered = kernel._PACKAGES[: kernel._PACKAGES.index(name) + 1]
    for path in (PACKAGE / name).glob("*.py"):
        imported = set(re.findall(r"^from edgespec\.(\w+)", path.read_text("utf-8"), re.MULTILINE))
        assert imported & WITH_KERNELS <= set(covered), path


def where(temporary: Path) -> list[str]:
    """Return where a process keeps kernels that cannot write its cache, and what it says of it."""
    script = """
from edgespec.sampling.kernel import cache_folder, replaced_folder
print(cache_folder(), cache_folder("control"), replaced_folder(), sep="\\n")
"""
    environment = {**os.environ, "EDGESPEC_CACHE": "/proc/nowhere", "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_kernels_go_to_a_temporary_folder_that_is_named(tmp_path: Path) -> None:
    *folders, said = where(tmp_path)
    (root,) = tmp_path.iterdir()
    assert {Path(folder).parent for folder in folders} == {root}
    assert root.stat().st_mode & 0o777 == 0o700
    assert said.startswith("/proc/nowhere/kernels cannot be written")
    assert said.endswith(f"kernels are kept in {root}")
    assert where(tmp_path) == [*folders, said]


@pytest.mark.parametrize("other", ["file", "link", "open to all"])
def test_a_temporary_folder_of_others_is_not_used(tmp_path: Path, other: str) -> None:
    folder = tmp_path / f"edgespec-kernels-{os.getuid()}"
    if other == "file":
        folder.touch()
    elif other == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    assert where(tmp_path)[:2] == ["None", "None"]


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: writing fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        assert kernel._usable(tmp_path) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kernel._usable(tmp_path) == tmp_path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux is told of pages")
def test_the_compiler_works_after_its_pages_were_released() -> None:
    """In a process of its own: what it holds is the system's business, not this one's."""
    script = """
import re, numba
from pathlib import Path
from edgespec.sampling.kernel import release_compiler

def held():
    return int(re.search(r"RssFile:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

numba.njit(lambda x: x + 1)(1)
before = held()
release_compiler()
after = held()
assert after < before - 10_000, (before, after)
assert numba.njit(lambda x: x * 3)(14) == 42
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
