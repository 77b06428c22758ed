"""Koordinator's placement terms on a pod: the gather strategy of `network-topology-spec`, with names of layers as
levels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnout.jobs.fields import MAX_COUNT
from turnout.jobs.wishes.model import Layer, Level, Wish, nested

SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
GROUPS = "gang.scheduling.koordinator.sh/groups"
INDEX = "gang.scheduling.koordinator.sh/network-topology-index"
_WHOLE_CLUSTER, _HOST = "ClusterTopologyLayer", "NodeTopologyLayer"
_MUST = "MustGather"
_MAX_RULES = 16  # of one gather strategy; further ones are ignored
_MAX_SPEC_CHARS, _MAX_GROUPS_CHARS = 8192, 4096  # of the annotations SPEC and GROUPS; longer ones are not read


def read(annotations: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in koordinator's annotations of a pod or a PodGroup.

    None without the annotation of the gather strategy, unless the annotation of groups names several gangs. Layers are
    listed from the outermost inwards. If several layers must hold all pods, the innermost counts. faults: receives a
    sentence for each unreadable value, whose terms are absent. Rules after the first _MAX_RULES are ignored, which the
    result says.
    """
    together = _group_name(annotations, faults)
    text = annotations.get(SPEC)
    if text is None:
        return Wish(GROUPS, together=together) if together else None
    ignored: list[str] = []
    rules = _rules(text, faults, ignored)
    multiples = [(_level(each), each["podCountMultiple"]) for each in rules if _has_multiple(each, faults)]
    on_host = next((size for level, size in multiples if level == 0), 1)
    layers = nested(
        SPEC, [Layer(level, size) for level, size in multiples if level not in (0, _WHOLE_CLUSTER)], ignored
    )
    return Wish(SPEC, _required_level(rules), on_host, layers, together=together, ignored=tuple(ignored))


def _required_level(rules: Sequence[Mapping[str, object]]) -> Level | None:
    """Return the innermost level whose domain must hold all pods; None if the rules require none."""
    must = [_level(each) for each in rules if each.get("strategy") == _MUST and each.get("layer") != _WHOLE_CLUSTER]
    return must[-1] if must else None


def _rules(text: str, faults: list[str], ignored: list[str]) -> list[dict[str, Any]]:
    """Return the rules of a gather strategy, at most _MAX_RULES, without items that are no objects.

    [] if the text cannot be read or has more than _MAX_SPEC_CHARS characters. text: the JSON of the annotation. faults:
    receives a sentence for that, and for items that are no objects. ignored: receives one for rules above _MAX_RULES.
    """
    if len(text) > _MAX_SPEC_CHARS:
        faults.append(f"{SPEC} cannot be read: it has {len(text)} characters, and at most {_MAX_SPEC_CHARS} are read")
        return []
    try:
        rules = json.loads(text)["gatherStrategy"]
    except (ValueError, TypeError, KeyError, RecursionError):
        rules = None
    if not isinstance(rules, list):
        faults.append(f"{SPEC} cannot be read: it must be JSON with a list gatherStrategy")
        return []
    if len(rules) > _MAX_RULES:
        ignored.append(f"{SPEC} has {len(rules)} rules, of which {_MAX_RULES} are kept")
    if not all(isinstance(each, dict) for each in rules[:_MAX_RULES]):
        faults.append(f"{SPEC}: each item of gatherStrategy must be an object; the others are absent")
    return [each for each in rules[:_MAX_RULES] if isinstance(each, dict)]


def _group_name(annotations: Mapping[str, str], faults: list[str]) -> str:
    """Return one name for a group of gangs: the sorted members of its list. Gangs with equal lists get the same name.

    annotations: of the pod or PodGroup. "" without a group, with a group of a single gang, and if the list is
    unreadable or has more than _MAX_GROUPS_CHARS characters. faults: receives a sentence in these two cases.
    """
    if GROUPS not in annotations:
        return ""
    if (chars := len(annotations[GROUPS])) > _MAX_GROUPS_CHARS:
        faults.append(f"{GROUPS} cannot be read: it has {chars} characters, and at most {_MAX_GROUPS_CHARS} are read")
        return ""
    try:
        listed = json.loads(annotations[GROUPS])
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


def _has_multiple(rule: Mapping[str, Any], faults: list[str]) -> bool:
    """Return True if a rule has a valid podCountMultiple. faults: receives a sentence for an invalid one."""
    size = rule.get("podCountMultiple")
    if size is None:
        return False
    if type(size) is int and 1 <= size <= MAX_COUNT:  # a bool is an int, too
        return True
    faults.append(f"{SPEC}: podCountMultiple is {str(size)[:40]!r}: it must be a whole number from 1 to {MAX_COUNT}")
    return False
