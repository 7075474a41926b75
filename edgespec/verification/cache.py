"""Check that a cache holds what a fresh one would, after many rejected blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from edgespec._types import Float32Array, Int32Array
from edgespec.backend import Context
from edgespec.control.controller import DraftBudget
from edgespec.drafters import Drafter, Learned, ModelDrafter, NoDrafter, Proposal, StateDrafter
from edgespec.runtime.cycle import Statistics
from edgespec.runtime.decoder import Decoder
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.acceptance import DrawSettings, draw_settings
from edgespec.verification.checks import (
    CheckResult,
    Progress,
    Prompt,
    decode,
    not_applicable,
    plain_logits,
    silent,
    softmax,
    total_variation,
)

__all__ = ["check_cache"]

_TOKENS_A_CYCLE = 3  # of the script: more than a cycle emits when a third of it is wrong
_ROUNDING_FACTOR = 2.0

GREEDY = SamplingParameters(temperature=0.0)
SAMPLED = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=30_000)

_TEMPERATURE = 1.3
_WRONG_EVERY = 3


class _Comparison(NamedTuple):
    """A cache compared with a fresh one that got the same tokens one at a time.

    Attributes:
        part: "target" or "draft", and what proposed.
        tokens: that the cache holds.
        logit, variation: largest difference of a logit, total variation; 0 if bit-identical.
        rounding: largest difference of a logit between the fresh cache and one large prefill.
        holds: whether the check holds.
    """

    part: str
    tokens: int
    logit: float
    variation: float
    rounding: float
    holds: bool


class _Run(NamedTuple):
    """What decoding left: all committed tokens, where the answer starts, and statistics."""

    tokens: Int32Array
    start: int
    statistics: Statistics

    @property
    def rejections(self) -> int:
        """Cycles in which a proposal was rejected."""
        statistics = self.statistics
        proposing = statistics.cycles - statistics.k_histogram[0]
        return proposing - statistics.bonus


def check_cache(
    target: Context,
    drafter: Drafter,
    k: int,
    prompt: Prompt,
    cycles: int,
    *,
    decoder_class: type[Decoder] = Decoder,
    progress: Progress = silent,
) -> CheckResult:
    """Decode with many rejections, then compare the next logits with a fresh context's.

    The target's cache has to be bit-identical to plain decoding's: the prompt prefilled, the
    answer evaluated one token at a time. A draft's may differ by what rounding in other batches
    changes, as q is whatever the draft computed. The difference to one large prefill is reported
    for both, as the measure of that rounding.

    Args:
        target, drafter: their caches' content is lost.
        k: block length; 0 rolls nothing back.
        prompt: what to answer.
        cycles: at least so many of each kind, if the context has room.
        decoder_class: what to decode with.
        progress: told each part.
    """
    if k == 0:
        return not_applicable("cache", "nothing to compare: with k = 0 nothing is rolled back")
    progress("target, scripted proposals")
    runs = [_scripted(target, k, prompt, cycles, decoder_class)]
    found = [_compare("target, scripted proposals", target, runs[0], len(prompt.tokens) - 1)]
    if isinstance(drafter, ModelDrafter | StateDrafter):
        progress("target and draft")
        runs.append(_drafted(target, drafter, k, prompt, cycles, decoder_class))
        found.append(_compare("target, drafted proposals", target, runs[1], runs[1].start - 1))
        if isinstance(drafter, ModelDrafter):
            found.append(_compare_draft(drafter.context, runs[1]))
        else:
            found.append(_compare_states(drafter, runs[1]))
    return CheckResult(
        "cache",
        all(comparison.holds for comparison in found),
        _summary(runs, found),
        {
            "cycles": sum(run.statistics.cycles for run in runs),
            "rejections": sum(run.rejections for run in runs),
            "accepted": sum(run.statistics.accepted for run in runs),
            "draft_compared": len(found) > 1,
            "comparisons": [_figures(comparison) for comparison in found],
        },
        tuple(_detail(comparison) for comparison in found if not comparison.holds),
    )


# -- decoding -------------------------------------------------------------------------------


def _scripted(
    target: Context, k: int, prompt: Prompt, cycles: int, decoder_class: type[Decoder]
) -> _Run:
    """Decode greedily, with the plain answer as proposals, a third of them spoilt."""
    settings = draw_settings(GREEDY, "greedy")
    count = min(_TOKENS_A_CYCLE * cycles, target.capacity - len(prompt.tokens) - k - 2)
    plain, _ = decode(Decoder(target, NoDrafter(), 0), prompt.tokens, settings, count)
    script = np.append(prompt.tokens, np.array(plain, np.int32))
    scripted = Scripted(script, target.model.vocabulary.size)
    return _run(decoder_class(target, scripted, k), prompt, settings, cycles)


def _drafted(
    target: Context,
    drafter: Drafter,
    k: int,
    prompt: Prompt,
    cycles: int,
    decoder_class: type[Decoder],
) -> _Run:
    """Sample with the user's draft, made to be wrong more often."""
    settings = draw_settings(SAMPLED, "rejection")
    return _run(decoder_class(target, Heated(drafter), k), prompt, settings, cycles)


