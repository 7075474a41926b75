"""The command's own help: what it says, and what it does not wait for."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from edgespec.cli.main import cli
from edgespec.extras import EXTRAS

SLOW = {"numpy", "numba", "llama_cpp", "jinja2", "httpx", "huggingface_hub", "gguf", "asyncio"}


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["no-such-command"]])
def test_no_package_that_takes_time_is_imported(words: list[str]) -> None:
    """Under load or on a board, each of them would be waited for."""
    heavy = SLOW | {package for packages in EXTRAS.values() for package in packages}
    script = f"""
import atexit, sys
from edgespec.cli.main import main
atexit.register(lambda: print("imported:", sorted({heavy} & set(sys.modules))))
main({words})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_every_command_is_listed_as_it_describes_itself() -> None:
    with click.Context(cli, max_content_width=100, terminal_width=100) as context:
        listed = cli.get_help(context).partition("Commands:\n")[2]
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            assert command is not None
            assert f"  {name:<8} {command.get_short_help_str(80)}\n" in f"{listed}\n"
