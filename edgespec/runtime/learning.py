"""Carries what an engine learned about drafting into the target's profile."""

from __future__ import annotations

from edgespec.drafters import ComposedDrafter, Drafter, ForeignDrafter, ModelDrafter, NgramDrafter
from edgespec.runtime.loading import Plan
from edgespec.tuning.controller import AdaptivePolicy, Policy
from edgespec.tuning.exactness import Exactness
from edgespec.tuning.profile import Usage, load_profile

__all__ = ["remember"]


def remember(
    plan: Plan, exactness: Exactness, policy: Policy, drafter: Drafter, usage: Usage
) -> None:
    """Write it. The file is read anew first: another process may have written to it."""
    profile = load_profile(plan.target.path)
    profile.usage = usage
    if isinstance(policy, AdaptivePolicy) and exactness.setting is not None:
        profile.shapes[exactness.setting.name] = policy.costs.shape.round(4).tolist()
    model = drafter.model if isinstance(drafter, ComposedDrafter) else drafter
    ngram = drafter.ngram if isinstance(drafter, ComposedDrafter) else drafter
    if isinstance(ngram, NgramDrafter):
        profile.ngram = ngram.experience()
    if isinstance(model, (ModelDrafter, ForeignDrafter)) and plan.draft is not None:
        profile.draft(plan.draft.path).update(model.pace.as_json())
    profile.save()