def _run(decoder: Decoder, prompt: Prompt, settings: DrawSettings, cycles: int) -> _Run:
    """Decode for this many cycles; the caches keep what they hold after the last one."""
    decoder.target.clear()
    statistics = Statistics()
    decoder.begin(prompt.tokens, settings, statistics)
    while statistics.cycles < cycles and decoder.room > 1:
        decoder.cycle(decoder.room)
    return _Run(decoder.history[: decoder.length].copy(), len(prompt.tokens), statistics)


# -- comparing ------------------------------------------------------------------------------


def _compare(part: str, context: Context, run: _Run, prefilled: int) -> _Comparison:
    """Compare the next logits of a used cache with a fresh one's.

    `prefilled` tokens were evaluated together at the beginning, and are in the fresh one; the
    rest is evaluated one at a time.
    """
    used = _one_at_a_time(context, run.tokens).copy()
    with Context(context.model, replace(context.options, length=len(run.tokens))) as fresh:
        fresh.prefill(run.tokens[:prefilled])
        alone = _one_at_a_time(fresh, run.tokens).copy()
        together = plain_logits(fresh, run.tokens, []).copy()
    difference = float(np.abs(used - alone).max())
    identical = bool(np.array_equal(used, alone))
    return _Comparison(
        part,
        len(run.tokens),
        0.0 if identical else difference,
        0.0 if identical else total_variation(softmax(used), softmax(alone)),
        float(np.abs(together - alone).max()),
        identical,
    )


def _compare_draft(context: Context, run: _Run) -> _Comparison:
    compared = _compare("draft", context, run, run.start)
    allowed = _ROUNDING_FACTOR * compared.rounding
    return compared._replace(holds=compared.logit <= allowed)


def _compare_states(drafter: StateDrafter, run: _Run) -> _Comparison:
    """Compare the same of a draft with an entry for each token but the last."""
    tokens, context = run.tokens, drafter.context
    states = drafter.features.rows[: len(tokens) - 1]
    used = drafter.read(tokens, len(tokens), 0)[1].copy()
    context.clear()
    for entry in range(len(states)):
        logits, _ = context.step(tokens[entry + 1 :][:1], drafter.fuse(states[entry:][:1]))
    alone = logits[: len(used)].copy()
    context.clear()
    together = context.step(tokens[1:], drafter.fuse(states))[0][: len(used)].copy()
    drafter.rewind(0)
    known = np.isfinite(alone)
    rounding = float(np.abs(together - alone)[known].max())
    difference = float(np.abs(used - alone)[known].max())
    return _Comparison(
        "draft",
        len(tokens),
        difference,
        total_variation(softmax(used), softmax(alone)),
        rounding,
        difference <= _ROUNDING_FACTOR * rounding,
    )


