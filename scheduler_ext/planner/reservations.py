"""The plans that stand, seat by seat: what room they keep on which row, and what of it another gang may use.

Who is planned when, and who has to give way, is decided in plan_cache.py.
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
from turnout.scheduler_ext.planner.place_gang import GangPlan, RoomOf

Take = tuple[int, PodShape]


@dataclass(slots=True)
class Kept:
    """A plan with what it was made from. signature: all of the gang that the plan depends on, members apart.

    known: uids of the members that there were. claims, by_row and takes: its seats, also by row and by order.
    """

    plan: GangPlan
    at: Standing
    signature: object
    known: frozenset[str]
    claims: list[Claim]
    by_row: dict[int, list[Claim]] = field(default_factory=dict)
    takes: dict[Order, list[Take]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for claim in self.claims:
            self.by_row.setdefault(claim.host, []).append(claim)
            self.takes.setdefault(claim.order, []).append((claim.host, claim.shape))

    def hoped(self) -> list[Take]:
        """Return the seats that stand in nobody's way."""
        return [take for order, takes in self.takes.items() if order[0] == Level.HOPED for take in takes]


class Reservations:
    """Plans by gang, and the room that they keep. To be cleared when the snapshot's rows change their meaning."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._reserved = Reserved(snapshot)
        self._by_gang: dict[GangKey, Kept] = {}
        self._at: dict[int, set[GangKey]] = {}

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._by_gang.values())

    def get(self, key: GangKey) -> Kept | None:
        """Return a gang's plan, None when it has none."""
        return self._by_gang.get(key)

    def clear(self) -> None:
        """Keep nothing for anybody."""
        self._by_gang.clear()
        self._at.clear()
        self._reserved.clear()

    def put(self, key: GangKey, kept: Kept) -> None:
        """Keep a plan in place of the one before, and room for it."""
        before = self._by_gang.get(key)
        old, new = (Counter(each.plan.takes() if each else ()) for each in (before, kept))
        self._reserved.give_back(list((old - new).elements()))
        self._reserved.keep(list((new - old).elements()))
        self._by_gang[key] = kept
        for row in kept.by_row:
            self._at.setdefault(row, set()).add(key)
        for row in before.by_row.keys() - kept.by_row.keys() if before else ():
            self._leave(row, key)

    def remove(self, key: GangKey) -> list[Take]:
        """Strike a plan, and return the room that it kept."""
        kept = self._by_gang.pop(key)
        takes = kept.plan.takes()
        self._reserved.give_back(takes)
        for row in kept.by_row:
            self._leave(row, key)
        return takes

    def rows(self) -> Iterable[int]:
        """Return the rows on which anything is kept."""
        return self._at.keys()

    def on(self, row: int) -> list[tuple[Claim, GangKey]]:
        """Return the seats on a row and whose they are, the last in order first."""
        here = [(claim, key) for key in self._at.get(row, ()) for claim in self._by_gang[key].by_row[row]]
        return sorted(here, key=lambda each: each[0].order, reverse=True)

    def overdrawn(self, row: int) -> bool:
        """Is less free in a row than is kept there?"""
        return self._reserved.overdrawn(row)

    def unfit(self, row: int, shapes: Iterable[PodShape]) -> set[PodShape]:
        """Return the shapes of which a row holds no pod at all."""
        return {shape for shape in set(shapes) if self._snapshot.room_at(row, shape) < 1}

    def open_to(self, order: Order, hoped: bool = True) -> list[Take]:
        """Return what one of this order may use. hoped: also what gangs ahead of it only hope for."""
        found: list[Take] = []
        for kept in self:
            for other, takes in kept.takes.items():
                if other > order and (hoped or other[0] != Level.HOPED or kept.at.order > order):
                    found += takes
        return found

    def room(self, without: Pods, rows: Sequence[int] | None = None, beside: Pods = ()) -> RoomOf:
        """Return the room beside what plans keep. without: kept, but usable. rows: the only ones. beside: taken too."""

        def room_of(shape: PodShape, besides: Pods) -> Rows:
            found = self._reserved.room(shape, without, [*beside, *besides])
            return found if rows is None else masked(found, rows)

        return room_of

    def _leave(self, row: int, key: GangKey) -> None:
        here = self._at[row]
        here.discard(key)
        if not here:
            del self._at[row]
