"""Pages say what is there: programs are tested, links lead somewhere, packages keep their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from edgespec.cli.main import cli
from tests.pages import ROOT, pages, programs

TESTED = {
    "asyncio": "tests/test_programs.py",
    "client": "tests/server/test_readme.py",
    "conversation": "tests/test_programs.py",
    "drop-in": "tests/test_programs.py",
    "embeddings": "tests/test_programs.py",
    "extraction": "tests/test_programs.py",
    "import": "tests/test_programs.py",
    "window": "tests/test_programs.py",
}
"""The test that runs each program."""

LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
PATH = re.compile(r"`((?:edgespec|bench|tests|models|\.github)/[\w./-]*)`")
COMMAND = re.compile(r"^(?: {4}|)(?:\$ )?(?:[^|\n`]* \| )?(edgespec [^|\n]*)", re.MULTILINE)
IMPORT = re.compile(r"^ *(?:from|import) edgespec\.(\w+)", re.MULTILINE)
BENCHMARK = re.compile(r"python -m bench\.(?!NAME)(\w+)([^`\n]*)")

each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))


def test_every_program_has_a_test() -> None:
    assert sorted(name for name, _ in programs()) == sorted(TESTED)
    for name, path in TESTED.items():
        assert f'program("{name}")' in (ROOT / path).read_text(encoding="utf-8")
    printed = sum(page.read_text(encoding="utf-8").count("```python") for page in pages())
    assert printed == len(TESTED)


def test_the_readme_fits_on_three_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 170


def test_tests_mirror_the_packages() -> None:
    """A folder of tests has the name of the package that it tests."""
    for folder in {path.parent for path in (ROOT / "tests").glob("*/*.py")} - {
        ROOT / "tests/bench"
    }:
        assert (ROOT / "edgespec" / folder.name / "__init__.py").exists(), folder


def test_packages_import_only_what_stands_below_them() -> None:
    """In the table of the architecture's page."""
    table = (ROOT / "edgespec" / "README.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| \[?`(\w+)`", table, re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "edgespec").glob("*/__init__.py")}
    assert set(order) == packages
    for above in order:
        for module in (ROOT / "edgespec" / above).rglob("*.py"):
            for name in set(IMPORT.findall(module.read_text(encoding="utf-8"))) & packages:
                assert order.index(name) >= order.index(above), f"{module} imports {name}"


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if heading:
            assert heading[1:] in headings(file), f"{target}{heading}"


@each_page
def test_paths_exist(page: Path) -> None:
    for path in PATH.findall(page.read_text(encoding="utf-8")):
        assert "NAME" in path or (ROOT / path).exists(), path


@each_page
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, arguments in BENCHMARK.findall(text):
        sources = [ROOT / "bench" / f"{name}.py", *(ROOT / "bench" / name).glob("*.py")]
        code = "".join(source.read_text("utf-8") for source in sources if source.exists())
        for option in re.findall(r"--[\w-]+", arguments):
            assert f'"{option}"' in code, f"bench.{name} {option}"
        assert code, name
    for line in COMMAND.findall(blocks(text)):
        words = shlex.split(line, comments=True)[1:]
        command, context = cli, click.Context(cli)
        while words and isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None, line
            command = found
        known = {option for each in command.params for option in each.opts}
        assert {word for word in words if word.startswith("-") and word != "-"} <= known, line


def blocks(text: str) -> str:
    """Indented and fenced blocks of a page."""
    fenced = re.findall(r"^```(?:console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return "\n".join(fenced + re.findall(r"^ {4}.*$", text, re.MULTILINE))


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
