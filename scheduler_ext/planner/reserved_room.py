"""The room that standing plans reserve.

`plans.py` decides which gang is planned when, and which gang gives way. `reservations.py` holds whole nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.node_capacity import MAX_ROOM, ClusterSnapshot, Rows
from turnout.kube.pod_shape import HostPort, PodShape
from turnout.scheduler_ext.planner.order import GangPosition, OrderedSeat, SeatClass, SeatOrder
from turnout.scheduler_ext.planner.request import FreeOf, GangPlan, PodsOnRows, RoomOf, drop_seats

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
    pods_by_order: dict[SeatOrder, list[PodOnRow]] = field(default_factory=dict)  # the seats by order

    def __post_init__(self, seats: Sequence[OrderedSeat]) -> None:
        for seat in seats:
            self.seats_by_row.setdefault(seat.host, []).append(seat)
            self.pods_by_order.setdefault(seat.order, []).append((seat.host, seat.shape))

    def seat_of(self, uid: str) -> OrderedSeat:
        """Return the seat of a member. Raises KeyError if it has none."""
        return next(seat for seat in self.seats_by_row[self.plan.hosts[uid]] if seat.uid == uid)

    def release_taken_seats(self, uids: Collection[str], position: GangPosition) -> None:
        """Remove the seats of members that hold their hosts now. Raises KeyError if one has no seat.

        uids: of the members. position: the gang's place in the order without these seats; if it differs, all other
        seats get its first order.
        """
        for seat in [self.seat_of(uid) for uid in uids]:
            seats = self.seats_by_row[seat.host]
            seats.remove(seat)
            if not seats:
                del self.seats_by_row[seat.host]
            pods = self.pods_by_order[seat.order]
            del pods[next(at for at, (row, shape) in enumerate(pods) if row == seat.host and shape == seat.shape)]
        self.plan = drop_seats(self.plan, frozenset(uids))
        if position.first_needed_key != self.position.first_needed_key:
            self._move(position.first_needed_key)
        self.position = position

    def _move(self, order: SeatOrder) -> None:
        """Give all seats of the plan this order."""
        for row, seats in self.seats_by_row.items():
            self.seats_by_row[row] = [OrderedSeat(order, each.host, each.shape, each.uid, each.rank) for each in seats]
        self.pods_by_order = {order: [pod for pods in self.pods_by_order.values() for pod in pods]}

    def growth_seats(self) -> list[PodOnRow]:
        """Return (row, shape) of each growth seat: these seats give way to every other seat."""
        return [pod for order, pods in self.pods_by_order.items() if order[0] == SeatClass.GROWTH for pod in pods]


class StandingPlans:
    """Plans by gang, and the room that they reserve. Call `clear` when a row of the snapshot gets another node."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        """Start without plans. snapshot: the nodes and their free room, read at each question."""
        self.room = ReservedRoom(snapshot)  # of all plans
        self.gangs_by_row: dict[int, set[GangKey]] = {}  # the gangs with reserved room on each row; read only
        self.with_growth_seats: dict[GangKey, StandingPlan] = {}  # the plans that have growth seats; read only
        self._by_gang: dict[GangKey, StandingPlan] = {}

    def __iter__(self) -> Iterator[StandingPlan]:
        return iter(self._by_gang.values())

    def get(self, key: GangKey) -> StandingPlan | None:
        """Return a gang's plan, None when it has none."""
        return self._by_gang.get(key)

    def clear(self) -> None:
        """Remove every plan and its reserved room."""
        self._by_gang.clear()
        self.gangs_by_row.clear()
        self.with_growth_seats.clear()
        self.room.clear()

    def put(self, key: GangKey, stored: StandingPlan) -> None:
        """Store a plan in place of an earlier one, and reserve its room."""
        before = self._by_gang.get(key)
        old, new = (Counter(each.plan.reserved_pods() if each else ()) for each in (before, stored))
        self.room.release(list((old - new).elements()))
        self.room.reserve(list((new - old).elements()))
        self._by_gang[key] = stored
        self.with_growth_seats.pop(key, None)
        if stored.growth_seats():
            self.with_growth_seats[key] = stored
        for row in stored.seats_by_row:
            self.gangs_by_row.setdefault(row, set()).add(key)
        for row in before.seats_by_row.keys() - stored.seats_by_row.keys() if before else ():
            _forget_row(self.gangs_by_row, row, key)

    def release_taken_seats(self, key: GangKey, uids: Collection[str], position: GangPosition) -> None:
        """Remove the seats of members that hold their hosts now from a plan, and release their room.

        uids: of the members. position: the gang's place in the order without these seats. Raises KeyError if the gang
        has no plan, or a member no seat.
        """
        stored = self._by_gang[key]
        pods = [(stored.plan.hosts[uid], stored.plan.shapes[uid]) for uid in uids]
        stored.release_taken_seats(uids, position)
        self.room.release(pods)
        for row, _ in pods:
            if row not in stored.seats_by_row and key in self.gangs_by_row.get(row, ()):
                _forget_row(self.gangs_by_row, row, key)

    def remove(self, key: GangKey) -> list[PodOnRow]:
        """Remove a plan, and return the pods for which it reserved room. Raises KeyError if the gang has no plan."""
        stored = self._by_gang.pop(key)
        self.with_growth_seats.pop(key, None)
        pods = stored.plan.reserved_pods()
        self.room.release(pods)
        for row in stored.seats_by_row:
            _forget_row(self.gangs_by_row, row, key)
        return pods

    def __len__(self) -> int:
        return len(self._by_gang)

    def seats_on(self, row: int) -> list[tuple[OrderedSeat, GangKey]]:
        """Return (seat, its gang) for each seat on a row, the last in order first; [] for a row without seats."""
        seats = [(seat, key) for key in self.gangs_by_row.get(row, ()) for seat in self._by_gang[key].seats_by_row[row]]
        return sorted(seats, key=lambda entry: entry[0].order, reverse=True)

    def plan_of(self, key: GangKey) -> StandingPlan:
        """Return a gang's plan. Raises KeyError when it has none."""
        return self._by_gang[key]

    def surplus_on(self, row: int) -> list[tuple[OrderedSeat, GangKey]]:
        """Return (growth seat, its gang) for those that must go, so that the row holds the other seats; the last one
        first.

        All growth seats of the row if even that is not enough. [] if all seats fit, or if none is a growth seat.
        Changes nothing.
        """
        if not self.room.is_overdrawn(row):
            return []
        found: list[tuple[OrderedSeat, GangKey]] = []
        for seat, key in self.seats_on(row):
            if seat.order[0] != SeatClass.GROWTH or not self.room.is_overdrawn(row):
                break
            self.room.release([(row, seat.shape)])
            found.append((seat, key))
        self.room.reserve([(row, seat.shape) for seat, _ in found])
        return found

    def pods_behind(self, order: SeatOrder, with_growth_seats: bool = True) -> list[PodOnRow]:
        """Return the reserved pods whose room a gang with this order may use: the seats of a later order.

        with_growth_seats: True to use also growth seats of the gangs ahead.
        """
        found: list[PodOnRow] = []
        for stored in self:
            for other, pods in stored.pods_by_order.items():
                if other > order and (
                    with_growth_seats or other[0] != SeatClass.GROWTH or stored.position.first_needed_key > order
                ):
                    found += pods
        return found


