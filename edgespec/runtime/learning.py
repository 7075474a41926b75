"""Carries what an engine learned about drafting into the target's profile."""

from __future__ import annotations

from edgespec.control.achieved import Achieved
from edgespec.control.controller import AdaptivePolicy, Policy
from edgespec.drafters import ComposedDrafter, ContextDrafter, Drafter, PromptLookupDrafter
from edgespec.runtime.loading import Plan
from edgespec.tuning.exactness import Exactness, forget_settings
from edgespec.tuning.profile import Usage, load_profile

__all__ = ["doubtful", "remember"]

_ENOUGH_CYCLES = 50
_MOST_DRIFT = 0.5  # in log: the machine is 1.65 times as fast or slow as when it was measured


def doubtful(policy: AdaptivePolicy) -> bool:
    """Whether use disagrees with the first start's quick measurement so much that it was wrong.

    Taken while another program was busy, say. It is made anew at the next start.
    """
    drift = abs(float(policy.costs.drift[0]))
    return policy.achieved.cycles >= _ENOUGH_CYCLES and drift > _MOST_DRIFT


def remember(
    plan: Plan, exactness: Exactness, policy: Policy, drafter: Drafter, usage: Usage
) -> None:
    """Write it. The file is read anew first: another process may have written to it."""
    profile = load_profile(plan.target.path)
    profile.usage = usage
    achieved = Achieved()
    if isinstance(policy, AdaptivePolicy) and exactness.setting is not None:
        achieved = policy.achieved
        if doubtful(policy):
            forget_settings(plan.target.path, tuned=False)
            profile.shapes.pop(exactness.setting.name, None)
        else:
            profile.shapes[exactness.setting.name] = policy.costs.shape.round(4).tolist()
    model = drafter.model if isinstance(drafter, ComposedDrafter) else drafter
    ngram = drafter.ngram if isinstance(drafter, ComposedDrafter) else drafter
    if isinstance(ngram, PromptLookupDrafter):
        profile.ngram.update(ngram.experience())
    if isinstance(model, ContextDrafter) and plan.draft is not None:
        known = profile.draft(plan.draft.path)
        known.update(model.stopping.as_json())
    else:
        known = profile.ngram
    if achieved.tokens:
        known["achieved"] = (Achieved.from_json(known.get("achieved")) + achieved).as_json()
    profile.save()
