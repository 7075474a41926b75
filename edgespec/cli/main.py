"""The `edgespec` command: finds the subcommand, and turns every error into one line."""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import traceback
from typing import Any

import click

from edgespec import __version__
from edgespec.chat.characters import printable
from edgespec.errors import EdgespecError

__all__ = ["cli", "main"]

# What `--help` shows of each: only the command that is run has its module imported.
_COMMANDS = {
    "bench": "Measure what speculation brings with MODEL on this machine.",
    "chat": "Talk with a model.",
    "chats": "Manage stored conversations.",
    "distill": "Train a draft for TARGET on text that TARGET writes itself.",
    "doctor": "Show what was built, what memory there is, and what to change.",
    "lab": "Show why speculation keeps p, and when it pays.",
    "models": "List, download, describe and remove models; also: list, pull, rm, ps.",
    "run": "Answer one prompt: behind MODEL, -p TEXT, -f FILE, or standard input.",
    "serve": "Serve OpenAI's HTTP interface, and a web page.",
    "tune": "Find the fastest way to run MODEL on this machine, and keep it.",
    "verify": "Show that speculation changes nothing.",
}
_SHORT_FORMS = {"list": "list", "ls": "list", "pull": "pull", "rm": "remove", "ps": "ps"}
"""Words for subcommands of `models`, as other programs have them."""
_INTERRUPTED = 130


class _LazyGroup(click.Group):
    """Import a command's module when the command is run: `models list` needs no Numba."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _SHORT_FORMS:
            models = self.get_command(ctx, "models")
            assert isinstance(models, click.Group)
            return models.get_command(ctx, _SHORT_FORMS[cmd_name])
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"edgespec.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgespec")
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
@click.option("-v", "--verbose", is_flag=True, help="Log to standard error, llama.cpp included.")
def cli(debug: bool, verbose: bool) -> None:
    """Run GGUF models on a CPU, faster, with exactly the output they would give anyway.

    MODEL is a path to a .gguf file, a name from `edgespec list`, or hf:OWNER/REPO[:Q4_K_M].
    Without it the default model is used, downloaded on first use.
    """
    if debug or verbose:
        level = logging.DEBUG if verbose else logging.INFO
        logging.basicConfig(level=level, format="%(name)s: %(message)s", stream=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; end the process with the documented exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    # It may stand anywhere: nobody remembers that it belongs before the subcommand.
    debug = "--debug" in words
    words = (["--debug"] if debug else []) + [w for w in words if w != "--debug"]
    _prepare_streams()
    status = _run(words, debug)
    # A reader that went away (`| head`) must not make the interpreter complain at exit.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def _prepare_streams() -> None:
    """Replace closed streams by empty ones, and characters that the terminal lacks by `?`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(words: list[str], debug: bool) -> int:
    try:
        # Not `cli.main`: it answers Ctrl-C with an empty line.
        with cli.make_context("edgespec", words) as context:
            result: Any = cli.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        return _fail(_with_hint(error), 2, debug)
    except click.ClickException as error:
        return _fail(error.format_message(), 2, debug)
    except EdgespecError as error:
        return _fail(str(error), error.exit_status, debug)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", _INTERRUPTED, debug)
    except BrokenPipeError:
        return 1
    except OSError as error:
        return _fail(_describe(error), 1, debug)
    except MemoryError:
        return _fail("out of memory: use a smaller model or a shorter --ctx", 1, debug)
    except Exception as error:
        kind = type(error).__name__
        return _fail(f"internal error ({kind}: {error}): run again with --debug", 1, debug)
    return result if isinstance(result, int) else 0


def _with_hint(error: click.UsageError) -> str:
    """Return what is wrong with the command line, and where to read how to write it."""
    message = error.format_message()
    stop = "" if message.endswith((".", "?")) else "."
    command = error.ctx.command_path if error.ctx else "edgespec"
    return f"{message}{stop} See `{command} --help`."


def _describe(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror or error}"


def _fail(message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    click.echo(f"edgespec: {' '.join(printable(message).split())}", err=True)
    return status
