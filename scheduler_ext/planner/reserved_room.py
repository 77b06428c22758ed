"""The room that standing plans reserve, the hosts reserved for gangs, and the domains kept by strict order.

`plans.py` decides which gang is planned when, and which gang gives way.

In a queue of strict order one domain is kept for the oldest waiting gang, so that small gangs do not starve it. The
domain is of the lowest tier whose nodes could hold the gang if they were empty, and has the most free room. It is kept
against later gangs of the same queue, until the gang has a place or is deleted. It is chosen again when nodes change.
So only the queue that an admin chose waits, and no gang waits for a gang that no domain can hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.jobs.queues.registry import StrictQueues
from turnout.kube.node_capacity import MAX_ROOM, ClusterSnapshot, Rows
from turnout.kube.pod_shape import HostPort, PodShape
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.order import GangPosition, Order, OrderedSeat, SeatClass, position_of
from turnout.scheduler_ext.planner.request import FreeOf, GangPlan, PodsOnRows, RoomOf, drop_seats, is_planned
from turnout.topology.fabric import Fabric
from turnout.topology.switch_paths import path_text

PodOnRow = tuple[int, PodShape]


@dataclass(slots=True)
class StandingPlan:
    """A plan with the facts that it was made from."""

    plan: GangPlan
    position: GangPosition
    stated_terms: object  # the gang's statements on which the plan depends
    member_uids: frozenset[str]  # uids of the members that existed when the plan was made
    seats: InitVar[Sequence[OrderedSeat]]  # the seats of the plan
    seats_by_row: dict[int, list[OrderedSeat]] = field(default_factory=dict)  # the seats by row
    pods_by_order: dict[Order, list[PodOnRow]] = field(default_factory=dict)  # the seats by order

    def __post_init__(self, seats: Sequence[OrderedSeat]) -> None:
        for seat in seats:
            self.seats_by_row.setdefault(seat.host, []).append(seat)
            self.pods_by_order.setdefault(seat.order, []).append((seat.host, seat.shape))

    def seat_of(self, uid: str) -> OrderedSeat:
        """Return the seat of a member. Raises KeyError if it has none."""
        return next(seat for seat in self.seats_by_row[self.plan.hosts[uid]] if seat.uid == uid)

    def give(self, uids: Collection[str], position: GangPosition) -> None:
        """Take out the seats of members that hold their hosts now. position: of the gang without these seats."""
        for seat in [self.seat_of(uid) for uid in uids]:
            seats = self.seats_by_row[seat.host]
            seats.remove(seat)
            if not seats:
                del self.seats_by_row[seat.host]
            pods = self.pods_by_order[seat.order]
            del pods[next(at for at, (row, shape) in enumerate(pods) if row == seat.host and shape == seat.shape)]
        self.plan = drop_seats(self.plan, frozenset(uids))
        if position.first_order != self.position.first_order:
            self._move(position.first_order)
        self.position = position

    def _move(self, order: Order) -> None:
        """Give every seat this order."""
        for row, seats in self.seats_by_row.items():
            self.seats_by_row[row] = [OrderedSeat(order, each.host, each.shape, each.uid, each.rank) for each in seats]
        self.pods_by_order = {order: [pod for pods in self.pods_by_order.values() for pod in pods]}

    def growth_seats(self) -> list[PodOnRow]:
        """Return the growth seats: they give way to every other seat."""
        return [pod for order, pods in self.pods_by_order.items() if order[0] == SeatClass.GROWTH for pod in pods]


class StandingPlans:
    """Plans by gang, and the room that they reserve. Clear them when the snapshot's rows change their meaning."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._room = ReservedRoom(snapshot)
        self._by_gang: dict[GangKey, StandingPlan] = {}
        self._gangs_by_row: dict[int, set[GangKey]] = {}
        self._gangs_with_growth_seats: dict[GangKey, None] = {}  # gangs with growth seats

    def __iter__(self) -> Iterator[StandingPlan]:
        return iter(self._by_gang.values())

    def get(self, key: GangKey) -> StandingPlan | None:
        """Return a gang's plan, None when it has none."""
        return self._by_gang.get(key)

    def clear(self) -> None:
        """Remove every plan and its reserved room."""
        self._by_gang.clear()
        self._gangs_by_row.clear()
        self._gangs_with_growth_seats.clear()
        self._room.clear()

    def put(self, key: GangKey, stored: StandingPlan) -> None:
        """Store a plan in place of an earlier one, and reserve its room."""
        before = self._by_gang.get(key)
        old, new = (Counter(each.plan.reserved_pods() if each else ()) for each in (before, stored))
        self._room.release(list((old - new).elements()))
        self._room.reserve(list((new - old).elements()))
        self._by_gang[key] = stored
        self._gangs_with_growth_seats.pop(key, None)
        if stored.growth_seats():
            self._gangs_with_growth_seats[key] = None
        for row in stored.seats_by_row:
            self._gangs_by_row.setdefault(row, set()).add(key)
        for row in before.seats_by_row.keys() - stored.seats_by_row.keys() if before else ():
            self._forget_row(row, key)

    def give_seats(self, key: GangKey, uids: Collection[str], position: GangPosition) -> None:
        """Take the seats of members that hold their hosts now out of a plan, and release their room.

        position: of the gang without these seats.
        """
        stored = self._by_gang[key]
        pods = [(stored.plan.hosts[uid], stored.plan.shapes[uid]) for uid in uids]
        stored.give(uids, position)
        self._room.release(pods)
        for row, _ in pods:
            if row not in stored.seats_by_row and key in self._gangs_by_row.get(row, ()):
                self._forget_row(row, key)

    def remove(self, key: GangKey) -> list[PodOnRow]:
        """Remove a plan, and return the pods for which it reserved room."""
        stored = self._by_gang.pop(key)
        self._gangs_with_growth_seats.pop(key, None)
        pods = stored.plan.reserved_pods()
        self._room.release(pods)
        for row in stored.seats_by_row:
            self._forget_row(row, key)
        return pods

    def plans_with_growth_seats(self) -> Iterator[StandingPlan]:
        """Yield the plans that have growth seats."""
        return (self._by_gang[key] for key in self._gangs_with_growth_seats)

    def growth_seats_beside(self, key: GangKey) -> int:
        """Count the growth seats of the other gangs in a gang's namespace."""
        others = (other for other in self._gangs_with_growth_seats if other.namespace == key.namespace and other != key)
        return sum(len(self._by_gang[other].growth_seats()) for other in others)

    def __len__(self) -> int:
        return len(self._by_gang)

    def rows(self) -> Iterable[int]:
        """Return the rows on which any room is reserved."""
        return self._gangs_by_row.keys()

    def seats_on(self, row: int) -> list[tuple[OrderedSeat, GangKey]]:
        """Return the seats on a row with their gangs, the last in order first."""
        seats = [
            (seat, key) for key in self._gangs_by_row.get(row, ()) for seat in self._by_gang[key].seats_by_row[row]
        ]
        return sorted(seats, key=lambda entry: entry[0].order, reverse=True)

    def plan_of(self, key: GangKey) -> StandingPlan:
        """Return a gang's plan. Raises KeyError when it has none."""
        return self._by_gang[key]

    def surplus_on(self, row: int) -> list[tuple[OrderedSeat, GangKey]]:
        """Return the growth seats that must go, so that the row holds the other seats."""
        if not self.is_overdrawn(row):
            return []
        found: list[tuple[OrderedSeat, GangKey]] = []
        for seat, key in self.seats_on(row):
            if seat.order[0] != SeatClass.GROWTH or not self.is_overdrawn(row):
                break
            self._room.release([(row, seat.shape)])
            found.append((seat, key))
        self._room.reserve([(row, seat.shape) for seat, _ in found])
        return found

    def is_overdrawn(self, row: int) -> bool:
        """Return True if a row has less free room than is reserved on it."""
        return self._room.is_overdrawn(row)

    def shapes_without_room(self, row: int, shapes: Iterable[PodShape]) -> set[PodShape]:
        """Return the shapes for which a row has no room at all."""
        return {shape for shape in set(shapes) if self._snapshot.room_at(row, shape) < 1}

    def pods_behind(self, order: Order, with_growth_seats: bool = True) -> list[PodOnRow]:
        """Return the reserved pods whose room a gang with this order may use.

        with_growth_seats: also use growth seats of the gangs ahead.
        """
        found: list[PodOnRow] = []
        for stored in self:
            for other, pods in stored.pods_by_order.items():
                if other > order and (
                    with_growth_seats or other[0] != SeatClass.GROWTH or stored.position.first_order > order
                ):
                    found += pods
        return found

    def room_beside_plans(
        self, without: PodsOnRows, rows: Sequence[int] | None = None, extra_pods: PodsOnRows = ()
    ) -> RoomOf:
        """Return a function that gives the room beside the standing plans.

        without: reserved pods whose room may be used. rows: the only rows to use; None for all. extra_pods: pods that
        count as placed.
        """

        def room_of(shape: PodShape, besides: PodsOnRows) -> Rows:
            found = self._room.room(shape, without, [*extra_pods, *besides])
            return found if rows is None else restrict_to_rows(found, rows)

        return room_of

    def free_beside_plans(self, without: PodsOnRows, extra_pods: PodsOnRows = ()) -> FreeOf:
        """Return a function that gives how much each row has free beside the standing plans.

        without, extra_pods: as for `room_beside_plans`.
        """
        return lambda besides: self._room.free_sizes(without, [*extra_pods, *besides])

    def _forget_row(self, row: int, key: GangKey) -> None:
        """Remove a gang from the gangs with reserved room on a row."""
        gangs = self._gangs_by_row[row]
        gangs.discard(key)
        if not gangs:
            del self._gangs_by_row[row]


