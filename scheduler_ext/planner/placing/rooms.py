"""Room for a gang, narrowed: to a domain, to shares of hosts, beside what is barred, by its spread constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.planner.node_reservations import Pods
from turnout.scheduler_ext.planner.placing.groups import Group
from turnout.scheduler_ext.planner.placing.model import Request, RoomOf


def even(request: Request, group: Group, anchors: Sequence[int], room: Rows) -> Rows:
    """Return the room that hard spread constraints by host leave beside the gang's own members."""
    most = min((m.most_on_host for m in group.members if m.most_on_host), default=0)
    if not most or not request.even:
        return room
    room = np.minimum(room, most)
    for host in anchors:
        room[host] = max(0, room[host] - 1)
    return room


def without(
    room_of: RoomOf, left_out: Mapping[PodShape, NDArray[np.bool_]], *barred: NDArray[np.bool_] | None
) -> RoomOf:
    """Return the room without rows that a filter refuses to a shape, or that are barred to the whole gang."""

    def beside(shape: PodShape, besides: Pods) -> Rows:
        room = room_of(shape, besides)
        for marks in (left_out.get(shape), *barred):
            if marks is not None:
                room[marks] = 0
        return room

    return beside


def within(room_of: RoomOf, first: int, end: int) -> RoomOf:
    def inside(shape: PodShape, besides: Pods) -> Rows:
        room = np.zeros_like(whole := room_of(shape, besides))
        room[first:end] = whole[first:end]
        return room

    return inside


def limited(room_of: RoomOf, shape: PodShape, most: Rows) -> RoomOf:
    """Return a room in which each host takes at most so many pods of a shape."""

    def at_most(other: PodShape, besides: Pods) -> Rows:
        room = room_of(other, besides)
        return np.minimum(room, most) if other == shape else room

    return at_most
