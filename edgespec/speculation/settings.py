"""How tokens are drawn in one generation: shared by the target's side and the draft's."""

from __future__ import annotations

from typing import NamedTuple

from edgespec.sampling.parameters import FilterArguments

__all__ = ["DrawSettings"]


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