class ReservedRoom:
    """Sums of the room reserved on each row. The owner clears them when the snapshot's rows change their meaning."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self.clear()

    def clear(self) -> None:
        """Remove all reserved room, and use the current rows."""
        rows = len(self._snapshot.order)
        self._reserved: NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self._pods: Rows = np.zeros(rows, np.int32)
        self._ports: dict[int, Counter[HostPort]] = {}

    def reserve(self, pods: PodsOnRows) -> None:
        """Reserve room for some pods."""
        self._add(pods, 1)

    def release(self, pods: PodsOnRows) -> None:
        """Release the room of some pods, which must have been reserved before."""
        self._add(pods, -1)

    def room(self, shape: PodShape, without: PodsOnRows = (), besides: PodsOnRows = ()) -> Rows:
        """Return how many pods of this shape each row holds beside the reserved room, as a new table.

        without: reserved pods whose room may be used. besides: pods whose room may not be used, though it is not
        reserved.
        """
        room = self._snapshot.room(shape).copy()
        rows, reserved = self._use(without, besides)
        if not len(rows):
            return room
        room[rows] = np.minimum(room[rows], self._snapshot.fits_at(rows, shape, reserved))
        if shape.host_ports:
            self._block_ports(room, shape, without, besides)
        return room

    def free_sizes(self, without: PodsOnRows = (), besides: PodsOnRows = ()) -> NDArray[np.int64]:
        """Return how much each row has free beside the reserved room, in one number, as a new table.

        without, besides: as for `room`.
        """
        sizes = self._snapshot.free_sizes().copy()
        rows, reserved = self._use(without, besides)
        if len(rows):
            sizes[rows] = self._snapshot.free_sizes_at(rows, reserved)
        return sizes

    def _use(self, without: PodsOnRows, besides: PodsOnRows) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the rows with use beside the pods of the snapshot, and this use by row and resource."""
        rows = np.flatnonzero(self._pods)
        if besides:
            rows = np.union1d(rows, np.array([row for row, _ in besides], np.intp))
        if not len(rows):
            return rows, self._reserved
        self._widen()
        reserved = self._reserved[rows]
        for pods, sign in ((without, -1), (besides, 1)):
            by_shape: dict[PodShape, list[int]] = {}
            for row, other in pods:
                by_shape.setdefault(other, []).append(row)
            for other, at in by_shape.items():
                np.add.at(reserved, np.searchsorted(rows, at), sign * self._snapshot.vector(other))
        return rows, reserved

    def is_overdrawn(self, row: int) -> bool:
        """Return True if a row has less free room than is reserved on it, or a port is reserved twice.

        Only resources that are reserved on it count.
        """
        self._widen()
        if any(count > 1 for count in self._ports.get(row, {}).values()):
            return True
        reserved = self._reserved[row]
        return bool(np.any((self._snapshot.free_at(row) < reserved) & (reserved > 0)))

    def _add(self, pods: PodsOnRows, sign: int) -> None:
        """Add reservations of pods on rows, or remove them. sign: 1 or -1."""
        # First, since a new resource widens the rows.
        vectors = {shape: self._snapshot.vector(shape) for shape in {shape for _, shape in pods}}
        self._widen()
        for row, shape in pods:
            vector = vectors[shape]
            self._reserved[row, : len(vector)] += sign * vector
            self._pods[row] += sign
            for port in shape.host_ports:
                self._ports.setdefault(row, Counter())[port] += sign

    def _widen(self) -> None:
        """Add columns for resources that became known since; none of them is reserved."""
        missing = self._snapshot.width - self._reserved.shape[1]
        if missing:
            self._reserved = np.pad(self._reserved, ((0, 0), (0, missing)))

    def _block_ports(self, room: Rows, shape: PodShape, without: PodsOnRows, besides: PodsOnRows) -> None:
        """Set the room of rows to 0 where a host port of the shape is reserved.

        without, besides: reservations to leave out and to add.
        """
        used_ports = {row: Counter(ports) for row, ports in self._ports.items()}
        for row, other in without:
            used_ports.setdefault(row, Counter()).subtract(other.host_ports)
        for row, other in besides:
            used_ports.setdefault(row, Counter()).update(other.host_ports)
        for row, ports in used_ports.items():
            if any(ports[port] > 0 for port in shape.host_ports):
                room[row] = 0


