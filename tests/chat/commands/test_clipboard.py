from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgespec.chat.commands.answers import copy_text
from edgespec.errors import UsageError


@pytest.fixture(autouse=True)
def no_desktop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


def test_copy_through_the_desktop(monkeypatch: Any, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "xclip"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called; cat > {tmp_path}/copied\n')
    program.chmod(0o755)
    with pytest.raises(UsageError, match="no clipboard is known here: /write"):
        copy_text("text", None)
    monkeypatch.setenv("DISPLAY", ":9")
    sent: list[str] = []
    assert copy_text("täxt\n", sent.append) == "xclip and the terminal"
    assert (tmp_path / "copied").read_text("utf-8") == "täxt\n"
    assert (tmp_path / "called").read_text() == "-selection clipboard\n"
    assert copy_text("x" * 100_000, sent.append) == "xclip"
    assert len(sent) == 1
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UsageError, match="too long for the terminal"):
        copy_text("x" * 100_000, sent.append)
