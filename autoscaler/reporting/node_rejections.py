"""Explains what the nodes have for a worker: room, or one reason why a node does not admit it."""

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
    """Return how many nodes do not admit a pod of this shape, by reason."""
    return Counter(why for node in nodes if (why := refusal(node, shape)))


def refusal(node: Node, shape: PodShape) -> str:
    """Return the first reason why this node does not admit a pod of this shape, "" if it admits it."""
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
    """Return the taint that the pod does not tolerate, or "cordoned"."""
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
    """Return the room for one more worker, now and without any job. worker: what one requests."""
    shape = state.job.shape
    fits = observation.room.fits(shape)
    why = refusals(nodes, shape)
    return RoomLink(
        worker,
        len(nodes),
        len(nodes) - why.total(),
        int(np.count_nonzero(fits)),
        int(fits.sum()),
        _without_jobs(observation).total(shape),
        tuple(sorted(why.items(), key=lambda each: (-each[1], each[0]))),
    )


def _without_jobs(observation: Observation) -> Capacity:
    """Return the room without any job."""
    rows: dict[PodShape, list[int]] = {}
    for each in observation.jobs:
        rows_of_job = [worker.row for worker in each.workers if worker.row is not None and worker.row != UNKNOWN_NODE]
        rows.setdefault(each.job.shape, []).extend(rows_of_job)
    return observation.room.with_pods_removed(rows)
