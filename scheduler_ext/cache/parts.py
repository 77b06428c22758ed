"""The groups within a gang: which members stay together, by the rules of its PodGroup or by a label of its pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from turnout.jobs.wishes.model import GroupRule, Level
from turnout.scheduler_ext.cache.pod_info import Member


@dataclass(frozen=True, slots=True, order=True)
class GangGroup:
    """One group of a gang."""

    rule: int  # which of the gang's rules makes it
    label_values: tuple[str, ...]  # the values of the rule's labels, or the number of its run
    tier: int | None = None  # the widest tier allowed; None where it only prefers nearness
    exclusive: bool = False  # shares no domain of that tier with another part
    all_or_nothing: bool = True  # starts whole or not at all


def group_members(
    rules: Sequence[GroupRule], members: Iterable[Member], tier_of: Callable[[Level], int]
) -> dict[str, GangGroup]:
    """Return uid -> part, of the members that are in one. members: in rank order. The first rule that fits counts."""
    found: dict[str, GangGroup] = {}
    counts, one_of = [0] * len(rules), [set(rule.one_of) for rule in rules]
    for member in members:
        marks = dict(member.membership.marks)
        for at, rule in enumerate(rules):
            if any(marks.get(key) != value for key, value in rule.marks) or not all(key in marks for key in rule.keys):
                continue
            if one_of[at] and one_of[at].isdisjoint(member.membership.marks):
                continue
            name = tuple(marks[key] for key in rule.keys)
            if not rule.keys and rule.size:
                index = member.membership.rank if member.membership.rank is not None else counts[at]
                name = (str(index // rule.size),)
            counts[at] += 1
            tier = None if rule.level is None else tier_of(rule.level)
            found[member.uid] = GangGroup(at, name, tier, rule.exclusive, rule.all_or_nothing)
            break
    return found