def restrict_to_rows(room: Rows, rows: Iterable[int]) -> Rows:
    """Return the room limited to some rows; all other rows get 0."""
    most = np.zeros_like(room)
    most[np.fromiter(rows, np.intp)] = MAX_ROOM
    return np.minimum(room, most)


@dataclass(frozen=True, slots=True)
class _Reservation:
    rows: frozenset[int]
    priority: int


class HostReservations:
    """Hosts reserved for gangs whose victims leave: gangs of the same or a lower priority are not planned there.

    Clear them when rows change their meaning.
    """

    def __init__(self) -> None:
        self.release_count = 0  # raised whenever hosts are given back
        self._by_gang: dict[GangKey, _Reservation] = {}

    def reserve(self, gang: Gang, rows: Collection[int]) -> bool:
        """Reserve these rows for a gang, and no other rows. True if that is a change."""
        reservation = _Reservation(frozenset(rows), gang.priority)
        if self._by_gang.get(gang.key) == reservation:
            return False
        self.release(gang.key)
        self._by_gang[gang.key] = reservation
        return True

    def release(self, key: GangKey) -> None:
        """Release the hosts of a gang."""
        if self._by_gang.pop(key, None) is not None:
            self.release_count += 1

    def clear(self) -> None:
        """Release all hosts."""
        for key in list(self._by_gang):
            self.release(key)

    def rows_reserved_against(self, gang: Gang, rows: int) -> NDArray[np.bool_] | None:
        """Mark the rows that are reserved against a gang; None if there are none. rows: the number of rows."""
        marks: NDArray[np.bool_] | None = None
        for key, reservation in self._by_gang.items():
            if key != gang.key and reservation.priority >= gang.priority:
                marks = np.zeros(rows, np.bool_) if marks is None else marks
                marks[list(reservation.rows)] = True
        return marks


