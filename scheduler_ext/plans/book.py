"""The plans of all waiting gangs: kept between requests, redone for what changed.

Gangs are planned in one order: those that have started, then by priority, those that we nominated, creation (within a
second, by resourceVersion), UID. Each is planned as if only those ahead of it had plans, and takes what it needs from
those behind; so what a gang gets does not depend on who was asked about first. Started gangs come first, since a gang
half placed helps nobody; nominated ones, since a newcomer of the same second must not move what is written already.
One that does not fit whole takes no room. A plan, once made, stands until a fact breaks it: a member went elsewhere,
its room is gone, the gang changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from jobs.gang import Dialect, GangKey
from kube.reserve import Pods, Reserved, masked
from kube.shape import PodShape
from kube.snapshot import Rows
from scheduler_ext.plans.place import GangPlan, Request, judged_members, place, whole_ask
from scheduler_ext.seen.gang import Gang, rank_order
from scheduler_ext.seen.gang_view import GangView
from scheduler_ext.seen.member import Member
from topology.model import Refusal, Rule

Order = tuple[bool, int, bool, str, int, str]


@dataclass(frozen=True, slots=True)
class _Standing:
    """A plan with what it was made from. signature: all of the gang that the plan depends on, places apart."""

    plan: GangPlan
    order: Order
    signature: object


class Book:
    """Plans by gang. Give it the view's changes with `sync`, then ask. Lone pods are not in it."""

    def __init__(self, view: GangView, rule: Rule = Rule.ALL_TIERS, hold_incomplete: bool = False) -> None:
        self.view = view
        self.rule = rule
        self.hold_incomplete = hold_incomplete
        self.replanned = 0  # how many plans were made
        self.displaced = 0  # how many were withdrawn for a gang ahead, or for a fact
        self._standing: dict[GangKey, _Standing] = {}
        self._unplanned: dict[GangKey, Order] = {}
        self._refused: set[GangKey] = set()  # of those standing: to be looked at again once room was given back
        self._hopeless: dict[object, tuple[Order, Refusal]] = {}  # asks that found no room, and for whom first
        self._reserved = Reserved(view.snapshot)
        self._at: dict[int, set[GangKey]] = {}
        self._gains = -1
        self._layout = -1

    # What is asked.

    def plan_of(self, key: GangKey, now_s: float) -> GangPlan | None:
        """The plan of one gang, after those of all gangs ahead of it. None when nobody of it waits for one."""
        self.sync(now_s)
        gang = self.view.gangs.get(key)
        if gang is None:
            return None
        self._plan_until(self.order(gang))
        return self.standing(key)

    def standing(self, key: GangKey) -> GangPlan | None:
        """The plan as it stands, without looking whether anything changed."""
        standing = self._standing.get(key)
        return standing.plan if standing is not None else None

    def plan_all(self, now_s: float) -> list[GangPlan]:
        """Every plan, made where it was missing, in order."""
        self.sync(now_s)
        self._plan_until(None)
        return [s.plan for s in sorted(self._standing.values(), key=lambda s: s.order)]

    def try_place(self, request: Request, among: Iterable[int] | None = None) -> GangPlan:
        """Place a gang beside all other plans without keeping the answer. among: the only rows that may be used."""
        standing = self._standing.get(request.gang.key)
        own = standing.plan.takes() if standing else []
        rows = None if among is None else list(among)

        def room_of(shape: PodShape, besides: Pods) -> Rows:
            room = self._reserved.room(shape, own, besides)
            return room if rows is None else masked(room, rows)

        return place(self.view.fabric, request, room_of)

    def request_of(self, gang: Gang, without: Iterable[str] = ()) -> Request:
        """What the planner needs of a gang. without: uids whose assumed or wished place is not believed any more."""
        dropped = set(without)
        waiting: list[Member] = []
        held: list[tuple[Member, int]] = []
        wished: dict[str, int] = {}
        for member in judged_members(gang):
            if member.leaving:
                continue
            host = None if member.uid in dropped else self.view.host_of(member)
            if host is not None:
                held.append((member, host))
                continue
            if not member.waits:
                continue
            waiting.append(member)
            if (wish := self.view.wish_of(member)) and member.uid not in dropped:
                at = self.view.snapshot.row_of.get(wish)
                if at is not None:
                    wished[member.uid] = at
        waiting.sort(key=rank_order)
        held.sort(key=lambda each: rank_order(each[0]))
        return Request(gang, tuple(waiting), tuple(held), wished, self.view.missing(gang), self.rule)

    def started(self, gang: Gang) -> bool:
        """Does any member that is judged hold a host?"""
        return any(self.view.host_of(m) is not None for m in judged_members(gang))

    def order(self, gang: Gang) -> Order:
        """Where a gang stands among all: the smaller, the earlier."""
        nominated = any(m.waits and self.view.wish_of(m) for m in gang.members.values())
        return (not self.started(gang), -gang.priority, not nominated, *gang.age)

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
            for kept in (self._standing, self._refused, self._at, self._unplanned):
                kept.clear()
            self._reserved.clear()
            view.touched.update(view.gangs)
        for key in view.touched:
            self._look_again(key)
        view.touched.clear()
        for row in view.snapshot.changed & self._at.keys():
            self._relieve(row)
        view.snapshot.changed.clear()
        if view.snapshot.gains != self._gains:
            self._gains = view.snapshot.gains
            self._hope()

    def _look_again(self, key: GangKey) -> None:
        gang, standing = self.view.gangs.get(key), self._standing.get(key)
        if gang is None or not self._wants_plan(gang):
            if standing is not None:
                self._withdraw(key)
            self._unplanned.pop(key, None)
            return
        if standing is not None:
            if standing.plan.refusal is None and standing.signature == self._signature(gang):
                left = self._as_planned(gang, standing.plan)
                if left is not None:
                    self._keep_only(gang, standing, left)
                    return
            self._withdraw(key)
        self._unplanned[key] = self.order(gang)

    def _wants_plan(self, gang: Gang) -> bool:
        """Does anybody of it wait for a plan? Not of a lone pod, and not of a gang held for members that never come."""
        if gang.key.dialect == Dialect.ALONE.value or not any(m.waits for m in judged_members(gang)):
            return False
        return not self.hold_incomplete or self.view.missing(gang) > 0 or len(gang.living()) >= gang.least

    def _as_planned(self, gang: Gang, plan: GangPlan) -> dict[str, int] | None:
        """Who still waits for the host that the plan gave; None when somebody went elsewhere or has no place."""
        left: dict[str, int] = {}
        for member in judged_members(gang):
            if member.leaving:
                continue
            holds, planned = self.view.host_of(member), plan.hosts.get(member.uid)
            if holds is None and planned is None:
                return None
            if holds is None and planned is not None:
                left[member.uid] = planned
            elif planned is not None and holds != planned:
                return None
        return left if len(plan.spare) == self.view.missing(gang) else None

    def _keep_only(self, gang: Gang, standing: _Standing, left: dict[str, int]) -> None:
        """Let the members that reached their host take its room as facts do, and keep the rest of the plan."""
        plan = standing.plan
        self._reserved.give_back([(host, plan.shapes[uid]) for uid, host in plan.hosts.items() if uid not in left])
        rest = GangPlan(plan.key, left, plan.spare, plan.wanted, plan.tier, None, plan.shapes)
        for host in {host for host, _ in plan.takes()} - {host for host, _ in rest.takes()}:
            self._leave(host, gang.key)
        self._standing[gang.key] = _Standing(rest, self.order(gang), standing.signature)

    def _signature(self, gang: Gang) -> object:
        members = frozenset((m.uid, m.shape) for m in gang.living())
        return members, gang.least, gang.total, gang.most, gang.tier, gang.multiple

    # Planning.

    def _plan_until(self, last: Order | None) -> None:
        """Plan whoever has no plan, in order, up to a place in the order; None for everybody."""
        while due := [(order, key) for key, order in self._unplanned.items() if last is None or order <= last]:
            heapq.heapify(due)
            while due:
                _, key = heapq.heappop(due)
                if key not in self._unplanned:
                    continue
                for moved in self._plan(key):
                    if last is None or self._unplanned[moved] <= last:
                        heapq.heappush(due, (self._unplanned[moved], moved))

    def _plan(self, key: GangKey) -> set[GangKey]:
        """Plan one gang, and name those that had to make room for it."""
        gang = self.view.gangs[key]
        order = self._unplanned.pop(key)
        if key in self._standing:
            self._remove(key)
        plan = self._placed(gang, order)
        self._standing[key] = _Standing(plan, order, self._signature(gang))
        if plan.refusal is not None:
            self._refused.add(key)
        takes = plan.takes()
        self._reserved.keep(takes)
        rows = {row for row, _ in takes}
        for row in rows:
            self._at.setdefault(row, set()).add(key)
        return {moved for row in rows for moved in self._relieve(row)}

    def _placed(self, gang: Gang, order: Order) -> GangPlan:
        """Place a gang in the room that those ahead of it leave; what failed for one ahead fails for it."""
        request = self.request_of(gang)
        ask = None if request.held or request.wished else whole_ask(request)
        if ask is not None and (failed := self._hopeless.get(ask)) is not None and failed[0] <= order:
            return GangPlan(gang.key, refusal=failed[1])
        behind = [take for s in self._standing.values() if s.order > order for take in s.plan.takes()]

        def room_of(shape: PodShape, besides: Pods) -> Rows:
            return self._reserved.room(shape, behind, besides)

        self.replanned += 1
        plan = place(self.view.fabric, request, room_of)
        if ask is not None and plan.refusal is not None and not plan.hosts:
            self._hopeless[ask] = (order, plan.refusal)
        return plan

    def _hope(self) -> None:
        """Room was given back: whoever was refused is to be planned again."""
        self._hopeless.clear()
        for key in self._refused:
            self._unplanned[key] = self._standing[key].order

    def _remove(self, key: GangKey) -> None:
        """Strike a plan, and with it the room it kept."""
        standing = self._standing.pop(key)
        self._refused.discard(key)
        takes = standing.plan.takes()
        self._reserved.give_back(takes)
        for row in {row for row, _ in takes}:
            self._leave(row, key)
        if takes:
            self._hopeless.clear()

    def _leave(self, row: int, key: GangKey) -> None:
        here = self._at[row]
        here.discard(key)
        if not here:
            del self._at[row]

    def _withdraw(self, key: GangKey) -> None:
        """Give a plan up; whoever was refused may hope for its room."""
        takes = self._standing[key].plan.takes()
        self._remove(key)
        if takes:
            self._hope()

    def _relieve(self, row: int) -> list[GangKey]:
        """Withdraw plans from a row that cannot hold them all, the last in order first. Returns whose they were."""
        snapshot, moved = self.view.snapshot, []
        for key in sorted(self._at.get(row, ()), key=lambda k: self._standing[k].order, reverse=True):
            standing = self._standing[key]
            shapes = {shape for host, shape in standing.plan.takes() if host == row}
            if self._reserved.overdrawn(row) or any(snapshot.room_at(row, shape) < 1 for shape in shapes):
                self.displaced += 1
                self._withdraw(key)
                self._unplanned[key] = standing.order
                moved.append(key)
        return moved
