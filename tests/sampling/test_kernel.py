"""Where compiled kernels are kept: no change of what a kernel calls leaves a stale one behind."""

from __future__ import annotations

import re
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