def _one_at_a_time(context: Context, tokens: Int32Array) -> Float32Array:
    """Return logits after the whole text, of which the cache holds a part; a view."""
    while context.length < len(tokens):
        logits: Float32Array = context.evaluate(tokens[context.length :][:1], 1)[0]
    return logits


# -- telling --------------------------------------------------------------------------------


def _figures(comparison: _Comparison) -> dict[str, Any]:
    return {
        "part": comparison.part,
        "tokens": comparison.tokens,
        "holds": comparison.holds,
        "bit_identical": comparison.logit == 0.0,
        "logit_difference": comparison.logit,
        "total_variation": comparison.variation,
        "logit_difference_to_one_prefill": comparison.rounding,
    }


def _summary(runs: list[_Run], found: list[_Comparison]) -> str:
    cycles = sum(run.statistics.cycles for run in runs)
    rejections = sum(run.rejections for run in runs)
    which = "target and draft" if len(found) > 1 else "target"
    wrong = sum(not comparison.holds for comparison in found)
    outcome = "as a fresh cache gives them" if wrong == 0 else "not those of a fresh cache"
    return f"{which}: logits after {cycles} cycles, {rejections} with a rejection, are {outcome}"


def _detail(comparison: _Comparison) -> str:
    return (
        f"{comparison.part}: logits after {comparison.tokens} tokens differ by "
        f"{comparison.logit:.2g}, total variation {comparison.variation:.2g} (one large prefill "
        f"differs by {comparison.rounding:.2g})"
    )


# -- drafters that are wrong often: a cache that is never rolled back proves nothing ------


class Scripted(NoDrafter):
    """A drafter that proposes a known text, with mistakes at a third of its positions.

    Args:
        script: int32, the whole text, prompt included.
        n_vocab: of the target.
        seed: which positions are wrong.
    """

    name = "scripted"
    speculates = True

    def __init__(self, script: Int32Array, n_vocab: int, seed: int = 0) -> None:
        wrong = np.random.default_rng(seed).integers(0, _WRONG_EVERY, len(script)) == 0
        self._script = np.where(wrong, (script + 1) % n_vocab, script).astype(np.int32)

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Propose the next tokens of the script, as far as it goes."""
        tokens = self._script[length : length + budget.limit]
        history[length : length + len(tokens)] = tokens
        return Proposal(len(tokens))


class Heated:
    """A drafter that draws at a higher temperature than the target.

    Even a perfect draft is then rejected at times; the rejection rule is exact for any q.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.speculates = drafter.name, drafter.speculates

    def begin(self, settings: DrawSettings) -> None:
        """Pass on the settings with another temperature."""
        hot = settings.arguments._replace(temperature=_TEMPERATURE)
        self._drafter.begin(settings._replace(arguments=hot))

    def propose(self, history: Int32Array, length: int, budget: DraftBudget) -> Proposal:
        """Return what the drafter proposes."""
        return self._drafter.propose(history, length, budget)

    def extend(self, history: Int32Array, length: int, budget: DraftBudget, given: int) -> Proposal:
        """Return what the drafter proposes behind what is given."""
        return self._drafter.extend(history, length, budget, given)

    def observe(self, history: Int32Array, length: int, logits: Float32Array) -> None:
        """Pass on."""
        self._drafter.observe(history, length, logits)

    def learn(self, accepted: int, judged: int) -> None:
        """Pass on."""
        self._drafter.learn(accepted, judged)

    def learn_path(self, path: Int32Array, judged: int) -> None:
        """Pass on."""
        self._drafter.learn_path(path, judged)

    def learned(self) -> Learned:
        """Return what the drafter knows."""
        return self._drafter.learned()

    def commit(self, history: Int32Array, length: int) -> None:
        """Pass on."""
        self._drafter.commit(history, length)

    def rewind(self, length: int) -> None:
        """Pass on."""
        self._drafter.rewind(length)

    def cancel(self) -> None:
        """Pass on."""
        self._drafter.cancel()

    def resume(self) -> None:
        """Pass on."""
        self._drafter.resume()

    def close(self) -> None:
        """Pass on."""
        self._drafter.close()
