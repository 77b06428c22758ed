"""Words on a PodGroup: Volcano's networkTopology, and the topology constraints of Kubernetes' own PodGroups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.jobs.wishes.model import NOTHING, Level, Wish

_MOST_TIER = 99


def wish_of_group(topology: object, policies: object, constraints: object) -> Wish:
    """Return what the spec of a PodGroup asks. All three may be anything.

    topology: Volcano's networkTopology. policies: Volcano's subGroupPolicy. constraints: the schedulingConstraints of
    Kubernetes.
    """
    unkept = ("spec.subGroupPolicy is not kept: the gang is placed as one",) if policies else ()
    if isinstance(topology, dict):
        hard = topology.get("mode", "hard") == "hard"
        return Wish("spec.networkTopology", _allowed(topology) if hard else None, unkept=unkept)
    if isinstance(constraints, dict) and (keys := _keys(constraints)):
        return Wish("spec.schedulingConstraints.topology", keys[-1], unkept=unkept)
    return Wish("spec.subGroupPolicy", unkept=unkept) if unkept else NOTHING


def native_min(policy: object) -> int | None:
    """Return how many pods of Kubernetes' own PodGroup start together: 1 and more; None when it does not say."""
    gang = policy.get("gang") if isinstance(policy, dict) else None
    least = gang.get("minCount") if isinstance(gang, dict) else None
    return least if isinstance(least, int) and not isinstance(least, bool) and least > 0 else None


def _allowed(topology: Mapping[str, Any]) -> Level:
    """Return the widest level: by name, by number, else a leaf."""
    name, tier = topology.get("highestTierName"), topology.get("highestTierAllowed")
    if isinstance(name, str) and name:
        return name[:253]
    return tier if isinstance(tier, int) and 0 <= tier <= _MOST_TIER else 1


def _keys(constraints: Mapping[str, Any]) -> list[str]:
    """Return the keys of node labels, the narrowest last."""
    listed = constraints.get("topology")
    each = listed if isinstance(listed, list) else []
    return [rule["key"][:253] for rule in each if isinstance(rule, dict) and isinstance(rule.get("key"), str)]
