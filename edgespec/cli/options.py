"""Options that several commands share, what they make, and the question that --yes answers."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgespec.errors import UsageError
from edgespec.runtime.options import ANSWER_TOKENS, NO_LIMIT, EngineOptions
from edgespec.sampling.parameters import SamplingParameters, read_breakers

if TYPE_CHECKING:
    from edgespec.runtime.stream import GenerationLimits

__all__ = [
    "confirmed",
    "engine_options",
    "limit_options",
    "make_engine_options",
    "make_limits",
    "make_sampling",
    "sampling_options",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_SAMPLING_HELP = {
    "temperature": "Randomness of the answer; 0 takes the most likely token.",
    "dynatemp_range": "How far the entropy moves the temperature; 0 is off.",
    "dynatemp_exponent": "Exponent of the entropy's effect on the temperature.",
    "top_n_sigma": "Keep logits within N deviations of the largest; 0 or less is off.",
    "top_k": "Keep the k most likely; 0 is off.",
    "typical_p": "Locally typical sampling; 1 is off.",
    "top_p": "Keep the most likely tokens up to this probability in all; 1 is off.",
    "min_p": "Keep tokens above this share of the most likely one; 0 is off.",
    "xtc_probability": "How often the top choices are excluded; 0 is off.",
    "xtc_threshold": "Probability of a top choice; above 0.5 is off.",
    "repeat_penalty": "Factor against repeated tokens; 1 is off.",
    "frequency_penalty": "Taken off a token's logit each time it occurred; 0 is off.",
    "presence_penalty": "Taken off a token's logit once if it occurred; 0 is off.",
    "penalty_window": "Tokens that penalties look back on; -1 is the whole context.",
    "dry_multiplier": "Penalty on continuing a repetition; 0 is off.",
    "dry_base": "The penalty grows by this factor with each repeated token.",
    "dry_allowed_length": "Repetitions up to this length cost nothing.",
    "dry_window": "Tokens in which repetitions are sought; -1 is the whole context.",
    "mirostat": "2: aim at a surprise, without filters and penalties; 0 is off.",
    "mirostat_tau": "Surprise to aim at, in bits per token.",
    "mirostat_eta": "How fast mirostat adapts.",
}


def engine_options(function: Function) -> Function:
    """Add MODEL, which -m may name too, --draft, --k, and how contexts are opened."""
    return _apply(
        function,
        click.argument("model", required=False),
        click.option("-m", "--model", "model_option", metavar="MODEL", help="The same as MODEL."),
        click.option(
            "--draft",
            default="auto",
            show_default=True,
            metavar="auto|none|ngram|recycle|mtp|MODEL",
            help="What proposes tokens; none decodes plainly.",
        ),
        click.option(
            "--k",
            default="auto",
            show_default=True,
            metavar="N|auto",
            help="Proposals of a cycle; auto decides each time from what it costs here.",
        ),
        click.option(
            "--tree",
            default="auto",
            show_default=True,
            metavar="auto|none|N,N,...",
            help="Trees of proposals by a draft model: as they pay, never, or so many children "
            "of a node at each level.",
        ),
        click.option(
            "--ctx",
            default=0,
            metavar="TOKENS",
            help="Context length; 0: the model's own, at most 4096.",
        ),
        click.option(
            "--threads",
            default=0,
            help="0: what `edgespec tune` found, or one per physical core.",
        ),
        click.option(
            "--kernels",
            default="auto",
            show_default=True,
            metavar="auto|edgespec|llama.cpp",
            help="What multiplies weights; auto: what was measured to be faster.",
        ),
        click.option("--no-repack", is_flag=True, help="Leave weights as the file has them."),
        click.option(
            "--flash-attention",
            default="auto",
            show_default=True,
            metavar="auto|on|off",
            help="auto: what is measured to be exact, or faster.",
        ),
        click.option(
            "--kv-type",
            default="f16",
            show_default=True,
            metavar="f16|f32|q8_0",
            help="Type of the target's cache; q8_0 is smaller and changes the text a little.",
        ),
        click.option(
            "--exact",
            default="auto",
            show_default=True,
            metavar="auto|bitwise|distribution",
            help="bitwise: only settings measured to give plain decoding's logits bit for bit.",
        ),
        click.option(
            "--lookup",
            multiple=True,
            metavar="FILE",
            help="A text that prompt lookup may copy from too. May be repeated.",
        ),
        click.option("--offline", is_flag=True, help="Never download anything."),
        click.option(
            "--no-probe",
            is_flag=True,
            help="Do not try a new file in a process of its own first.",
        ),
        click.option(
            "--prompt-cache",
            type=int,
            default=512,
            show_default=True,
            metavar="MIB",
            help="Memory for caches of other conversations; 0 for none.",
        ),
        click.option(
            "--trace",
            metavar="FILE",
            help="Append a JSON line for every cycle; it holds prompts and answers.",
        ),
    )


def sampling_options(function: Function) -> Function:
    """Add the filters, --seed and --accept."""
    defaults = SamplingParameters()
    return _apply(
        function,
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                default=getattr(defaults, name),
                show_default=True,
                help=text,
            )
            for name, text in _SAMPLING_HELP.items()
        ),
        click.option(
            "--dry-breaker",
            multiple=True,
            metavar="TEXT",
            help=r'Text that ends a repetition; replaces \n : " *; none: no text. May be repeated.',
        ),
        click.option(
            "--logit-bias",
            multiple=True,
            metavar="TOKEN=BIAS",
            help="Add to a token's logit; -inf forbids it. May be repeated.",
        ),
        click.option("--seed", type=int, help="0 to 2**64 - 1; random by default."),
        click.option(
            "--accept",
            default="auto",
            show_default=True,
            metavar="auto|greedy|rejection|coupled|typical",
            help="Acceptance rule; coupled gives one text per seed, whatever the draft; "
            "typical is lossy.",
        ),
    )


def limit_options(function: Function) -> Function:
    """Add --max-tokens, --stop, --overflow and --allow-loops."""
    return _apply(
        function,
        click.option(
            "--max-tokens",
            type=int,
            default=ANSWER_TOKENS,
            show_default=True,
            help="Most tokens of an answer; -1: until the context is full.",
        ),
        click.option(
            "--stop",
            multiple=True,
            metavar="TEXT",
            help="End before this text. May be repeated.",
        ),
        click.option(
            "--overflow",
            default=None,
            metavar="stop|shift",
            help="When the context is full: stop (default of run), or shift: drop the older half "
            "after the system prompt (default of chat).",
        ),
        click.option(
            "--allow-loops",
            is_flag=True,
            help="Do not end answers that only repeat themselves.",
        ),
    )


def make_engine_options(values: dict[str, Any]) -> EngineOptions:
    """Take the values of `engine_options` out of a command's, but for the model's name.

    Raises:
        UsageError: a value is out of range, or the model is named twice.
    """
    named = values.pop("model_option")
    if named is not None and values["model"] is not None:
        raise UsageError("the model is named twice: give MODEL or -m MODEL")
    values["model"] = values["model"] if named is None else named
    return EngineOptions(
        draft=values.pop("draft"),
        k=_block_length(values.pop("k")),
        tree=values.pop("tree"),
        context=values.pop("ctx"),
        threads=values.pop("threads"),
        kernels=values.pop("kernels"),
        repack=False if values.pop("no_repack") else None,
        flash_attention=_switch(values.pop("flash_attention")),
        kv_type=values.pop("kv_type"),
        lookup=tuple(map(Path, values.pop("lookup"))),
        offline=values.pop("offline"),
        probe=not values.pop("no_probe"),
        exact=values.pop("exact"),
        prompt_cache=values.pop("prompt_cache"),
        trace=None if (trace := values.pop("trace")) is None else Path(trace),
    )


def make_sampling(values: dict[str, Any]) -> SamplingParameters:
    """Take the values of `sampling_options` out of a command's."""
    seed = values.pop("seed")
    breakers = values.pop("dry_breaker")
    if breakers:
        values["dry_breakers"] = read_breakers(breakers)
    names = [*_SAMPLING_HELP, *(("dry_breakers",) if breakers else ())]
    return SamplingParameters(
        **{name: values.pop(name) for name in names},
        logit_bias=_biases(values.pop("logit_bias")),
        seed=secrets.randbits(32) if seed is None else seed,
    )


