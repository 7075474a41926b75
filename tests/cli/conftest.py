"""Running the command as a user does: a process of its own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from edgespec.cli.main import main
from tests.registry.conftest import cache, make_gguf, server

__all__ = ["cache", "called_here", "edgespec", "make_gguf", "server"]

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


@pytest.fixture
def called_here(
    default_model: object,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """The same in this process, which has imported everything already."""

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert isinstance(ended.value.code, int)
        output, errors = capfdbinary.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, output, errors)

    return run