def _forget_row(gangs_by_row: dict[int, set[GangKey]], row: int, key: GangKey) -> None:
    """Remove a gang from the gangs with reserved room on a row, and the row with its last gang."""
    gangs = gangs_by_row[row]
    gangs.discard(key)
    if not gangs:
        del gangs_by_row[row]


def growth_seats_beside(key: GangKey, with_growth_seats: Mapping[GangKey, StandingPlan]) -> int:
    """Count the growth seats of the other gangs in a gang's namespace. with_growth_seats: the plans that have some."""
    others = (each for other, each in with_growth_seats.items() if other.namespace == key.namespace and other != key)
    return sum(len(each.growth_seats()) for each in others)


class ReservedRoom:
    """The total room reserved on each row, the index of a host in the snapshot.

    The owner calls `clear` when the snapshot's rows stand for other hosts.
    """

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

    def room(self, shape: PodShape, ignored_pods: PodsOnRows = (), extra_pods: PodsOnRows = ()) -> Rows:
        """Return how many pods of this shape each row holds beside the reserved room, as a new array.

        ignored_pods: reserved pods whose room may be used. extra_pods: further pods to subtract, which are not
        reserved.
        """
        room = self._snapshot.room(shape).copy()
        rows, reserved = self._use(ignored_pods, extra_pods)
        if not len(rows):
            return room
        room[rows] = np.minimum(room[rows], self._snapshot.resources.fits_at(rows, shape, reserved))
        if shape.host_ports:
            self._block_ports(room, shape, ignored_pods, extra_pods)
        return room

    def free_sizes(self, ignored_pods: PodsOnRows = (), extra_pods: PodsOnRows = ()) -> NDArray[np.int64]:
        """Return the free size of each row beside the reserved room: int64[rows], a new array.

        A free size sorts nodes, and is no amount: see FreeSizes. ignored_pods: reserved pods whose
        room counts as free. extra_pods: further pods to subtract, which are not reserved.
        """
        sizes = self._snapshot.sizes.all().copy()
        rows, reserved = self._use(ignored_pods, extra_pods)
        if len(rows):
            sizes[rows] = self._snapshot.sizes.at(rows, reserved)
        return sizes

    def _use(self, ignored_pods: PodsOnRows, extra_pods: PodsOnRows) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return (the rows on which room is reserved, ascending, the reserved amounts by such row and resource).

        Without such rows the second array means nothing. ignored_pods: reserved pods that are left out. extra_pods:
        further pods that are included, which are not reserved.
        """
        rows = np.flatnonzero(self._pods)
        if extra_pods:
            rows = np.union1d(rows, np.array([row for row, _ in extra_pods], np.intp))
        if not len(rows):
            return rows, self._reserved
        for _, other in (*ignored_pods, *extra_pods):
            self._snapshot.resources.add_columns(other)  # first, because a new resource widens the rows
        self._widen()
        reserved = self._reserved[rows]
        for pods, sign in ((ignored_pods, -1), (extra_pods, 1)):
            by_shape: dict[PodShape, list[int]] = {}
            for row, other in pods:
                by_shape.setdefault(other, []).append(row)
            for other, at in by_shape.items():
                np.add.at(reserved, np.searchsorted(rows, at), sign * self._snapshot.resources.pod_amounts(other))
        return rows, reserved

    def is_overdrawn(self, row: int) -> bool:
        """Return True if more of a resource is reserved on the row than is free, or a host port is reserved twice.

        Resources without a reservation are ignored.
        """
        self._widen()
        if any(count > 1 for count in self._ports.get(row, {}).values()):
            return True
        reserved = self._reserved[row]
        return bool(((self._snapshot.resources.free_at(row) < reserved) & (reserved > 0)).any())

    def _add(self, pods: PodsOnRows, sign: int) -> None:
        """Add reservations of pods on rows, or remove them. sign: 1 to add, -1 to remove."""
        # First, since a new resource widens the rows.
        vectors = {shape: self._snapshot.resources.pod_amounts(shape) for shape in {shape for _, shape in pods}}
        self._widen()
        for row, shape in pods:
            vector = vectors[shape]
            self._reserved[row, : len(vector)] += sign * vector
            self._pods[row] += sign
            for port in shape.host_ports:
                self._ports.setdefault(row, Counter())[port] += sign

    def _widen(self) -> None:
        """Add columns for resources that became known since; none of them is reserved."""
        missing = len(self._snapshot.resources.column_of) - self._reserved.shape[1]
        if missing:
            self._reserved = np.pad(self._reserved, ((0, 0), (0, missing)))

    def _block_ports(self, room: Rows, shape: PodShape, ignored_pods: PodsOnRows, extra_pods: PodsOnRows) -> None:
        """Set `room` to 0 on rows where a host port of the shape is reserved.

        ignored_pods: reserved pods that are left out. extra_pods: further pods that are included.
        """
        used_ports = {row: Counter(ports) for row, ports in self._ports.items()}
        for row, other in ignored_pods:
            used_ports.setdefault(row, Counter()).subtract(other.host_ports)
        for row, other in extra_pods:
            used_ports.setdefault(row, Counter()).update(other.host_ports)
        for row, ports in used_ports.items():
            if any(ports[port] > 0 for port in shape.host_ports):
                room[row] = 0


def room_beside_plans(
    reserved: ReservedRoom, without: PodsOnRows, rows: Sequence[int] | None = None, extra_pods: PodsOnRows = ()
) -> RoomOf:
    """Return a room function that counts the room beside the standing plans.

    reserved: the room of the plans. without: reserved pods whose room may be used. rows: the only rows to use; None for
    all. extra_pods: pods that count as placed.
    """

    def room_of(shape: PodShape, present_pods: PodsOnRows) -> Rows:
        found = reserved.room(shape, without, [*extra_pods, *present_pods])
        return found if rows is None else restrict_to_rows(found, rows)

    return room_of


def free_beside_plans(reserved: ReservedRoom, without: PodsOnRows, extra_pods: PodsOnRows = ()) -> FreeOf:
    """Return a function that gives the free size of each row beside the standing plans, as `ReservedRoom.free_sizes`.

    reserved: the room of the plans. without: reserved pods whose room may be used. extra_pods: pods that count as
    placed.
    """
    return lambda present_pods: reserved.free_sizes(without, [*extra_pods, *present_pods])


def shapes_without_room(snapshot: ClusterSnapshot, row: int, shapes: Iterable[PodShape]) -> set[PodShape]:
    """Return those of the shapes for which a row has no room for one more pod, even without the standing plans."""
    return {shape for shape in set(shapes) if snapshot.room_at(row, shape) < 1}


def restrict_to_rows(room: Rows, rows: Iterable[int]) -> Rows:
    """Return a copy of the room in which all rows but `rows` have 0."""
    allowed = np.zeros_like(room)
    allowed[np.fromiter(rows, np.intp)] = MAX_ROOM
    return np.minimum(room, allowed)
