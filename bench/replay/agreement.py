"""Run a draft model along recorded texts: where would it propose the right token?"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from bench.replay.recorded import Generation
from bench.replay.simulation import KnownDraft
from edgespec import Engine, EngineOptions, SamplingParameters
from edgespec.control.controller import fixed_budget
from edgespec.control.stopping import make_calibration
from edgespec.drafters import ContextDrafter
from edgespec.speculation.acceptance import draw_settings

__all__ = ["known_drafts"]


def known_drafts(model: str, draft: str, generations: list[Generation]) -> list[KnownDraft]:
    """Find what a draft model knows of each generation; all have to be greedy.

    Args:
        model, draft: as `edgespec run` takes them.
    """
    if any(generation.start["rule"] != "greedy" for generation in generations):
        raise SystemExit("--draft needs greedy traces: other draws of a draft are not known")
    longest = max(len(generation.text) for generation in generations)
    options = EngineOptions(draft=draft, k=1, context=longest + 1)
    with Engine(model, options) as engine:
        return [_follow(engine, generation) for generation in generations]


def _follow(engine: Engine, generation: Generation) -> KnownDraft:
    """Ask for one token after every prefix of the text."""
    drafter, text = engine.drafter, generation.text
    if not isinstance(drafter, ContextDrafter):
        raise SystemExit(f"{engine.drafter_name} is not a draft model")
    prompt = len(generation.start["prompt"])
    if int(text.max()) >= engine.vocabulary.size:
        raise SystemExit(f"the traces are not of {engine.model_name}: give --model")
    drafter.stopping.calibration = make_calibration()  # so that estimates are the confidence itself
    drafter.rewind(0)
    drafter.begin(draw_settings(SamplingParameters(temperature=0), "greedy"))
    right, sure = np.zeros(len(text), bool), np.zeros(len(text))
    history = np.concatenate([text, np.zeros(1, np.int32)])
    budget, seconds = fixed_budget(1), []
    for position in range(prompt, len(text)):
        started = perf_counter()
        proposed = drafter.propose(history, position, budget).size
        seconds.append(perf_counter() - started)
        right[position] = proposed and history[position] == text[position]
        sure[position] = budget.acceptance[0]
        history[position] = text[position]
        drafter.commit(history, position + 1)
    # The first call also read the prompt.
    step_s = float(np.median(seconds[1:])) if len(seconds) > 1 else seconds[0]
    return KnownDraft(right, sure, 1.0, step_s, seconds[0] / max(1, prompt), None)
