"""Replay recorded generations under every policy, and compare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.replay.recorded import Costs, Generation
from bench.replay.simulation import KnownDraft, Outcome, ReplayedDraft, replay
from edgespec.control.controller import AdaptivePolicy, FixedPolicy
from edgespec.drafters import (
    ComposedDrafter,
    Drafter,
    NoDrafter,
    PromptLookupDrafter,
)

__all__ = ["costs_of", "make_lookup", "outcomes", "recorded_draft", "show", "summarize"]

_READING = 0.3  # of a draft's step, for each token of a batch, where nothing was recorded


def make_lookup(generation: Generation) -> PromptLookupDrafter:
    """Make prompt lookup in the state in which the recorded one started."""
    drafter = PromptLookupDrafter(len(generation.text))
    drafter.trust(generation.start["learned"]["ngram"])
    return drafter


def outcomes(generation: Generation, costs: Costs, draft: KnownDraft | None) -> dict[str, Outcome]:
    """Replay one generation under every policy."""
    most = costs.largest - 1
    corrections = generation.start["corrections"]
    if corrections is not None:
        most = min(most, generation.start["largest_k"])
    makers: dict[str, Callable[[], Drafter]] = {"ngram": lambda: make_lookup(generation)}
    if draft is not None:
        makers["model"] = lambda: ReplayedDraft(draft, generation.text, most)
    done = {"plain": replay(generation, costs, FixedPolicy(0), NoDrafter(), 0)}
    for name, make in makers.items():
        for k in range(1, most + 1):
            done[f"{name} k={k}"] = replay(generation, costs, FixedPolicy(k), make(), k)
    adaptive: Drafter = make_lookup(generation)
    if draft is not None:
        adaptive = ComposedDrafter(adaptive, ReplayedDraft(draft, generation.text, most))
    policy = AdaptivePolicy(costs.believed(corrections), most)
    done["adaptive"] = replay(generation, costs, policy, adaptive, most)
    return done


def recorded_draft(generation: Generation, costs: Costs) -> KnownDraft | None:
    """Return what the trace itself knows of a draft model; None if none was asked."""
    right, sure = generation.agreement()
    seen = ~np.isnan(right)
    if not seen.any():
        return None
    rate = float(right[seen].mean())
    guessed = np.random.default_rng(0).random(len(right)) < rate
    learned = generation.start["learned"]["draft"] or {}
    answer = len(right) - len(generation.start["prompt"])
    return KnownDraft(
        np.where(seen, right == 1.0, guessed),
        np.where(seen, sure, rate),
        float(seen.sum()) / answer,
        costs.step_s,
        learned.get("reading_s", _READING * costs.step_s),
        learned,
    )


def fixed_policies(done: dict[str, Outcome]) -> dict[str, Outcome]:
    return {name: outcome for name, outcome in done.items() if name != "adaptive"}


def summarize(
    generations: list[Generation], parts: list[dict[str, Outcome]], costs: list[Costs]
) -> dict[str, Any]:
    """Return tokens per second of every policy over all generations, ratios and regrets."""
    tokens = sum(generation.kept for generation in generations)
    common = [name for name in parts[0] if all(name in part for part in parts)]
    seconds = {name: sum(part[name].seconds for part in parts) for name in common}
    seconds["recorded"] = sum(generation.seconds for generation in generations)
    best = min((n for n in common if n != "adaptive"), key=lambda name: seconds[name])
    each = sum(min(o.seconds for o in fixed_policies(part).values()) for part in parts)
    modelled = sum(modelled_seconds(g, c) for g, c in zip(generations, costs, strict=True))
    return {
        "tokens": tokens,
        "best_fixed": best,
        "best_for_each": {"tokens_per_second": tokens / each},
        "modelled_over_recorded": modelled / seconds["recorded"],
        "policies": {
            name: {
                "tokens_per_second": tokens / took,
                "ratio_to_plain": seconds["plain"] / took,
                "regret": 1.0 - seconds[best] / took,
            }
            for name, took in seconds.items()
        },
    }


def modelled_seconds(generation: Generation, costs: Costs) -> float:
    """Return the seconds of the recorded cycles by the costs that policies are compared by."""
    total, last = 0.0, 1
    for cycle in generation.cycles:
        n = min(cycle["n"], costs.largest)
        total += costs.evaluation_s(cycle["depth"], n, last) + cycle["draft_s"]
        total += costs.token_s * len(cycle["tokens"])
        last = n
    return total


def show(summary: dict[str, Any]) -> None:
    print(f"{'policy':12} {'tokens/s':>9} {'/ plain':>8} {'regret':>8}")
    policies = summary["policies"]
    for name in [
        "recorded",
        "adaptive",
        *(n for n in policies if n not in ("recorded", "adaptive")),
    ]:
        p = policies[name]
        mark = "  best" if name == summary["best_fixed"] else ""
        print(
            f"{name:12} {p['tokens_per_second']:9.2f} {p['ratio_to_plain']:8.3f} "
            f"{p['regret']:8.1%}{mark}"
        )
    each = summary["best_for_each"]["tokens_per_second"]
    print(f"\nBest fixed policy for each generation: {each:.2f} tokens/s.")
    off = summary["modelled_over_recorded"] - 1.0
    print(f"The costs give the recorded cycles {off:+.1%} of the time they took.")


def costs_of(generation: Generation, generations: list[Generation]) -> Costs:
    """Return the costs of all generations in its setting; a plain one has its model's."""
    start = generation.start

    def alike(other: dict[str, Any]) -> bool:
        settings = {start["setting"], other["setting"]} - {None}
        return other["model"] == start["model"] and len(settings) <= 1

    return Costs([other for other in generations if alike(other.start)])
