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
from turnout.scheduler_ext.planner.claims import Claim, Level, Order, Standing
from turnout.scheduler_ext.planner.node_reservations import Pods, Reserved, masked
from turnout.scheduler_ext.planner.placing.model import GangPlan, RoomOf

Take = tuple[int, PodShape]


@dataclass(slots=True)
class CachedPlan:
    """A plan with what it was made from."""

    plan: GangPlan
    at: Standing
    signature: object  # everything of the gang that the plan depends on, except the members
    known: frozenset[str]  # uids of the members that existed
    claims: list[Claim]  # the seats of the plan
    by_row: dict[int, list[Claim]] = field(default_factory=dict)  # the seats by row
    takes: dict[Order, list[Take]] = field(default_factory=dict)  # the seats by order

    def __post_init__(self) -> None:
        for claim in self.claims:
            self.by_row.setdefault(claim.host, []).append(claim)
            self.takes.setdefault(claim.order, []).append((claim.host, claim.shape))

    def hoped(self) -> list[Take]:
        """Return the seats above the min for members to come: they give way to every other claim."""
        return [take for order, takes in self.takes.items() if order[0] == Level.HOPED for take in takes]


class Reservations:
    """Plans by gang, and the room that they keep. Clear them when the snapshot's rows change their meaning."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._reserved = Reserved(snapshot)
        self._by_gang: dict[GangKey, CachedPlan] = {}
        self._at: dict[int, set[GangKey]] = {}
        self._hoping: dict[GangKey, None] = {}  # gangs with seats that stand in nobody's way

    def __iter__(self) -> Iterator[CachedPlan]:
        return iter(self._by_gang.values())

    def get(self, key: GangKey) -> CachedPlan | None:
        """Return a gang's plan, None when it has none."""
        return self._by_gang.get(key)

    def clear(self) -> None:
        """Remove every plan and the room that it keeps."""
        self._by_gang.clear()
        self._at.clear()
        self._hoping.clear()
        self._reserved.clear()

    def put(self, key: GangKey, kept: CachedPlan) -> None:
        """Keep a plan in place of an earlier one, and reserve its room."""
        before = self._by_gang.get(key)
        old, new = (Counter(each.plan.takes() if each else ()) for each in (before, kept))
        self._reserved.give_back(list((old - new).elements()))
        self._reserved.keep(list((new - old).elements()))
        self._by_gang[key] = kept
        self._hoping.pop(key, None)
        if kept.hoped():
            self._hoping[key] = None
        for row in kept.by_row:
            self._at.setdefault(row, set()).add(key)
        for row in before.by_row.keys() - kept.by_row.keys() if before else ():
            self._leave(row, key)

    def remove(self, key: GangKey) -> list[Take]:
        """Remove a plan, and return the room that it kept."""
        kept = self._by_gang.pop(key)
        self._hoping.pop(key, None)
        takes = kept.plan.takes()
        self._reserved.give_back(takes)
        for row in kept.by_row:
            self._leave(row, key)
        return takes

    def hoping(self) -> Iterator[CachedPlan]:
        """Yield the plans that have seats above the min for members to come."""
        return (self._by_gang[key] for key in self._hoping)

    def hoped_in(self, key: GangKey) -> int:
        """Count such seats of the other gangs in a gang's namespace."""
        others = (other for other in self._hoping if other.namespace == key.namespace and other != key)
        return sum(len(self._by_gang[other].hoped()) for other in others)

    def __len__(self) -> int:
        return len(self._by_gang)

    def rows(self) -> Iterable[int]:
        """Return the rows on which anything is kept."""
        return self._at.keys()

    def on(self, row: int) -> list[tuple[Claim, GangKey]]:
        """Return the seats on a row with their gangs, the last in order first."""
        here = [(claim, key) for key in self._at.get(row, ()) for claim in self._by_gang[key].by_row[row]]
        return sorted(here, key=lambda each: each[0].order, reverse=True)

    def of(self, key: GangKey) -> CachedPlan:
        """Return a gang's plan. Raises KeyError when it has none."""
        return self._by_gang[key]

    def surplus_on(self, row: int) -> list[tuple[Claim, GangKey]]:
        """Return the seats for members to come that must go, so that the row holds the other seats."""
        if not self.overdrawn(row):
            return []
        found: list[tuple[Claim, GangKey]] = []
        for claim, key in self.on(row):
            if claim.order[0] != Level.HOPED or not self.overdrawn(row):
                break
            self._reserved.give_back([(row, claim.shape)])
            found.append((claim, key))
        self._reserved.keep([(row, claim.shape) for claim, _ in found])
        return found

    def overdrawn(self, row: int) -> bool:
        """True if a row has less free than is kept there."""
        return self._reserved.overdrawn(row)

    def unfit(self, row: int, shapes: Iterable[PodShape]) -> set[PodShape]:
        """Return the shapes of which a row holds no pod at all."""
        return {shape for shape in set(shapes) if self._snapshot.room_at(row, shape) < 1}

    def open_to(self, order: Order, hoped: bool = True) -> list[Take]:
        """Return the seats whose room a gang with this order may use.

        hoped: also use seats that gangs ahead of it keep above the min for members to come.
        """
        found: list[Take] = []
        for kept in self:
            for other, takes in kept.takes.items():
                if other > order and (hoped or other[0] != Level.HOPED or kept.at.order > order):
                    found += takes
        return found

    def room(self, without: Pods, rows: Sequence[int] | None = None, beside: Pods = ()) -> RoomOf:
        """Return a function that gives the room beside what plans keep.

        without: kept seats that may be used. rows: the only rows to use. Pods given as `beside` are counted as placed.
        """

        def room_of(shape: PodShape, besides: Pods) -> Rows:
            found = self._reserved.room(shape, without, [*beside, *besides])
            return found if rows is None else masked(found, rows)

        return room_of

    def _leave(self, row: int, key: GangKey) -> None:
        here = self._at[row]
        here.discard(key)
        if not here:
            del self._at[row]
