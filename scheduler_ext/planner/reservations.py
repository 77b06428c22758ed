"""Store the standing plans seat by seat: the room that they keep on each row, and what of it another gang may use.

plan_cache.py decides which gang is planned when, and which has to give way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from turnout.jobs.gang import GangKey
from turnout.kube.node_capacity import ClusterSnapshot, Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.planner.claims import GangPosition, Order, OrderedSeat, SeatClass
from turnout.scheduler_ext.planner.node_reservations import PodsOnRows, ReservedRoom, restrict_to_rows
from turnout.scheduler_ext.planner.placing.model import GangPlan, RoomOf

PodOnRow = tuple[int, PodShape]


@dataclass(slots=True)
class StandingPlan:
    """A plan with what it was made from."""

    plan: GangPlan
    position: GangPosition
    stated_terms: object  # everything of the gang that the plan depends on, except the members
    member_uids: frozenset[str]  # uids of the members that existed
    seats: list[OrderedSeat]  # the seats of the plan
    seats_by_row: dict[int, list[OrderedSeat]] = field(default_factory=dict)  # the seats by row
    pods_by_order: dict[Order, list[PodOnRow]] = field(default_factory=dict)  # the seats by order

    def __post_init__(self) -> None:
        for seat in self.seats:
            self.seats_by_row.setdefault(seat.host, []).append(seat)
            self.pods_by_order.setdefault(seat.order, []).append((seat.host, seat.shape))

    def growth_seats(self) -> list[PodOnRow]:
        """Return the seats above the min for members to come: they give way to every other claim."""
        return [pod for order, pods in self.pods_by_order.items() if order[0] == SeatClass.GROWTH for pod in pods]


class StandingPlans:
    """Plans by gang, and the room that they keep. Clear them when the snapshot's rows change their meaning."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._room = ReservedRoom(snapshot)
        self._by_gang: dict[GangKey, StandingPlan] = {}
        self._gangs_by_row: dict[int, set[GangKey]] = {}
        self._gangs_with_growth_seats: dict[GangKey, None] = {}  # gangs with seats that stand in nobody's way

    def __iter__(self) -> Iterator[StandingPlan]:
        return iter(self._by_gang.values())

    def get(self, key: GangKey) -> StandingPlan | None:
        """Return a gang's plan, None when it has none."""
        return self._by_gang.get(key)

    def clear(self) -> None:
        """Remove every plan and the room that it keeps."""
        self._by_gang.clear()
        self._gangs_by_row.clear()
        self._gangs_with_growth_seats.clear()
        self._room.clear()

    def put(self, key: GangKey, stored: StandingPlan) -> None:
        """Keep a plan in place of an earlier one, and reserve its room."""
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

    def remove(self, key: GangKey) -> list[PodOnRow]:
        """Remove a plan, and return the room that it kept."""
        stored = self._by_gang.pop(key)
        self._gangs_with_growth_seats.pop(key, None)
        pods = stored.plan.reserved_pods()
        self._room.release(pods)
        for row in stored.seats_by_row:
            self._forget_row(row, key)
        return pods

    def plans_with_growth_seats(self) -> Iterator[StandingPlan]:
        """Yield the plans that have seats above the min for members to come."""
        return (self._by_gang[key] for key in self._gangs_with_growth_seats)

    def growth_seats_beside(self, key: GangKey) -> int:
        """Count such seats of the other gangs in a gang's namespace."""
        others = (other for other in self._gangs_with_growth_seats if other.namespace == key.namespace and other != key)
        return sum(len(self._by_gang[other].growth_seats()) for other in others)

    def __len__(self) -> int:
        return len(self._by_gang)

    def rows(self) -> Iterable[int]:
        """Return the rows on which anything is kept."""
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
        """Return the seats for members to come that must go, so that the row holds the other seats."""
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
        """True if a row has less free than is kept there."""
        return self._room.is_overdrawn(row)

    def shapes_without_room(self, row: int, shapes: Iterable[PodShape]) -> set[PodShape]:
        """Return the shapes of which a row holds no pod at all."""
        return {shape for shape in set(shapes) if self._snapshot.room_at(row, shape) < 1}

    def pods_behind(self, order: Order, with_growth_seats: bool = True) -> list[PodOnRow]:
        """Return the seats whose room a gang with this order may use.

        with_growth_seats: also use seats that gangs ahead of it keep above the min for members to come.
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
        """Return a function that gives the room beside what plans keep.

        without: reserved pods whose room may be used. rows: the only rows to use; None for all. extra_pods: pods that
        are counted as placed.
        """

        def room_of(shape: PodShape, besides: PodsOnRows) -> Rows:
            found = self._room.room(shape, without, [*extra_pods, *besides])
            return found if rows is None else restrict_to_rows(found, rows)

        return room_of

    def _forget_row(self, row: int, key: GangKey) -> None:
        gangs = self._gangs_by_row[row]
        gangs.discard(key)
        if not gangs:
            del self._gangs_by_row[row]
