"""Describe where a gang landed, for the Event `Placed`: its switches, its ring crossings, and the default's estimate.

The estimate places the same pods on the same free capacity one by one, each on the node with the largest free share, as
NodeResourcesFit does with LeastAllocated. Equal nodes are ordered by a hash. Other plugins of kube-scheduler are left
out.
"""

from __future__ import annotations

import heapq
from itertools import groupby
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import POD_GROUP_VERSIONS, Dialect
from turnout.scheduler_ext.cluster.gang import Gang, rank_sort_key
from turnout.scheduler_ext.cluster.member import Controller, GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.topology.fabric import Fabric, ring_cost
from turnout.topology.model import Cost

MAX_ESTIMATED_MEMBERS = 4_096  # members of a gang; a larger gang is reported without the estimate
_SCORED = ("cpu", "memory")  # the default resources of LeastAllocated; the resources of the pods count too


def bound_members(gang: Gang) -> list[GangMember]:
    """Return the members that are bound to a node and stay, in rank order."""
    return sorted((member for member in gang.living() if member.node), key=rank_sort_key)


def is_whole(view: ClusterView, gang: Gang) -> bool:
    """Return True if the minimum of the gang is bound, no member waits, and no announced member is missing."""
    living, missing_pods = gang.living(), view.awaited_members.missing_pods(gang)
    return len(living) >= max(gang.min_pods, 1) and all(each.node for each in living) and not missing_pods


def placed_notice(view: ClusterView, gang: Gang) -> Notice | None:
    """Return the notice that a gang is placed, with its switches and the default's estimate.

    None for a pod without a gang, if no member is bound, if a bound member has no known host, or if the map knows none
    of the nodes.
    """
    bound = bound_members(gang)
    hosts = [host for member in bound if (host := view.host_of(member)) is not None]
    if gang.key.dialect == Dialect.ALONE.value or len(hosts) != len(bound) or not bound:
        return None
    if not view.fabric.mapped[hosts].any():
        return None
    text = f"{len(bound)} pods under {_cost_text(view.fabric, ring_cost(view.fabric, hosts))}"
    estimate = default_hosts(view, gang) if len(bound) <= MAX_ESTIMATED_MEMBERS else None
    if estimate is not None:
        text += f"; default scheduling would give about {_cost_text(view.fabric, ring_cost(view.fabric, estimate))}"
    about = _owner(gang, bound[0])
    return Notice(EventReason.PLACED, gang.key.namespace, about.name, about.uid, text, about.kind, about.api_version)


def default_hosts(view: ClusterView, gang: Gang) -> list[int] | None:
    """Return the host id of each bound member in rank order, as default scheduling would choose it on the same
    capacity.

    The capacity is the free capacity plus the use of the gang itself. None if the gang does not fit so. The node of
    each bound member must be in the tables.
    """
    snapshot, bound = view.snapshot, bound_members(gang)
    for member in bound:
        snapshot.resources.pod_amounts(member.shape)  # new resources change the width of the table
    free = snapshot.resources.free()
    for member in bound:
        free[snapshot.row_of[member.node]] += snapshot.resources.pod_amounts(member.shape)
    allocatable = np.maximum(snapshot.resources.allocatable, 1)
    tie_breaks = _pseudo_random(np.arange(len(free), dtype=np.uint64), crc32(str(gang.key).encode()))
    scored = np.array([name in _SCORED for name in snapshot.resources.column_of], np.bool_)
    hosts: list[int] = []
    for shape, members in groupby(bound, key=lambda member: member.shape):
        vector = snapshot.resources.pod_amounts(shape)
        columns = scored | (vector > 0)
        fits = snapshot.admission.rows(shape) & (free[:, vector > 0] >= vector[vector > 0]).all(axis=1)
        chosen = _least_allocated(free, allocatable, vector, columns, fits, tie_breaks, len(list(members)))
        if chosen is None:
            return None
        hosts += chosen
    return hosts


def _pseudo_random(rows: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Return a pseudo-random number in [0, 1] for each row number (finalizer of MurmurHash3).

    Equal rows and seeds give equal numbers.
    """
    mixed = (rows + np.uint64(seed)) * np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed / float(2**64)


def _least_allocated(
    free: NDArray[np.int64],
    allocatable: NDArray[np.int64],
    vector: NDArray[np.int64],
    columns: NDArray[np.bool_],
    fits: NDArray[np.bool_],
    tie_breaks: NDArray[np.float64],
    pods: int,
) -> list[int] | None:
    """Place `pods` equal pods one by one on the row with the largest free share.

    Returns their rows; None if they do not fit.

    Their room is subtracted from `free`. free, allocatable: by row and resource. vector: the request of one pod.
    columns: marks of the resources that count. fits: marks of the rows that take a pod now. tie_breaks: by row, the
    smaller first.
    """

    def share(row: int) -> float:
        return float((free[row, columns] / allocatable[row, columns]).mean()) if columns.any() else 0.0

    rows = np.flatnonzero(fits)
    shares = (
        (free[rows][:, columns] / allocatable[rows][:, columns]).mean(axis=1) if columns.any() else tie_breaks[rows] * 0
    )
    best = rows[np.lexsort((tie_breaks[rows], -shares))][:pods]
    heap = [(-share(row), float(tie_breaks[row]), row) for row in best.tolist()]
    heapq.heapify(heap)
    chosen: list[int] = []
    while len(chosen) < pods:
        if not heap:
            return None
        row = heapq.heappop(heap)[2]
        chosen.append(row)
        free[row] -= vector
        if (free[row] >= vector)[vector > 0].all():
            heapq.heappush(heap, (-share(row), float(tie_breaks[row]), row))
    return chosen


def _cost_text(fabric: Fabric, spent: Cost) -> str:
    names = ("leaf switch", "spine switch")
    counts = [_count(number, name) for number, name in zip(spent.switches[: fabric.tiers], names, strict=False)]
    return f"{', '.join(counts)}, {_count(spent.total, 'ring crossing')}"


def _count(number: int, name: str) -> str:
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    return f"{number} {name if number == 1 else plural}"


def _owner(gang: Gang, first: GangMember) -> Controller:
    """Return the object that the Event is about: the controller of `first`, else the gang's PodGroup, else `first`
    itself.
    """
    if first.controller is not None:
        return first.controller
    version = POD_GROUP_VERSIONS.get(Dialect(gang.key.dialect))
    if gang.sizing is not None and gang.sizing.uid and version is not None:
        return Controller(version, "PodGroup", gang.sizing.name, gang.sizing.uid)
    return Controller("v1", "Pod", first.name, first.uid)