def make_limits(values: dict[str, Any], overflow: str) -> GenerationLimits:
    """Take the values of `limit_options` out of a command's."""
    from edgespec.runtime.stream import GenerationLimits

    return GenerationLimits(
        max_tokens=None if (most := values.pop("max_tokens")) == NO_LIMIT else most,
        stop=tuple(values.pop("stop")),
        overflow=values.pop("overflow") or overflow,  # type: ignore[arg-type]
        allow_loops=values.pop("allow_loops"),
    )


def confirmed(question: str) -> bool:
    """Ask a question, and return whether the user says yes.

    Raises:
        UsageError: nobody is there to answer.
        click.Abort: Ctrl-C or Ctrl-D in a terminal.
    """
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # end the line of the question
        raise UsageError("nobody answered, nothing was deleted: --yes does not ask") from None


def _apply(function: Function, *decorators: Callable[[Any], Any]) -> Function:
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def _switch(text: str) -> bool | None:
    try:
        return {"auto": None, "on": True, "off": False}[text]
    except KeyError:
        raise UsageError(f"flash attention is {text!r}: it is auto, on or off") from None


def _block_length(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"k is {text!r}: it has to be a number or auto") from None


def _biases(words: Sequence[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for word in words:
        token, separator, bias = word.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"logit bias {word!r}: give TOKEN=BIAS, e.g. 42=-inf")
    return biases
