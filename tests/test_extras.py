"""Packages that only some commands need: what is said where one of them is missing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.cli.opening import pull_progress
from edgespec.extras import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Run = Callable[..., "subprocess.CompletedProcess[str]"]

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
OPTIONAL = [package for packages in EXTRAS.values() for package in packages]


def without(packages: list[str], script: str, *arguments: str) -> Any:
    """Run a script in a process in which these packages are not installed."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nsys.modules.update(dict.fromkeys({packages}))\n{script}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


def command(*arguments: str, lacking: list[str] = OPTIONAL) -> Any:
    """`edgespec ARGUMENTS` without these packages."""
    return without(lacking, "from edgespec.cli.main import main\nmain()", *arguments)


@pytest.mark.parametrize(
    ("arguments", "extra", "what", "named"),
    [
        (("chat",), "chat", "a conversation", "rich and prompt_toolkit"),
        (("chats", "list"), "chat", "a list of conversations", "rich and prompt_toolkit"),
        (("chats", "search", "word"), "chat", "a list of messages", "rich and prompt_toolkit"),
        (("run", "-p", "Hello", "--show"), "chat", "--show", "rich and prompt_toolkit"),
        (
            ("serve", "--port", "0"),
            "serve",
            "the server",
            "starlette and uvicorn and pydantic and prometheus_client",
        ),
        (("lab", "--png", "lab.png"), "plot", "--png", "matplotlib"),
        (("bench", "--png", "bench.png"), "plot", "--png", "matplotlib"),
        (("tune", "--png", "tune.png"), "plot", "--png", "matplotlib"),
        (("distill", "-o", "draft.gguf"), "distill", "training", "torch"),
    ],
)
def test_what_is_missing_is_one_line(
    arguments: tuple[str, ...], extra: str, what: str, named: str
) -> None:
    done = command(*arguments)
    verb = "are" if " and " in named else "is"
    assert done.stderr == (
        f"edgespec: {what} needs {named}, which {verb} not installed: "
        f'pip install "edgespec[{extra}]"\n'
    )
    assert (done.stdout, done.returncode) == ("", 1)


@pytest.mark.parametrize("kind", ["tiny", "eagle3", "medusa"])
def test_a_draft_is_planned_without_pytorch(toy_target: Path, tmp_path: Path, kind: str) -> None:
    output, work = str(tmp_path / "draft.gguf"), tmp_path / "work"
    call = ("distill", str(toy_target), "-o", output, "--kind", kind, "--work", str(work))
    done = command(*call, "--vocabulary", "128", "--threads", "1", "--plan", lacking=["torch"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Plan for 2 h: write ") and lines[1].startswith(
        "Text still to write"
    )
    assert lines[-1] == "PyTorch is not installed: the speed of training is an estimate."
    assert not work.exists() and "Traceback" not in done.stderr
    # Where it was measured before, that is used.
    folder = work / f"{kind}-128"
    folder.mkdir(parents=True)
    plan = {"hours": 2.0, "writing_rate": 100.0, "training_rate": 50.0, "tokens": 700, "steps": 9}
    (folder / "plan.json").write_text(json.dumps(plan))
    done = command(*call, "--vocabulary", "128", "--plan", lacking=["torch"])
    assert "write 700 tokens" in done.stdout and "estimate" not in done.stdout


@pytest.mark.parametrize("package", OPTIONAL)
def test_the_one_that_is_missing_is_named(package: str) -> None:
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    script = f"from edgespec.extras import require_extra\nrequire_extra({extra!r}, 'it')"
    others = [other for other in EXTRAS[extra] if other != package]
    installed = f"import importlib.machinery, types\nfor name in {others}:\n"
    installed += "    sys.modules[name] = types.ModuleType(name)\n"
    installed += "    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)\n"
    done = without([package], installed + script)
    assert f"it needs {package}, which is not installed" in done.stderr.splitlines()[-1]


def test_an_answer_needs_none_of_them(default_model: Path) -> None:
    done = command("run", str(default_model), "-p", "Name a river.", "--max-tokens", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "arguments", [("--help",), ("models", "list"), ("doctor",), ("lab",), ("serve", "--help")]
)
def test_other_commands_need_none_of_them(arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")


def test_in_a_terminal_a_download_is_told_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "rich" else find(name)
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pull_progress("tiny") as progress:
        for done in (0, 5_000_000, 10_000_000):
            progress(done, 10_000_000)
    assert capsys.readouterr().err == "downloading tiny (10.0 MB) ...\ndownloaded tiny (10.0 MB)\n"


def test_only_their_own_packages_import_them() -> None:
    script = """
import importlib, pkgutil
import edgespec

OWN = ("edgespec.chat", "edgespec.server", "edgespec.distill", "edgespec.__main__")

def walk(package):
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(OWN):
            module = importlib.import_module(found.name)
            print(found.name)
            if found.ispkg:
                walk(module)

walk(edgespec)
"""
    done = without(OPTIONAL, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"edgespec.runtime.engine", "edgespec.cli.serve"} <= set(done.stdout.split())


def test_the_project_declares_what_is_looked_for() -> None:
    declared = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        assert tuple(line.partition(">=")[0] for line in declared[extra]) == packages
    assert declared["all"] == [f"edgespec[{','.join(EXTRAS)}]"]
