"""Placement terms of PodGroups: Volcano's networkTopology and subGroupPolicy, koordinator's annotations, Kubernetes'
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnout.jobs.wishes.model import MAX_GROUPS, NOTHING, GroupRule, Level, Wish
from turnout.jobs.wishes.read import wish_of

_MOST_TIER = 99
_MOST_MARKS = 8
_MOST_COUNT = 1_000_000
MOST_ROLES = 64


def wish_of_group(topology: object, policies: object, constraints: object, notes: Mapping[str, str]) -> Wish:
    """Return the placement terms of a PodGroup. Every argument but `notes` may have any type.

    topology: Volcano's networkTopology. policies: Volcano's subGroupPolicy. constraints: the schedulingConstraints of
    Kubernetes. notes: the annotations, which count if the spec has no terms.
    """
    unkept: list[str] = []
    groups = _groups(policies, unkept)
    if isinstance(topology, dict):
        hard = topology.get("mode", "hard") == "hard"
        return Wish("spec.networkTopology", _allowed(topology) if hard else None, groups=groups, ignored=tuple(unkept))
    if isinstance(constraints, dict) and (keys := _keys(constraints)):
        return Wish("spec.schedulingConstraints.topology", keys[-1], groups=groups, ignored=tuple(unkept))
    if groups or unkept:
        return Wish("spec.subGroupPolicy", groups=groups, ignored=tuple(unkept))
    return wish_of_notes(notes)


def wish_of_notes(notes: Mapping[str, str]) -> Wish:
    """Return the placement terms in the annotations of a PodGroup. Unreadable values are reported as ignored."""
    faults: list[str] = []
    noted = wish_of(notes, faults)
    return replace(noted, ignored=(*noted.ignored, *faults)) if faults else noted or NOTHING


def native_min(policy: object) -> int | None:
    """Return how many pods of Kubernetes' own PodGroup start together, >= 1; None if it does not tell."""
    gang = policy.get("gang") if isinstance(policy, dict) else None
    least = gang.get("minCount") if isinstance(gang, dict) else None
    return least if isinstance(least, int) and not isinstance(least, bool) and least > 0 else None


def least_by_role(minimums: object) -> tuple[tuple[str, int], ...]:
    """Return how many pods of each task must start, from Volcano's minTaskMember, which may have any type."""
    if not isinstance(minimums, dict):
        return ()
    pairs = sorted((key, value) for key, value in minimums.items() if isinstance(key, str) and _counts(value))
    return tuple(pairs[:MOST_ROLES])


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_COUNT


def _count(value: object) -> int:
    return value if isinstance(value, int) and _counts(value) else 0


def _allowed(topology: Mapping[str, Any]) -> Level:
    """Return the widest allowed level: by name, else by number, else a leaf."""
    name, tier = topology.get("highestTierName"), topology.get("highestTierAllowed")
    if isinstance(name, str) and name:
        return name[:253]
    return tier if isinstance(tier, int) and 0 <= tier <= _MOST_TIER else 1


def _keys(constraints: Mapping[str, Any]) -> list[str]:
    """Return the keys of node labels, the narrowest last."""
    listed = constraints.get("topology")
    each = listed if isinstance(listed, list) else []
    return [rule["key"][:253] for rule in each if isinstance(rule, dict) and isinstance(rule.get("key"), str)]


def _groups(policies: object, unkept: list[str]) -> tuple[GroupRule, ...]:
    """Return the rules of Volcano's subGroupPolicy, with a sentence for each that is not kept."""
    listed = policies if isinstance(policies, list) else []
    if len(listed) > MAX_GROUPS:
        unkept.append(f"spec.subGroupPolicy has {len(listed)} entries, of which {MAX_GROUPS} are kept")
    rules = (_rule(each, unkept) for each in listed[:MAX_GROUPS] if isinstance(each, dict))
    return tuple(rule for rule in rules if rule is not None)


def _rule(policy: Mapping[str, Any], unkept: list[str]) -> GroupRule | None:
    name = str(policy.get("name", ""))[:63]
    selector = policy.get("labelSelector")
    selector = selector if isinstance(selector, dict) else {}
    if selector.get("matchExpressions"):
        unkept.append(f"spec.subGroupPolicy {name} is not kept: it selects by matchExpressions")
        return None
    labels, keys = selector.get("matchLabels"), policy.get("matchLabelKeys")
    marks = sorted((str(key), str(value)) for key, value in (labels if isinstance(labels, dict) else {}).items())
    named = [str(key) for key in (keys if isinstance(keys, list) else [])]
    topology = policy.get("networkTopology")
    hard = isinstance(topology, dict) and topology.get("mode", "hard") == "hard"
    size, least = (_count(policy.get(key)) for key in ("subGroupSize", "minSubGroups"))
    level = _allowed(topology) if hard and isinstance(topology, dict) else None
    return GroupRule(name, tuple(marks[:_MOST_MARKS]), tuple(named[:_MOST_MARKS]), size, least, level)
