"""The bodies of the two patches of a gated pod, and of an eviction.

A patch holds for one version of one pod, and narrows it only. An eviction holds for one pod, not for another of its
name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from turnout.kube.objects import NodeSelectorRequirement, NodeSelectorTerm
from turnout.scheduler_ext.gates.model import Evict, GatedPod, Lift, Nominate

_FIELD = "metadata.name"  # the one field that node affinity knows; the scheduler then looks at that node only


def nomination_patch(wish: Nominate) -> dict[str, Any]:
    """Return the merge patch of a pod's status."""
    return {"metadata": _meta(wish.pod), "status": {"nominatedNodeName": wish.node or None}}


def lift_patch(lift: Lift) -> dict[str, Any]:
    """Return the merge patch that takes our gate away and leaves those of others.

    A pinned pod may run on its node only, beside what its own affinity asks. The API server lets a gated pod be
    narrowed, never widened.
    """
    left: list[dict[str, str]] | None = [{"name": name} for name in lift.pod.other_gates] or None
    spec: dict[str, Any] = {"schedulingGates": left}
    if lift.only_this_node and lift.node:
        terms = msgspec.to_builtins(
            [_add_node(lift.node, term) for term in lift.pod.required_terms or (NodeSelectorTerm(),)]
        )
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"metadata": _meta(lift.pod), "spec": spec}


def eviction_body(wish: Evict) -> dict[str, Any]:
    """Return the body of an eviction, which disruption budgets may refuse."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": wish.name, "namespace": wish.namespace},
        "deleteOptions": {"preconditions": {"uid": wish.uid}},
    }


def _add_node(node: str, term: NodeSelectorTerm) -> NodeSelectorTerm:
    requirement = NodeSelectorRequirement(_FIELD, "In", [node])
    return NodeSelectorTerm(term.match_expressions, [*(term.match_fields or ()), requirement])


def _meta(pod: GatedPod) -> dict[str, str]:
    return {"uid": pod.uid} | ({"resourceVersion": pod.version} if pod.version else {})
