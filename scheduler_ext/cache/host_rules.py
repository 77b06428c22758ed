"""Read what a pod says of its own kind on one host: required anti-affinity, and hard spread constraints by host name.

Both are read only where their selector matches the pod itself, so that members of one gang keep each other away. What
they say of other pods, or of other keys than the host name, only the scheduler's plugins judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from turnout.kube import labels
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape

_MAX_SELECTOR_CHARACTERS = 4096  # characters; a longer one is left to the scheduler
_MAX_TERMS = 16


def anti_affinity_ports(pod: Pod) -> tuple[tuple[str, int], ...]:
    """Return what no two pods of this kind may share on one host, written as host ports, so that room is counted so."""
    affinity = pod.spec.affinity
    rules = (affinity.pod_anti_affinity if affinity else None) or {}
    found = set()
    for term in _dicts(rules.get("requiredDuringSchedulingIgnoredDuringExecution")):
        scope = _scope(term, pod.metadata.namespace)
        if term.get("topologyKey") == labels.HOSTNAME and scope and _selects(term.get("labelSelector"), pod):
            text = json.dumps([scope, term["labelSelector"]], sort_keys=True)
            if len(text) <= _MAX_SELECTOR_CHARACTERS:
                found.add((f"anti-affinity {text}", 0))
    return tuple(sorted(found))


def max_per_host(pod: Pod) -> int | None:
    """Return how many pods of its kind its hard spread constraints let a host hold while another holds none; else
    None.
    """
    skews = [
        rule["maxSkew"]
        for rule in _dicts(pod.spec.topology_spread_constraints)
        if rule.get("topologyKey") == labels.HOSTNAME
        and rule.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        and isinstance(rule.get("maxSkew"), int)
        and rule["maxSkew"] > 0
        and _selects(rule.get("labelSelector"), pod)
    ]
    return min(skews, default=None)


def add_anti_affinity(shape: PodShape, pod: Pod) -> PodShape:
    """Return a pod's shape with its anti-affinity in it."""
    rules = anti_affinity_ports(pod)
    return _with_ports(shape, rules) if rules else shape


@lru_cache(maxsize=4096)
def _with_ports(shape: PodShape, ports: tuple[tuple[str, int], ...]) -> PodShape:
    """Equal shapes become one object, as those of turnout.kube.pod_shape are."""
    return replace(shape, host_ports=(*shape.host_ports, *ports))


def _scope(term: Mapping[str, Any], namespace: str) -> object:
    """Return the namespaces that a term is about; None when the pod's own is not surely among them."""
    names, selector = term.get("namespaces") or [], term.get("namespaceSelector")
    if selector == {}:
        return "all"
    if selector is not None or not isinstance(names, list):
        return None
    if not names:
        return [namespace]
    return sorted(map(str, names)) if namespace in names else None


def _selects(selector: object, pod: Pod) -> bool:
    """True if a label selector can be read and matches the pod itself. None selects nobody."""
    if not isinstance(selector, dict):
        return False
    pod_labels = pod.metadata.labels or {}
    match_labels = selector.get("matchLabels") or {}
    if not isinstance(match_labels, dict) or any(pod_labels.get(key) != value for key, value in match_labels.items()):
        return False
    return all(_meets(pod_labels, expression) for expression in _dicts(selector.get("matchExpressions")))


def _meets(have: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    value, values = have.get(str(expression.get("key"))), expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def _dicts(items: object) -> Iterator[dict[str, Any]]:
    return (each for each in items[:_MAX_TERMS] if isinstance(each, dict)) if isinstance(items, list) else iter(())
