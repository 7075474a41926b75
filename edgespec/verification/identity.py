"""Check that batches give the bits of single tokens, and speculation plain decoding's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Int32Array
from edgespec.backend import Context
from edgespec.drafters import Drafter, NoDrafter
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import draw_settings
from edgespec.tuning.measure import Difference, compare, stand_at
from edgespec.verification.checks import (
    CheckResult,
    Progress,
    Prompt,
    decode,
    plain_logits,
    silent,
    softmax,
)

__all__ = [
    "LARGEST_BATCH",
    "DepthInvariance",
    "check_coupled",
    "check_greedy",
    "check_invariance",
    "measure_invariance",
]

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
    return _check("greedy", subject, prompts, sampling)


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
    return _check("coupled", subject, prompts, sampling)


class _Subject(NamedTuple):
    target: Context
    speculative: Decoder
    longest: int
    progress: Progress


def _check(
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
        rule,
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


LARGEST_BATCH = 16


# -- batches against single tokens --------------------------------------------------------------


class DepthInvariance(NamedTuple):
    """Differences behind a prefix of `depth` tokens, for batches of 1, 2, ... tokens."""

    depth: int
    differences: list[Difference]

    @property
    def identical(self) -> int:
        """The largest n up to which every batch is bit-identical."""
        sizes = [d.n for d in self.differences if d.logit > 0.0]
        return min(sizes) - 1 if sizes else self.differences[-1].n


def measure_invariance(
    context: Context, text: Int32Array, depths: Sequence[int], largest: int
) -> Iterator[DepthInvariance]:
    """Compare batches of 1 to `largest` tokens with single tokens, behind several prefixes.

    Args:
        context: any content is lost; opened for as many rows of output.
        text: int32, its tokens are the prefixes and what follows them.
        depths: lengths of the prefixes; shortened to what context and text allow.
        largest: tokens of the largest batch.

    Yields: the figures of each depth, as they are known.
    """
    room = min(context.capacity, len(text)) - largest
    context.clear()
    for depth in sorted({min(depth, room) for depth in depths}):
        stand_at(context, text, depth)
        yield DepthInvariance(depth, _differences(context, text, depth, largest))
    context.clear()


def _differences(context: Context, text: Int32Array, depth: int, largest: int) -> list[Difference]:
    """Compare batches of 1 to `largest` tokens behind ``text[:depth]`` with single tokens."""
    alone = np.empty((largest, context.model.vocabulary.size), np.float32)
    for i in range(largest):
        alone[i] = context.evaluate(text[depth + i : depth + i + 1], 1)[0]
    differences = []
    for n in range(1, largest + 1):
        stand_at(context, text, depth)
        differences.append(compare(n, context.evaluate(text[depth : depth + n], n), alone))
    return differences


def check_invariance(
    context: Context,
    text: Int32Array,
    k: int,
    depths: Sequence[int],
    progress: Progress = silent,
) -> CheckResult:
    """Compare batches of 1 to max(16, k + 1) tokens with single tokens, after several prefixes.

    The check holds if batches of up to k + 1 tokens, as speculation evaluates, are identical.

    Args:
        context: any content is lost; opened for as many rows of output.
        text: int32, its tokens are the prefixes and what follows them.
        k: block length in use.
        depths: lengths of the prefixes; shortened to what context and text allow.
        progress: told each depth.
    """
    largest = max(LARGEST_BATCH, k + 1)
    measured = []
    for depth in measure_invariance(context, text, depths, largest):
        progress(f"{depth.depth} tokens done")
        measured.append(depth)
    identical = min(depth.identical for depth in measured)
    return CheckResult(
        "invariance",
        identical >= k + 1,
        _batch_summary(identical, k, largest, [depth.depth for depth in measured]),
        {
            "largest_identical_batch": identical,
            "largest_batch_in_use": k + 1,
            "contexts": [_batch_figures(depth) for depth in measured],
        },
        tuple(_batch_detail(depth) for depth in measured if depth.identical < largest),
    )


def _batch_figures(depth: DepthInvariance) -> dict[str, Any]:
    return {
        "depth": depth.depth,
        "largest_identical_batch": depth.identical,
        "batches": [
            {"n": d.n, "logit_difference": d.logit, "total_variation": d.variation}
            for d in depth.differences
        ],
    }


def _batch_summary(identical: int, k: int, largest: int, depths: list[int]) -> str:
    where = f"after {', '.join(map(str, depths))} tokens"
    if identical >= largest:
        return f"batches of 1 to {largest} tokens {where} are bit-identical to single tokens"
    return (
        f"bit-identical to single tokens up to batches of {identical} {where}; k = {k} needs "
        f"{k + 1}"
    )


def _batch_detail(depth: DepthInvariance) -> str:
    worst = max(depth.differences, key=lambda d: d.variation)
    return (
        f"after {depth.depth} tokens: identical up to {depth.identical}; worst at n = {worst.n}, "
        f"logits differ by {worst.logit:.2g}, total variation {worst.variation:.2g}"
    )
