"""What is remembered of an engine's work for the next one."""

from __future__ import annotations

from pathlib import Path

from edgespec.control.controller import Policy
from edgespec.control.costs import CostTable
from edgespec.control.speedup import Achieved
from edgespec.drafters import Drafter
from edgespec.runtime.plan import Plan
from edgespec.runtime.processors import spare_processors
from edgespec.tuning.exactness import Exactness
from edgespec.tuning.profile import Profile, Usage, load_profile
from edgespec.tuning.setting import SettingFigures, forget_settings, store_setting

__all__ = ["remember"]

_ENOUGH_CYCLES = 50

_MOST_DRIFT = 0.5  # in log: the machine is 1.65 times as fast or slow as when it was measured


def remember(
    plan: Plan, exactness: Exactness, policy: Policy, drafter: Drafter, usage: Usage
) -> None:
    """Write what was learned. The file is read first: another process may have changed it."""
    profile = load_profile(plan.target.path)
    profile.usage = usage
    achieved, costs, setting = policy.achieved, policy.costs, exactness.setting
    if costs is not None and setting is not None:
        calm = spare_processors().look() >= setting.threads
        telling = calm and achieved.cycles >= _ENOUGH_CYCLES
        keep_costs(plan.target.path, profile, setting, costs, telling=telling)
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


def keep_costs(
    model: Path, profile: Profile, setting: SettingFigures, costs: CostTable, *, telling: bool
) -> None:
    """Keep what use taught of a setting's costs.

    Figures that were not measured here are replaced by what use made of them. Measured ones that
    disagree with use so much that they are wrong (taken beside another program, say) are forgotten,
    whoever took them.

    Args:
        telling: it was used for long enough, and no other program took processors from it.
    """
    wrong = setting.measured and abs(float(costs.drift[0])) > _MOST_DRIFT
    if telling and wrong:
        forget_settings(model, setting.name)
        profile.shapes.pop(setting.name, None)
        profile.tuned = {}
    elif telling and not setting.measured:
        store_setting(model, setting.corrected(costs))
        profile.shapes.pop(setting.name, None)
    elif not wrong and setting.measured:
        profile.shapes[setting.name] = costs.shape.round(4).tolist()
