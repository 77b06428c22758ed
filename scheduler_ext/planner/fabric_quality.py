"""Measure how well the gangs lie on the leaves, and how large a gang the free whole hosts would still take.

The extender shows the numbers as metrics every few seconds. `placement_report.py` describes one gang in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.topology.fabric import Fabric

EXCESS_CLASSES = ("0", "1", "2", "3+")  # classes of excess leaves


def excess_leaves(view: ClusterView) -> Mapping[GangKey, int]:
    """Return gang -> leaves that its bound pods use more than needed, >= 0.

    For each shape, the fewest leaves that would hold its bound pods if all nodes were empty are counted; the largest
    count is needed. Pods that are being deleted do not count. Absent are gangs without a bound pod, gangs with a bound
    pod off the map, and pods without a gang.
    """
    found: dict[GangKey, int] = {}
    fabric, fewest = view.fabric, _FewestLeaves(view)
    for key, gang in view.gangs.items():
        bound = [] if key.dialect == Dialect.ALONE.value else [each for each in gang.living() if each.node]
        if not bound:
            continue
        rows = [view.snapshot.row_of.get(member.node, -1) for member in bound]
        if min(rows) < 0 or not fabric.mapped[rows].all():
            continue
        leaves = len(set(fabric.switch_of[1, rows].tolist()))
        shapes = Counter(member.shape for member in bound)
        found[key] = max(0, leaves - max(fewest.of(shape, pods) for shape, pods in shapes.items()))
    return found


def excess_class(leaves: int) -> str:
    """Return the class of EXCESS_CLASSES of a number of excess leaves. leaves: >= 0; from 3 on the class is "3+"."""
    return EXCESS_CLASSES[min(leaves, len(EXCESS_CLASSES) - 1)]


def gangs_by_excess(excess: Iterable[int]) -> Mapping[str, int]:
    """Return class -> number of gangs in it; each of EXCESS_CLASSES is a key. excess: excess leaves of each gang."""
    return {**dict.fromkeys(EXCESS_CLASSES, 0), **Counter(map(excess_class, excess))}


class _FewestLeaves:
    """The fewest leaves that hold a number of equal pods, with one array for each shape."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._sums: dict[PodShape, NDArray[np.int64]] = {}  # the pods that the 1, 2, ... largest leaves hold

    def of(self, shape: PodShape, pods: int) -> int:
        """Return the fewest leaves that hold so many pods of a shape if all nodes are empty, at least 1.

        Only hosts on the map count. One more than all leaves if these do not hold so many pods.
        """
        if shape not in self._sums:
            fabric = self._view.fabric
            capacity = np.where(fabric.mapped, self._view.snapshot.room_when_empty(shape), 0).astype(np.int64)
            self._sums[shape] = np.cumsum(np.sort(np.add.reduceat(capacity, fabric.starts[1]))[::-1])
        return int(np.searchsorted(self._sums[shape], pods)) + 1


def largest_gang_gpus(view: ClusterView, gpu_resources: Collection[str]) -> Mapping[str, int]:
    """Return tier ("1" for leaves) -> the GPUs of the free whole hosts under the best switch of the tier; {} without a
    map.

    A host counts if no pod uses its GPUs and it admits pods that tolerate the taint of their own GPU resource. The
    tiers end with the first at which all mapped hosts are under one switch. gpu_resources: names of the resources that
    count as a GPU; a host's GPUs of all of them are added.
    """
    fabric, hosts = view.fabric, np.zeros(len(view.fabric.hosts), np.int64)
    for resource in gpu_resources:
        gpus, free, admitted = _gpu_columns(view, resource)
        hosts += np.where(admitted & (free == gpus), gpus, 0)
    hosts[~fabric.mapped] = 0
    found: dict[str, int] = {}
    for tier in _mapped_tiers(fabric):
        found[str(tier)] = int(np.add.reduceat(hosts, fabric.starts[tier]).max())
    return found


def unmapped_hosts(view: ClusterView, gpu_resources: Collection[str]) -> int:
    """Return the number of nodes that offer GPUs and are not on the map.

    gpu_resources: names of the resources that count as a GPU.
    """
    offers = np.zeros(len(view.fabric.hosts), np.bool_)
    for resource in gpu_resources:
        offers |= _gpu_columns(view, resource)[0] > 0
    return int((offers & ~view.fabric.mapped).sum())


def _gpu_columns(view: ClusterView, resource: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return (all GPUs of a resource, the free ones, True if the node admits pods with them), each an array by row.

    The counts are 0 for a resource that no node has.
    """
    shape = PodShape(requests=((resource, 1),), tolerations=((resource, "Exists", "", ""),))
    admitted, snapshot = view.snapshot.admission.rows(shape), view.snapshot
    column = np.flatnonzero(snapshot.resources.pod_amounts(shape))
    if not len(column):
        nothing = np.zeros(len(snapshot.order), np.int64)
        return nothing, nothing, admitted
    return snapshot.resources.allocatable[:, column[0]], snapshot.resources.free()[:, column[0]], admitted


def _mapped_tiers(fabric: Fabric) -> Iterable[int]:
    """Yield the tiers from the leaves up to the first with one switch above all mapped hosts; none without a map."""
    if not fabric.mapped_count:
        return
    for tier in range(1, fabric.tiers + 1):
        yield tier
        if fabric.switch_of[tier, 0] == fabric.switch_of[tier, fabric.mapped_count - 1]:
            return
