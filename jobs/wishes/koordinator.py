"""Koordinator's placement terms on a pod: the gather strategy of `network-topology-spec`, with names of layers as
levels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnout.jobs.wishes.model import Layer, Level, Wish, nested

SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
GROUPS = "gang.scheduling.koordinator.sh/groups"
INDEX = "gang.scheduling.koordinator.sh/network-topology-index"
_WHOLE_CLUSTER, _HOST = "ClusterTopologyLayer", "NodeTopologyLayer"
_MUST = "MustGather"
_MAX_RULES = 16  # of one gather strategy; further ones are ignored


def read(annotations: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in koordinator's annotations of a pod or a PodGroup.

    None without the annotation of the gather strategy, unless the annotation of groups names several gangs. Layers are
    listed from the outermost inwards. If several layers must hold all pods, the innermost counts. faults: receives a
    sentence for each unreadable value, whose terms are absent.
    """
    together = _group_name(annotations, faults)
    text = annotations.get(SPEC)
    if text is None:
        return Wish(GROUPS, together=together) if together else None
    rules = _rules(text)
    if rules is None:
        faults.append(f"{SPEC} cannot be read: it must be JSON with a list gatherStrategy")
        return Wish(SPEC, together=together)
    multiples = [(_level(each), each["podCountMultiple"]) for each in rules if _has_multiple(each)]
    on_host = next((size for level, size in multiples if level == 0), 1)
    ignored: list[str] = []
    layers = nested(
        SPEC, [Layer(level, size) for level, size in multiples if level not in (0, _WHOLE_CLUSTER)], ignored
    )
    return Wish(SPEC, _required_level(rules), on_host, layers, together=together, ignored=tuple(ignored))


def _required_level(rules: Sequence[Mapping[str, object]]) -> Level | None:
    """Return the innermost level whose domain must hold all pods; None if the rules require none."""
    must = [_level(each) for each in rules if each.get("strategy") == _MUST and each.get("layer") != _WHOLE_CLUSTER]
    return must[-1] if must else None


def _rules(text: str) -> list[dict[str, Any]] | None:
    """Return the rules of a gather strategy, at most _MAX_RULES, without items that are no objects.

    None if the text cannot be read. text: the JSON of the annotation.
    """
    try:
        rules = json.loads(text[:8192])["gatherStrategy"][:_MAX_RULES]
        return [each for each in rules if isinstance(each, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _group_name(annotations: Mapping[str, str], faults: list[str]) -> str:
    """Return one name for a group of gangs: the sorted members of its list. Gangs with equal lists get the same name.

    annotations: of the pod or PodGroup. "" without a group, with a group of a single gang, and if the list is
    unreadable or longer than 4,096 characters. faults: receives a sentence if the list is unreadable.
    """
    if GROUPS not in annotations:
        return ""
    try:
        listed = json.loads(annotations[GROUPS][:4096])
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        faults.append(f"{GROUPS} cannot be read: it must be a JSON list of namespace/name")
        return ""
    return ",".join(sorted(set(listed))) if len(set(listed)) > 1 else ""


def _level(rule: Mapping[str, Any]) -> Level:
    """Return the level that a rule names: 0 for the host, else the name of its layer."""
    layer = str(rule.get("layer", ""))[:253]
    return 0 if layer == _HOST else layer


def _has_multiple(rule: Mapping[str, Any]) -> bool:
    """Return True if a rule has a valid podCountMultiple."""
    size = rule.get("podCountMultiple")
    return isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1_000_000