@dataclass(frozen=True, slots=True)
class KeptDomain:
    """A domain that strict order keeps for a gang."""

    key: GangKey
    first: int
    end: int
    description: str  # at root/.../switch, as the map names it


class StrictOrder:
    """The domains kept, by queue. Clear them when rows change their meaning."""

    def __init__(self, named: frozenset[str]) -> None:
        self.queues = StrictQueues(named)
        self._domains: dict[str, KeptDomain] = {}
        self._offer_version = 0  # of the snapshot when the domains were chosen last

    def queue_of(self, gang: Gang) -> str:
        """Return the queue of strict order that the gang is in; "" for none."""
        return self.queues.of(gang.key.namespace, gang.queue)

    def keep_for(self, view: ClusterView, gang: Gang) -> bool:
        """Keep a domain for a gang that found no room, unless its queue keeps one for a gang ahead of it.

        True if the queue keeps another domain now than before.
        """
        queue = self.queue_of(gang)
        if not queue or self._keeps_for_gang_ahead(view, queue, gang):
            return False
        before = self._domains.get(queue)
        if (domain := _choose_domain(view, gang)) is not None:
            self._domains[queue] = domain
        elif before is not None and before.key == gang.key:
            del self._domains[queue]
        return before != self._domains.get(queue)

    def _keeps_for_gang_ahead(self, view: ClusterView, queue: str, gang: Gang) -> bool:
        """Return True if a queue keeps a domain for a gang ahead of this one."""
        domain = self._domains.get(queue)
        oldest = None if domain is None else view.gangs.get(domain.key)
        return oldest is not None and position_of(view, oldest).first_order < position_of(view, gang).first_order

    def choose_again(self, view: ClusterView) -> bool:
        """Choose every domain again if nodes have changed. True if another domain is kept now, or none for a gang."""
        if self._offer_version == view.snapshot.offer_version:
            return False
        self._offer_version, before = view.snapshot.offer_version, dict(self._domains)
        for queue, domain in before.items():
            gang = view.gangs.get(domain.key)
            chosen = None if gang is None else _choose_domain(view, gang)
            if chosen is None:
                del self._domains[queue]
            else:
                self._domains[queue] = chosen
        return self._domains != before

    def release(self, key: GangKey) -> bool:
        """Release the domain of a gang. True if there was one."""
        queues = [queue for queue, domain in self._domains.items() if domain.key == key]
        for queue in queues:
            del self._domains[queue]
        return bool(queues)

    def domain_against(self, gang: Gang) -> KeptDomain | None:
        """Return the domain that is kept in the gang's queue for another gang; None if there is none."""
        domain = self._domains.get(self.queue_of(gang))
        return None if domain is None or domain.key == gang.key else domain

    def clear(self) -> None:
        """Release all domains."""
        self._domains.clear()


