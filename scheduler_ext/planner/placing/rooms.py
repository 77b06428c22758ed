"""Room for a gang, narrowed: to a domain, to shares of hosts, beside what is barred, by its spread constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.planner.node_reservations import PodsOnRows
from turnout.scheduler_ext.planner.placing.groups import PodBatch
from turnout.scheduler_ext.planner.placing.model import GangRequest, RoomOf


def limit_by_spread(request: GangRequest, group: PodBatch, anchors: Sequence[int], room: Rows) -> Rows:
    """Return the room that hard spread constraints by host leave beside the gang's own members."""
    most = min((m.max_per_host for m in group.members if m.max_per_host), default=0)
    if not most or not request.spread_evenly:
        return room
    room = np.minimum(room, most)
    for host in anchors:
        room[host] = max(0, room[host] - 1)
    return room


def exclude_rows(
    room_of: RoomOf, rejected_rows: Mapping[PodShape, NDArray[np.bool_]], *excluded_rows: NDArray[np.bool_] | None
) -> RoomOf:
    """Return the room without rows that a filter refuses to a shape, or that are barred to the whole gang."""

    def room_without(shape: PodShape, besides: PodsOnRows) -> Rows:
        room = room_of(shape, besides)
        for marks in (rejected_rows.get(shape), *excluded_rows):
            if marks is not None:
                room[marks] = 0
        return room

    return room_without


def restrict_to_domain(room_of: RoomOf, first: int, end: int) -> RoomOf:
    def inside(shape: PodShape, besides: PodsOnRows) -> Rows:
        room = np.zeros_like(all_room := room_of(shape, besides))
        room[first:end] = all_room[first:end]
        return room

    return inside


def limit_per_host(room_of: RoomOf, shape: PodShape, most: Rows) -> RoomOf:
    """Return a room in which each host takes at most so many pods of a shape."""

    def at_most(other: PodShape, besides: PodsOnRows) -> Rows:
        room = room_of(other, besides)
        return np.minimum(room, most) if other == shape else room

    return at_most
