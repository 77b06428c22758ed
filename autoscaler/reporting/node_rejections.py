"""Explains what the nodes have for a worker: room, or one word for why a node would not take it, to be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import UNKNOWN_NODE, JobState, Observation
from turnout.kube.objects import Node, NodeSpec
from turnout.kube.pod_shape import PodShape, admits


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


@dataclass(frozen=True, slots=True)
class RoomLink:
    """worker: what one asks for. nodes: all; admits: those that would take it; with_room: those that can now.

    fits: whole workers on all of them together; ever: if every job were gone. refusals: (why, nodes), most first.
    """

    worker: str
    nodes: int
    admits: int
    with_room: int
    fits: int
    fits_when_empty: int
    refusals: tuple[tuple[str, int], ...]


def room_link(state: JobState, observation: Observation, nodes: list[Node], worker: str) -> RoomLink:
    """Tell what there is for one more worker, now and if every job were gone. worker: what one asks for."""
    shape = state.job.shape
    fits = observation.room.fits(shape)
    why = refusals(nodes, shape)
    return RoomLink(
        worker,
        len(nodes),
        len(nodes) - why.total(),
        int(np.count_nonzero(fits)),
        int(fits.sum()),
        _emptied(observation).total(shape),
        tuple(sorted(why.items(), key=lambda each: (-each[1], each[0]))),
    )


def _emptied(observation: Observation) -> Capacity:
    """The room if every job were gone."""
    rows: dict[PodShape, list[int]] = {}
    for each in observation.jobs:
        rows_of_job = [worker.row for worker in each.workers if worker.row is not None and worker.row != UNKNOWN_NODE]
        rows.setdefault(each.job.shape, []).extend(rows_of_job)
    return observation.room.with_pods_removed(rows)
