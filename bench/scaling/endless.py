"""Answers as long as they are to be: the tokens that would end them are forbidden."""

from __future__ import annotations

import math

from edgespec import Engine, SamplingParameters

__all__ = ["endless"]


def endless(engine: Engine) -> SamplingParameters:
    """Greedy, with a bias that forbids every end token of this model."""
    bias = dict.fromkeys(engine.vocabulary.end_tokens, -math.inf)
    return SamplingParameters(temperature=0.0, logit_bias=bias)
