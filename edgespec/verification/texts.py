"""Check that speculative decoding gives the tokens of plain decoding, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from edgespec.backend import Context
from edgespec.drafters import Drafter, NoDrafter
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.settings import draw_settings
from edgespec.verification.checks import CheckResult, Progress, Prompt, decode, plain_logits, silent
from edgespec.verification.distributions import softmax

__all__ = ["check_coupled", "check_greedy"]

_FIRST_SEED = 20_000


class _Candidate(NamedTuple):
    """A token, its text, and its probability under plain logits at temperature 1."""

    token: int
    text: str
    probability: float


class _Difference(NamedTuple):
    """Where two answers to a prompt differ: how many tokens they share, and what follows."""

    prompt: str
    position: int
    plain: _Candidate
    speculative: _Candidate

    def as_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "plain": self.plain._asdict(),
            "speculative": self.speculative._asdict(),
        }

    def as_line(self) -> str:
        ours, theirs = self.speculative, self.plain
        return (
            f"{self.prompt}, answer token {self.position}: plain decoding gives {theirs.text!r} "
            f"(probability {theirs.probability:.6f}), speculation {ours.text!r} "
            f"({ours.probability:.6f})"
        )


def check_greedy(
    target: Context,
    drafter: Drafter,
    k: int,
    prompts: Sequence[Prompt],
    count: int,
    *,
    decoder_class: type[Decoder] = Decoder,
    progress: Progress = silent,
) -> CheckResult:
    """Compare greedy answers.

    Args:
        target, drafter: their caches' content is lost.
        k: block length.
        prompts: what to answer.
        count: the most tokens of an answer.
        decoder_class: what speculates; plain answers come from `Decoder`.
        progress: told each prompt.
    """
    sampling = [SamplingParameters(temperature=0.0)] * len(prompts)
    subject = _Subject(target, decoder_class(target, drafter, k), count, progress)
    return _check("greedy", "greedy", subject, prompts, sampling)


def check_coupled(
    target: Context,
    drafter: Drafter,
    k: int,
    prompts: Sequence[Prompt],
    count: int,
    *,
    decoder_class: type[Decoder] = Decoder,
    progress: Progress = silent,
) -> CheckResult:
    """Compare answers by the coupled rule, unfiltered at temperature 1, with one seed per prompt.

    Args: as `check_greedy`.
    """
    sampling = [
        SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=_FIRST_SEED + i)
        for i in range(len(prompts))
    ]
    subject = _Subject(target, decoder_class(target, drafter, k), count, progress)
    return _check("coupled", "coupled", subject, prompts, sampling)


class _Subject(NamedTuple):
    target: Context
    speculative: Decoder
    longest: int
    progress: Progress


def _check(
    name: str,
    rule: str,
    subject: _Subject,
    prompts: Sequence[Prompt],
    sampling: Sequence[SamplingParameters],
) -> CheckResult:
    plain = Decoder(subject.target, NoDrafter(), 0)
    differences, statistics, compared = [], Statistics(), 0
    for prompt, parameters in zip(prompts, sampling, strict=True):
        subject.progress(prompt.name)
        count = min(subject.longest, subject.target.capacity - len(prompt.tokens))
        expected, _ = _answer(plain, prompt, parameters, rule, count)
        got, own = _answer(subject.speculative, prompt, parameters, rule, count)
        compared += len(expected)
        statistics.proposed += own.proposed
        statistics.accepted += own.accepted
        statistics.cycles += own.cycles
        if got != expected:
            differences.append(_locate(subject.target, prompt, expected, got))
    return CheckResult(
        name,
        not differences,
        _summary(len(prompts), compared, len(differences), statistics),
        {
            "prompts": len(prompts),
            "tokens": compared,
            "cycles": statistics.cycles,
            "proposed": statistics.proposed,
            "accepted": statistics.accepted,
            "seeds": [parameters.seed for parameters in sampling],
            "differences": [difference.as_json() for difference in differences],
        },
        tuple(difference.as_line() for difference in differences),
    )


def _answer(
    decoder: Decoder, prompt: Prompt, sampling: SamplingParameters, rule: str, count: int
) -> tuple[list[int], Statistics]:
    settings, ends = draw_settings(sampling, rule), decoder.target.model.vocabulary.end_tokens
    if prompt.constrain is None:
        return decode(decoder, prompt.tokens, settings, count, ends)
    with closing(prompt.constrain(sampling)) as constraint:
        return decode(decoder, prompt.tokens, settings, count, ends, constraint)


def _locate(target: Context, prompt: Prompt, expected: list[int], got: list[int]) -> _Difference:
    """Return the first difference, with its probabilities by plain logits."""
    pairs = zip(expected, got, strict=False)
    position = next(i for i, (a, b) in enumerate(pairs) if a != b)
    p = softmax(plain_logits(target, prompt.tokens, expected[:position]))

    def candidate(token: int) -> _Candidate:
        piece = target.model.vocabulary.piece(token, special=True)
        return _Candidate(token, piece.decode("utf-8", "replace"), float(p[token]))

    return _Difference(
        prompt.name, position, candidate(expected[position]), candidate(got[position])
    )


def _summary(prompts: int, tokens: int, differing: int, statistics: Statistics) -> str:
    outcome = "all the same" if differing == 0 else f"{differing} answers differ"
    return (
        f"{prompts} answers, {tokens} tokens: {outcome} ({statistics.accepted} of "
        f"{statistics.proposed} proposals accepted)"
    )
