"""How tokens are drawn in one generation, by the target and by the draft."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec._types import Float64Array, Int32Array
from edgespec.errors import UsageError
from edgespec.sampling.kernel import kernel
from edgespec.sampling.parameters import NO_BREAKERS, FilterArguments, SamplingParameters, is_greedy

__all__ = [
    "ACCEPTANCE_RULES",
    "ACCEPT_COUPLED",
    "ACCEPT_REJECTION",
    "ACCEPT_TYPICAL",
    "DrawSettings",
    "current_mu",
    "draw_settings",
    "is_lossy",
    "new_mu",
    "repeatable_rule",
]


ACCEPT_REJECTION = 0
ACCEPT_COUPLED = 1
ACCEPT_TYPICAL = 2
ACCEPTANCE_RULES = ("auto", "greedy", "rejection", "coupled", "typical")

_RULES = {"coupled": ACCEPT_COUPLED, "typical": ACCEPT_TYPICAL}
_NO_MU = np.zeros(0)


class DrawSettings(NamedTuple):
    """What the kernels need to know besides logits and history.

    Attributes:
        rule: ACCEPT_REJECTION, ACCEPT_COUPLED or ACCEPT_TYPICAL.
        arguments: the filters.
        seed: the bits of the user's 64-bit seed, as int64.
        stream_offset: added to a token's position to give its place in the random stream, so that
            a conversation whose beginning was dropped does not draw the same numbers again.
        mu: float64 (1,), Mirostat's state of this generation: the bits of surprise allowed after
            the committed tokens. `verify_chain` advances it; the draft only reads it. Empty at
            the start of a generation.
    """

    rule: int
    arguments: FilterArguments
    seed: int
    stream_offset: int = 0
    mu: Float64Array = _NO_MU


@kernel
def current_mu(settings: DrawSettings) -> float:
    """Return Mirostat's state; twice tau at the start of a generation."""
    if len(settings.mu) == 0:
        return 2.0 * settings.arguments.mirostat_tau
    return float(settings.mu[0])


def new_mu(arguments: FilterArguments) -> Float64Array:
    """Return Mirostat's state for the start of a generation."""
    return np.array([2.0 * arguments.mirostat_tau])


def repeatable_rule(accept: str) -> str:
    """Return the rule that "auto" stands for where the seed is told to the user.

    Who gives it again wants the text again: coupled has one text per seed, whatever is proposed.
    """
    return "coupled" if accept == "auto" else accept


def is_lossy(settings: DrawSettings) -> bool:
    """Return whether the rule changes the distribution: typical does, but at temperature 0."""
    return settings.rule == ACCEPT_TYPICAL and not is_greedy(settings.arguments)


def draw_settings(
    sampling: SamplingParameters, accept: str, breakers: Int32Array = NO_BREAKERS
) -> DrawSettings:
    """Put parameters and the name of an acceptance rule into the kernels' form.

    Args:
        sampling: filters and seed.
        breakers: those of the parameters, as `breaker_table` makes them for the target.
        accept: one of `ACCEPTANCE_RULES`; "auto" is rejection, at temperature 0 greedy. "typical"
            is lossy, and nothing stands for it.

    Raises:
        UsageError: the rule is unknown, or "greedy" although the parameters leave a choice.
    """
    if accept not in ACCEPTANCE_RULES:
        raise UsageError(f"accept is {accept!r}: it is one of {', '.join(ACCEPTANCE_RULES)}")
    arguments = sampling.filter_arguments(breakers)
    if accept == "greedy" and not is_greedy(arguments):
        raise UsageError("accept greedy keeps the distribution at temperature 0 only")
    rule = _RULES.get(accept, ACCEPT_REJECTION)
    seed = int(np.uint64(sampling.seed).astype(np.int64))
    return DrawSettings(rule, arguments, seed, mu=new_mu(arguments))
