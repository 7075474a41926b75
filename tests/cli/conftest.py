"""Running the command as a user does: a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.registry.conftest import cache, make_gguf, server

__all__ = ["cache", "edgespec", "make_gguf", "server"]

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="session")
def edgespec(default_model: object) -> Run:
    """`edgespec ARGUMENTS`; the default model is there already."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"input": b"", "timeout": 300, **options}
        return subprocess.run(
            [sys.executable, "-m", "edgespec", *arguments], capture_output=True, **options
        )

    return run
