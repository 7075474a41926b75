"""How tokens are drawn in one generation: shared by the target's side and the draft's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgespec.errors import UsageError
from edgespec.sampling.parameters import FilterArguments, SamplingParameters

__all__ = [
    "ACCEPTANCE_RULES",
    "ACCEPT_COUPLED",
    "ACCEPT_REJECTION",
    "DrawSettings",
    "draw_settings",
]

ACCEPT_REJECTION = 0
ACCEPT_COUPLED = 1
ACCEPTANCE_RULES = ("auto", "greedy", "rejection", "coupled")


class DrawSettings(NamedTuple):
    """What the kernels need to know besides logits and history.

    Attributes:
        rule: ACCEPT_REJECTION or ACCEPT_COUPLED.
        arguments: the filters.
        seed: the bits of the user's 64-bit seed, as int64.
        stream_offset: added to a token's position for its place in the random stream, so that a
            conversation whose beginning was dropped does not draw the same numbers again.
    """

    rule: int
    arguments: FilterArguments
    seed: int
    stream_offset: int = 0


def draw_settings(sampling: SamplingParameters, accept: str) -> DrawSettings:
    """Parameters and the name of an acceptance rule in the kernels' form.

    Args:
        sampling: filters and seed.
        accept: one of `ACCEPTANCE_RULES`; "auto" is rejection, at temperature 0 greedy.

    Raises:
        UsageError: unknown rule, or "greedy" with a temperature above 0.
    """
    if accept not in ACCEPTANCE_RULES:
        raise UsageError(f"accept is {accept!r}: it is one of {', '.join(ACCEPTANCE_RULES)}")
    if accept == "greedy" and sampling.temperature > 0:
        raise UsageError("accept greedy keeps the distribution at temperature 0 only")
    rule = ACCEPT_COUPLED if accept == "coupled" else ACCEPT_REJECTION
    seed = int(np.uint64(sampling.seed).astype(np.int64))
    return DrawSettings(rule, sampling.filter_arguments(), seed)