def rows_of_domain(domain: KeptDomain | None, rows: int) -> NDArray[np.bool_] | None:
    """Mark the rows of a domain that is kept."""
    if domain is None:
        return None
    marks = np.zeros(rows, np.bool_)
    marks[domain.first : domain.end] = True
    return marks


def add_kept_domain(domain: KeptDomain | None, detail: str) -> str:
    """Add to a refusal's detail which domain is kept, and for which gang."""
    if domain is None:
        return detail
    return f"{detail}; room {domain.description} is kept for {domain.key}, the oldest that waits in this queue"


def _choose_domain(view: ClusterView, gang: Gang) -> KeptDomain | None:
    """Return the domain to keep; None if no domain could hold the gang, or members of it run already."""
    members = [member for member in gang.living() if not member.no_opinion_reason or is_planned(member, gang)]
    if not members or not view.fabric.mapped_count or any(view.host_of(member) is not None for member in members):
        return None
    shape = max(members, key=lambda member: (member.gpus, member.shape.requests)).shape
    fabric = view.fabric
    could, now = np.where(fabric.mapped, view.snapshot.capacity(shape), 0), view.snapshot.room(shape)
    if (outside := view.levels.rows_outside(gang.levels)) is not None:
        could, now = np.where(outside, 0, could), np.where(outside, 0, now)
    widest = fabric.tiers if gang.tier is None else min(gang.tier, fabric.tiers)
    for tier in range(1, widest + 1):
        fits = np.add.reduceat(could, fabric.starts[tier], dtype=np.int64) >= max(1, gang.min_pods)
        if fits.any():
            free = np.add.reduceat(now, fabric.starts[tier], dtype=np.int64)
            switch = int(np.where(fits, free, -1).argmax())
            return KeptDomain(gang.key, *fabric.span(tier, switch), _place_text(fabric, tier, switch))
    return None


def _place_text(fabric: Fabric, tier: int, switch: int) -> str:
    """Return where a switch is, for a sentence."""
    path = fabric.names[tier][switch]
    return f"at {path_text(path if path[-1] else path[:-1])}" if any(path) else "on the whole map"
