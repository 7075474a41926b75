"""`edgespec run`: one prompt, one answer."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.chat.characters import WordWriter, printable
from edgespec.cli.opening import open_chat_engine, open_engine, say_small_once
from edgespec.cli.options import (
    engine_options,
    limit_options,
    make_engine_options,
    make_limits,
    make_sampling,
    sampling_options,
)
from edgespec.errors import UsageError
from edgespec.extras import require_extra
from edgespec.files import decode_text
from edgespec.runtime.options import ANSWER_TOKENS

if TYPE_CHECKING:
    from edgespec.runtime.constraint import Constraint
    from edgespec.runtime.engine import Engine
    from edgespec.runtime.stream import Result, Stream, TokenChunk

__all__ = ["run"]

_MOST_BYTES = 16 << 20


@click.command()
@engine_options
@click.argument("words", metavar="[PROMPT]", required=False)
@click.option("-p", "--prompt", help="The prompt.")
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    help="Read the prompt from a file; - is standard input. With -p: a text to put before it.",
)
@click.option("--system", metavar="TEXT", help="A system prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the chat template.")
@sampling_options
@limit_options
@click.option("--grammar", metavar="FILE", help="The answer obeys these GBNF or Lark rules.")
@click.option("--json-schema", metavar="FILE", help="The answer is JSON of this schema.")
@click.option("--regex", metavar="PATTERN", help="The answer matches this regular expression.")
@click.option("--show", is_flag=True, help="Colour the text by where each token came from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def run(**values: Any) -> int:
    """Answer one prompt: behind MODEL, -p TEXT, -f FILE, or standard input."""
    from edgespec.speculation.acceptance import draw_settings, repeatable_rule

    if values["raw"] and values["system"]:
        raise UsageError("--raw takes no --system: put it into the prompt")
    if values["show"] and values["as_json"]:
        raise UsageError("--show and --json exclude each other")
    if values["show"]:
        require_extra("chat", "--show")
    _place_words(values)
    options = make_engine_options(values)
    accept = repeatable_rule(values["accept"])
    sampling = make_sampling(values)
    limits = make_limits(values, overflow="stop")
    draw_settings(sampling, accept)  # a wrong rule is said before anything is loaded
    prompt = _read_prompt(values["prompt"], values["file"], values["model"])
    grammar = _read_grammar(values["grammar"], values["json_schema"], values["regex"])
    opened = open_engine if values["raw"] else open_chat_engine
    with opened(values["model"], options) as engine:
        text = prompt if values["raw"] else _render(engine, values["system"], prompt)
        stream = engine.generate(text, sampling, limits, accept=accept, grammar=grammar)
        exactness, lookup = engine.exactness_of(stream), engine.lookup
        result = _show(engine, stream, values["show"], values["as_json"])
    if values["as_json"]:
        report = {**result.as_json(), "seed": sampling.seed, "exactness": exactness.as_json()}
        if lookup is not None:
            report["lookup"] = {"tokens": lookup.size, "bytes": lookup.nbytes}
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        if exactness.mode == "lossy":
            click.echo(f"edgespec: lossy: {exactness.reason}", err=True)
        say_small_once(values["model"])
    return _status(result, stream.constraint)


def _status(result: Result, constraint: Constraint | None) -> int:
    """Return the exit status, and say what the text does not show."""
    if result.finish_reason == "cancelled":
        return 130
    cause = {
        "length": f"the answer was cut off at {len(result.tokens)} tokens (--max-tokens)",
        "loop": "the answer was ended because it only repeated itself (see --allow-loops)",
        "context": "the answer was cut off because the context is full (--ctx)",
    }.get(result.finish_reason)
    if cause and not result.complete:
        least = constraint.shortest if constraint else None
        least = least if least and least > len(result.tokens) else None
        known = "" if least is None else f", whose shortest known text has {least}"
        click.echo(f"edgespec: {cause} before it obeyed the grammar{known}", err=True)
        return 1
    by_default = result.finish_reason == "length" and len(result.tokens) == ANSWER_TOKENS
    if by_default or result.finish_reason == "loop":
        click.echo(f"edgespec: {cause}", err=True)
    return 0


def _show(engine: Engine, stream: Stream, show: bool, as_json: bool) -> Result:
    from edgespec.interrupts import consume

    if as_json:
        return consume(stream, lambda piece: None)
    if show:
        from edgespec.chat.view import OriginPrinter

        with OriginPrinter(engine.vocabulary) as printer, engine.observing(printer.watch):
            result = consume(stream, printer)
        printer.legend()
        return result
    if sys.stdout.isatty():
        # A file gets every character; a terminal none that would steer it.
        writer = WordWriter(sys.stdout, lambda: shutil.get_terminal_size().columns)
        result = consume(stream, lambda piece: writer.write(printable(piece.text)))
        writer.finish()
    else:
        result = consume(stream, _write)
    if not result.text.endswith("\n"):
        sys.stdout.write("\n")
    return result


def _write(piece: TokenChunk) -> None:
    sys.stdout.write(piece.text)
    sys.stdout.flush()


def _render(engine: Engine, system: str | None, prompt: str) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    return engine.template.render([*messages, {"role": "user", "content": prompt}])


def _read_grammar(grammar: str | None, schema: str | None, regex: str | None) -> str | None:
    if sum(one is not None for one in (grammar, schema, regex)) > 1:
        raise UsageError("--grammar, --json-schema and --regex exclude each other: give one")
    if grammar is not None:
        return _read_file(grammar)
    if schema is None and regex is None:
        return None
    from edgespec.grammars import grammar_from_regex, grammar_from_schema

    if regex is not None:
        return grammar_from_regex(regex)
    assert schema is not None
    return grammar_from_schema(_read_file(schema))


def _place_words(values: dict[str, Any]) -> None:
    """Take a prompt that stands without an option; with -m it may be the only word."""
    words = values.pop("words")
    if words is None and values["model_option"] is not None:
        words, values["model"] = values["model"], None
    if words is None:
        return
    if values["prompt"] is not None:
        raise UsageError(f"there are two prompts: leave out -p or {words[:40]!r}")
    values["prompt"] = words


def _read_prompt(prompt: str | None, file: str | None, model: str | None) -> str:
    if prompt is None and file is None and _is_no_model(model):
        raise UsageError(f"{model!r} stands in the place of a model's name: give a prompt with -p")
    if prompt is None:
        prompt = _read_file(file or "-")
    elif file is not None:
        prompt = f"{_read_file(file).rstrip()}\n\n{prompt}"
    if not prompt.isprintable() and any("\ud800" <= c <= "\udfff" for c in prompt):
        raise UsageError("the prompt is not valid UTF-8: convert it first")
    if not prompt.strip():
        raise UsageError("the prompt is empty: give -p TEXT, -f FILE, or text on standard input")
    return prompt


def _is_no_model(model: str | None) -> bool:
    """Return whether it is a text rather than a model: other programs take a prompt there."""
    if model is None or " " not in model or model.endswith(".gguf"):
        return False
    try:
        return not Path(model).exists()
    except (OSError, ValueError):  # too long, or with a null byte: no path at all
        return True


def _read_file(name: str) -> str:
    if name == "-":
        if sys.stdin.isatty():
            raise UsageError("no prompt: give -p TEXT, -f FILE, or text on standard input")
        name, data = "standard input", sys.stdin.buffer.read(_MOST_BYTES + 1)
    else:
        try:
            with Path(name).open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot read {name or 'a file without a name'}: {reason}") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{name} has more than {_MOST_BYTES >> 20} MiB: give a shorter text")
    try:
        return decode_text(data)
    except ValueError as error:
        raise UsageError(f"{name} {error}") from None
