"""The plans of all waiting gangs: kept between requests, redone for what changed.

A plan, once made, stands until a fact breaks it: a member went elsewhere, its room is gone, the gang itself changed.
Gangs are planned in one order: those that have started, then by priority, creation, UID. A gang that does not fit
whole takes no room. One that is ahead in that order may take room planned for those behind it, if nothing else
holds it. Started gangs come first, since a gang half placed helps nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jobs.gang import Dialect, GangKey
from kube.shape import PodShape
from kube.snapshot import Rows
from scheduler_ext.gang import Gang, rank_order
from scheduler_ext.gang_view import GangView
from scheduler_ext.member import Member
from scheduler_ext.place import GangPlan, Request, RoomOf, judged, place
from topology.model import Rule

Takes = dict[int, NDArray[np.int64]]
Order = tuple[bool, int, str, str]


@dataclass(frozen=True, slots=True)
class _Standing:
    """A plan with what it was made from. signature: all of the gang that the plan depends on, places apart."""

    plan: GangPlan
    order: Order
    signature: object
    takes: Mapping[int, NDArray[np.int64]]
    gains: int  # of the snapshot, when it was made: a refusal is looked at again once somebody gave room back


class Book:
    """Plans by gang. Give it the view's changes with `sync`, then ask."""

    def __init__(self, view: GangView, rule: Rule = Rule.ALL_TIERS) -> None:
        self.view = view
        self.rule = rule
        self.replanned = 0  # how many plans were made
        self.displaced = 0  # how many were withdrawn for a gang ahead, or for a fact
        self._standing: dict[GangKey, _Standing] = {}
        self._unplanned: dict[GangKey, Order] = {}
        self._taken: Takes = {}
        self._at: dict[int, set[GangKey]] = {}
        self._layout = -1

    # What is asked.

    def plan_of(self, key: GangKey, now_s: float) -> GangPlan | None:
        """The plan of one gang, after those of all gangs ahead of it. None when nobody of it waits."""
        self.sync(now_s)
        gang = self.view.gangs.get(key)
        if gang is None:
            return None
        order = self.order(gang)
        ahead = [(o, k) for k, o in self._unplanned.items() if o <= order]
        ahead += [(s.order, k) for k, s in self._standing.items() if self._may_fit_now(s) and s.order <= order]
        for _, each in sorted(ahead):
            self._plan(each)
        standing = self._standing.get(key)
        return standing.plan if standing else None

    def standing(self, key: GangKey) -> GangPlan | None:
        """The plan as it stands, without looking whether anything changed."""
        standing = self._standing.get(key)
        return standing.plan if standing is not None else None

    def plan_all(self, now_s: float) -> list[GangPlan]:
        """Every plan, made where it was missing, in order."""
        self.sync(now_s)
        again = [(s.order, k) for k, s in self._standing.items() if self._may_fit_now(s)]
        for _, key in sorted([*((o, k) for k, o in self._unplanned.items()), *again]):
            self._plan(key)
        return [s.plan for s in sorted(self._standing.values(), key=lambda s: s.order)]

    def try_place(self, request: Request, mask: Rows | None = None) -> GangPlan:
        """Place a gang beside all other plans without keeping the answer. mask: the most room that a row may have."""
        standing = self._standing.get(request.gang.key)
        besides = dict(self._taken)
        for row, vector in standing.takes.items() if standing else ():
            besides[row] = _sum(besides[row], -vector)
        room_of = self._room_besides(besides, mask)
        return place(self.view.fabric, request, room_of, self.view.snapshot.vector)

    def request_of(self, gang: Gang, without: Iterable[str] = ()) -> Request:
        """What the planner needs of a gang. without: uids whose assumed or wished place is not believed any more."""
        dropped = set(without)
        waiting: list[Member] = []
        held: list[tuple[Member, int]] = []
        wished: dict[str, int] = {}
        for member in gang.living():
            host = None if member.uid in dropped else self.view.host_of(member)
            if host is not None:
                held.append((member, host))
                continue
            if not member.waits:
                continue
            waiting.append(member)
            if member.ours and member.uid not in dropped:
                at = self.view.snapshot.row_of.get(member.nominated)
                if at is not None:
                    wished[member.uid] = at
        waiting.sort(key=rank_order)
        return Request(gang, tuple(waiting), tuple(held), wished, self.view.missing(gang), self.rule)

    def order(self, gang: Gang) -> Order:
        """Where a gang stands among all: the smaller, the earlier."""
        started = any(self.view.host_of(m) is not None for m in gang.members.values())
        created, uid = gang.age
        return (not started, -gang.priority, created, uid)

    # Keeping up.

    def sync(self, now_s: float) -> None:
        """Take in what changed since last time: gangs, layout, room."""
        self.view.settle(now_s)
        self.sync_room()

    def sync_room(self) -> None:
        """The same, once the view is settled."""
        view = self.view
        if view.layout != self._layout:
            self._layout = view.layout
            self._standing.clear()
            self._taken.clear()
            self._at.clear()
            view.touched.update(view.gangs)
        for key in view.touched:
            self._look_again(key)
        view.touched.clear()
        for row in view.snapshot.changed & self._at.keys():
            self._relieve(row, None)
        view.snapshot.changed.clear()

    def _look_again(self, key: GangKey) -> None:
        gang = self.view.gangs.get(key)
        standing = self._standing.get(key)
        alone = key.dialect == Dialect.ALONE.value  # placed when asked for; nothing is kept for it
        if gang is None or alone or not any(m.waits and judged(m, gang) for m in gang.members.values()):
            if standing is not None:
                self._withdraw(key)
            self._unplanned.pop(key, None)
            return
        if standing is not None:
            if standing.plan.refusal is None and standing.signature == self._signature(gang):
                kept = self._as_planned(gang, standing.plan)
                if kept is not None:
                    self._remove(key)
                    self._install(gang, kept)
                    return
            self._withdraw(key)
        self._unplanned[key] = self.order(gang)

    def _as_planned(self, gang: Gang, plan: GangPlan) -> GangPlan | None:
        """The plan less the members that by now hold just the host it gave them; None when one went elsewhere."""
        left: dict[str, int] = {}
        for uid, host in plan.hosts.items():
            holds = self.view.host_of(gang.members[uid])
            if holds is None:
                left[uid] = host
            elif holds != host:
                return None
        waiting = {m.uid for m in gang.members.values() if m.waits and self.view.host_of(m) is None}
        if len(plan.spare) != self.view.missing(gang) or any(
            u not in left for u in waiting if judged(gang.members[u], gang)
        ):
            return None
        return GangPlan(plan.key, left, plan.spare, plan.wanted, plan.tier, None, plan.shapes)

    def _signature(self, gang: Gang) -> object:
        members = frozenset((m.uid, m.shape) for m in gang.living())
        return members, gang.least, gang.total, gang.most, gang.tier, gang.multiple

    def _may_fit_now(self, standing: _Standing) -> bool:
        return standing.plan.refusal is not None and standing.gains != self.view.snapshot.gains

    # Planning.

    def _plan(self, key: GangKey) -> None:
        gang = self.view.gangs[key]
        self._unplanned.pop(key, None)
        self._remove(key)
        self.replanned += 1
        request = self.request_of(gang)
        vector = self.view.snapshot.vector
        plan = place(self.view.fabric, request, self._room_besides(self._taken), vector)
        if plan.refusal is not None and (ahead := self._taken_ahead(self.order(gang))) is not None:
            bolder = place(self.view.fabric, request, self._room_besides(ahead), vector)
            plan = bolder if bolder.refusal is None else plan
        self._install(gang, plan)
        for row in {host for host, _ in plan.takes()}:
            self._relieve(row, key)

    def _taken_ahead(self, order: Order) -> Takes | None:
        """What gangs ahead take; None when none behind takes anything, so that a second look is pointless."""
        ahead: Takes = {}
        behind = False
        for standing in self._standing.values():
            if standing.order > order:
                behind = behind or bool(standing.takes)
                continue
            for row, vector in standing.takes.items():
                ahead[row] = _sum(ahead[row], vector) if row in ahead else vector
        return ahead if behind else None

    def _room_besides(self, taken: Takes, mask: Rows | None = None) -> RoomOf:
        def room_of(shape: PodShape, more: Mapping[int, NDArray[np.int64]]) -> Rows:
            both: Takes = taken
            if more:
                both = dict(taken)
                for row, vector in more.items():
                    both[row] = _sum(both[row], vector) if row in both else vector
            room = self.view.snapshot.room_less(shape, both)
            if mask is not None:
                np.minimum(room, mask, out=room)
            return room

        return room_of

    def _install(self, gang: Gang, plan: GangPlan) -> None:
        takes: Takes = {}
        for row, shape in plan.takes():
            vector = self.view.snapshot.vector(shape)
            takes[row] = _sum(takes[row], vector) if row in takes else vector
        order = self.order(gang)
        self._standing[gang.key] = _Standing(plan, order, self._signature(gang), takes, self.view.snapshot.gains)
        for row, vector in takes.items():
            self._taken[row] = _sum(self._taken[row], vector) if row in self._taken else vector
            self._at.setdefault(row, set()).add(gang.key)

    def _remove(self, key: GangKey) -> None:
        standing = self._standing.pop(key, None)
        if standing is None:
            return
        for row, vector in standing.takes.items():
            here = self._at[row]
            here.discard(key)
            if here:
                self._taken[row] = _sum(self._taken[row], -vector)
            else:
                del self._at[row], self._taken[row]

    def _withdraw(self, key: GangKey) -> None:
        """Give a plan up, and with it the room it kept."""
        if self._standing[key].takes:
            self.view.snapshot.gains += 1
        self._remove(key)

    def _relieve(self, row: int, spared: GangKey | None) -> None:
        """Withdraw plans from a row that cannot hold them all, the last in order first."""
        snapshot = self.view.snapshot
        for key in sorted(self._at.get(row, ()), key=lambda k: self._standing[k].order, reverse=True):
            standing = self._standing[key]
            shapes = {shape for host, shape in standing.plan.takes() if host == row}
            lost = not all(snapshot.admitted(shape)[row] for shape in shapes)
            if key == spared or not (lost or snapshot.overdrawn(row, self._taken[row])):
                continue
            self.displaced += 1
            self._withdraw(key)
            self._unplanned[key] = standing.order
            if row not in self._taken:
                return


def _sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add vectors of which one may have been made before a resource became known."""
    return one + _wide(other, one) if len(one) >= len(other) else _wide(one, other) + other


def _wide(vector: NDArray[np.int64], like: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([vector, np.zeros(len(like) - len(vector), np.int64)]) if len(vector) < len(like) else vector
