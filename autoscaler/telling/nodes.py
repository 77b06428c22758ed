"""Why a node would not take a worker, room apart: one word for each node, so that they can be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from kube.objects import Node, NodeSpec
from kube.shape import PodShape, admits


def refusals(nodes: Iterable[Node], shape: PodShape) -> Counter[str]:
    """How many nodes do not let in a pod of this shape, by why."""
    return Counter(why for node in nodes if (why := refusal(node, shape)))


def refusal(node: Node, shape: PodShape) -> str:
    """Why this node does not let in a pod of this shape, "" when it does: the first of what stands in the way."""
    if admits(node, shape):
        return ""
    if any(each.status != "True" for each in node.status.conditions or () if each.type == "Ready"):
        return "not ready"
    bare = msgspec.structs.replace(node, spec=NodeSpec())
    if admits(bare, shape):
        return _kept_off(node, bare, shape)
    if admits(bare, replace(shape, terms=None)):
        return "outside its node affinity"
    have = node.metadata.labels or {}
    missing = next((f"{key}={value}" for key, value in shape.selector if have.get(key) != value), "")
    return f"without label {missing}" if missing else "outside its node affinity"


def _kept_off(node: Node, bare: Node, shape: PodShape) -> str:
    """A taint that it does not tolerate, or a cordon, which is one."""
    for taint in node.spec.taints or ():
        if not admits(msgspec.structs.replace(bare, spec=NodeSpec(taints=[taint])), shape):
            return (
                "cordoned" if node.spec.unschedulable and taint.key.endswith("/unschedulable") else f"taint {taint.key}"
            )
    return "cordoned"
