"""Carry what an engine learned about drafting into the target's profile."""

from __future__ import annotations

from edgespec.control.achieved import Achieved
from edgespec.control.controller import Policy
from edgespec.drafters import Drafter
from edgespec.runtime.loading import Plan
from edgespec.tuning.exactness import Exactness
from edgespec.tuning.profile import Usage, load_profile
from edgespec.tuning.setting import forget_settings

__all__ = ["remember"]

_ENOUGH_CYCLES = 50
_MOST_DRIFT = 0.5  # in log: the machine is 1.65 times as fast or slow as when it was measured


def remember(
    plan: Plan, exactness: Exactness, policy: Policy, drafter: Drafter, usage: Usage
) -> None:
    """Write it. The file is read anew first: another process may have written to it.

    Where use disagrees so much with the first start's quick measurement that it was wrong (taken
    while another program was busy, say), the measurement is forgotten, and the next start measures
    again.
    """
    profile = load_profile(plan.target.path)
    profile.usage = usage
    achieved, costs, setting = policy.achieved, policy.costs, exactness.setting
    if costs is not None and setting is not None:
        if achieved.cycles >= _ENOUGH_CYCLES and abs(float(costs.drift[0])) > _MOST_DRIFT:
            forget_settings(plan.target.path, tuned=False)
            profile.shapes.pop(setting.name, None)
        else:
            profile.shapes[setting.name] = costs.shape.round(4).tolist()
    learned = drafter.learned()
    if learned.lookup is not None:
        profile.ngram.update(learned.lookup)
    known = profile.ngram
    if learned.model is not None and plan.draft is not None:
        known = profile.draft(plan.draft.path)
        known.update(learned.model)
    if achieved.tokens:
        known["achieved"] = (Achieved.from_json(known.get("achieved")) + achieved).as_json()
    profile.save()
