"""Cache the plans of all waiting gangs between requests, and renew those that changes affect.

Gangs are planned in one order. Started gangs that lack members of their min come first. Priority counts next, then
being nominated, then creation, resourceVersion and UID. Seats above the min come after the min of all others
(claims.py). Each gang is planned as if only those ahead of it had plans, and takes what it needs from those behind. So
a gang's plan does not depend on the order of questions. A gang that does not fit whole takes no room.

Started gangs come first, since a gang half placed helps nobody. Nominated ones come before newcomers of the same
second, whose arrival must not move a nomination. A plan stands until a fact breaks it: a member went elsewhere, its
room is gone, or the gang changed. Members that come take the seats kept for them (arrivals.py).

One question plans a limited amount (work.py). Where the gangs ahead take more, each of their namespaces gets an equal
share, and the gang in question is planned beside the standing plans. `plan_some` continues between questions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from turnout.jobs.gang import Dialect, GangKey
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.planner.above_min import beside_others
from turnout.scheduler_ext.planner.arrivals import carried_on
from turnout.scheduler_ext.planner.claims import Level, Order, Standing, claims_of, standing_of
from turnout.scheduler_ext.planner.gangs.held import HeldHosts
from turnout.scheduler_ext.planner.gangs.linked import begun, lacking, linked, refused
from turnout.scheduler_ext.planner.gangs.one_domain import outside
from turnout.scheduler_ext.planner.gangs.requests import lost, request_for, to_come
from turnout.scheduler_ext.planner.left_out import LeftOut
from turnout.scheduler_ext.planner.place_gang import place, whole_ask
from turnout.scheduler_ext.planner.placing.apart import barred_rows, either
from turnout.scheduler_ext.planner.placing.model import GangPlan, Request, judged_members, price, without_seats
from turnout.scheduler_ext.planner.placing.strict_order import Kept, StrictOrder, barred_by
from turnout.scheduler_ext.planner.reservations import CachedPlan, Reservations
from turnout.scheduler_ext.planner.work import ALL_STEPS, HOST_STEPS, QUESTION_STEPS, Work
from turnout.topology.model import DistanceRule, Refusal

MOST_HOPED = 1_024  # seats above the min of one namespace, for members that nobody has created
_TURN_STEPS = 300  # of a gang's turn, beside what placing it takes: as long as to place a small gang, as measured
_SEAT_STEPS = 4  # to keep one seat


class PlanCache:
    """Plans by gang. Call `sync` to take in changes of the view, then ask. Pods without a gang have no plan in it."""

    def __init__(
        self,
        view: GangView,
        rule: DistanceRule = DistanceRule.ALL_TIERS,
        hold_incomplete: bool = False,
        strict_queues: frozenset[str] = frozenset(),
    ) -> None:
        self.view = view
        self.rule = rule
        self.hold_incomplete = hold_incomplete
        self.replanned = 0  # how many plans were made
        self.displaced = 0  # how many were withdrawn for a gang ahead, or for a fact
        self.steps = 0  # of planning, in all
        self.left_out = LeftOut()
        self.strict = StrictOrder(strict_queues)
        self.held = HeldHosts()
        self._kept = Reservations(view.snapshot)
        self._unplanned: dict[GangKey, Order] = {}
        self._refused: set[GangKey] = set()  # of those kept: to be looked at again once room was given back
        self._hopeless: dict[object, tuple[Order, Refusal]] = {}  # asks that found no room, and for whom first
        self._gains: tuple[int, int] | None = None  # of the snapshot and of what is held, as they were looked at last
        self._layout: int | None = None

    # What is asked.

    def plan_of(self, key: GangKey, now_s: float) -> GangPlan | None:
        """Return the plan of one gang, planned after all gangs ahead of it; None when no member waits for a plan."""
        self.sync(now_s)
        gang = self.view.gangs.get(key)
        if gang is None:
            return None
        self._plan_until(standing_of(self.view, gang).last, self._work())
        if key in self._unplanned:  # many are ahead of it: their turn comes, but nobody waits for all of them
            self._plan(key)
        return self.standing(key)

    def plan_anew(self) -> None:
        """Forget every plan. The next ones keep to the nominations that are shown, whoever wrote them."""
        self._layout = None

    def standing(self, key: GangKey) -> GangPlan | None:
        """Return the plan as it stands, without looking for changes."""
        kept = self._kept.get(key)
        return kept.plan if kept is not None else None

    def plan_all(self, now_s: float) -> list[GangPlan]:
        """Make every missing plan and return all plans in order. The work is not limited."""
        self.sync(now_s)
        self._plan_until(None, Work(ALL_STEPS))
        return self.standing_plans()

    def plan_some(self, now_s: float) -> bool:
        """Plan for as long as one question may take. True while gangs are left that have no plan."""
        self.sync(now_s)
        self._plan_until(None, self._work())
        return bool(self._unplanned)

    def standing_plans(self) -> list[GangPlan]:
        """Return every plan as it stands, in order."""
        return [kept.plan for kept in sorted(self._kept, key=lambda kept: kept.at.order)]

    def try_place(self, request: Request, among: Iterable[int] | None = None) -> GangPlan:
        """Place a gang beside all other plans without keeping the result.

        among: the only rows that may be used. Seats above the min for members to come are used where nothing else is
        left.
        """
        kept = self._kept.get(request.gang.key)
        own = kept.plan.takes() if kept else []
        hoped = [take for other in self._kept.hoping() if other is not kept for take in other.hoped()]
        rows = None if among is None else list(among)
        work = Work()
        plan = place(self.view.fabric, request, self._kept.room(own, rows), work)
        if plan.refusal is not None and hoped:
            plan = place(self.view.fabric, request, self._kept.room(own + hoped, rows), work)
        self.steps += work.spent
        return plan

    def request_of(self, gang: Gang, without: Iterable[str] = ()) -> Request:
        """Build the planner's request for a gang. without: uids of members whose place is ignored."""
        request = request_for(self.view, gang, set(without))
        needed, hoped = to_come(self.view, gang, MOST_HOPED - self._kept.hoped_in(gang.key))
        order, rows = standing_of(self.view, gang).order, len(self.view.fabric.hosts)
        ahead = partial(self._hosts_ahead, order)
        strict = barred_by(self.kept_against(gang), rows)
        barred = either(barred_rows(self.view, gang, ahead), either(strict, self.held.against(gang, rows)))
        if gang.one_domain:
            room_of = self._kept.room(self._kept.open_to(order, hoped=False))
            barred = either(barred, outside(self.view, gang, self.standing, room_of))
        left_out = self.left_out.of(gang.key)
        gone = lost(self.view, gang, needed)
        made = replace(request, missing=needed, hoped=hoped, lost=gone, rule=self.rule)
        return replace(made, left_out=left_out, barred=barred)

    def kept_against(self, gang: Gang) -> Kept | None:
        """Return the domain that strict order keeps for a gang ahead of this one; None when there is none."""
        kept = self.strict.against(gang)
        if kept is None or (oldest := self.view.gangs.get(kept.key)) is None:
            return None
        return kept if standing_of(self.view, oldest).order < standing_of(self.view, gang).order else None

    def _hosts_ahead(self, order: Order, key: GangKey) -> list[int]:
        """Return the hosts in the plan of a gang, none if it goes behind a place in the order."""
        kept = self._kept.get(key)
        return [] if kept is None or kept.at.order > order else [host for host, _ in kept.plan.takes()]

    def started(self, gang: Gang) -> bool:
        """True if any judged member holds a host."""
        return begun(self.view, gang)

    def _work(self) -> Work:
        return Work(QUESTION_STEPS + HOST_STEPS * len(self.view.fabric.hosts))

    # Keeping up.

    def sync(self, now_s: float) -> None:
        """Take in the changes since the last call: gangs, layout, room."""
        self.view.settle(now_s)
        self.view.touched.update(self.left_out.expire(now_s))
        self.sync_room()

    def sync_room(self) -> None:
        """Take in the changes of gangs, layout and room once the view is settled."""
        view = self.view
        if view.layout != self._layout:
            self._layout = view.layout
            for table in (self._kept, self._refused, self._unplanned, self.left_out, self.strict, self.held):
                table.clear()
            view.touched.update(view.gangs)
        for key in view.touched:
            self._look_again(key)
        view.touched.clear()
        self._relieve_all(view.snapshot.changed_rows.intersection(self._kept.rows()))
        view.snapshot.changed_rows.clear()
        if (gains := (view.snapshot.gain_version, self.held.changes)) != self._gains:
            self._gains = gains
            self._hope()

    def _look_again(self, key: GangKey) -> None:
        gang, kept = self.view.gangs.get(key), self._kept.get(key)
        if gang is None or not self._wants_plan(gang):
            if kept is not None:
                self._withdraw(key)
            self._unplanned.pop(key, None)
            self.left_out.drop(key)
            if self.strict.release(key):
                self._hope()
            return
        if kept is not None:
            same = kept.plan.refusal is None and kept.signature == gang.words
            if same and (rest := carried_on(self.view, gang, kept.plan, kept.known)) is not None:
                now = self._replace(gang, kept, rest)
                if len(rest.spare) < len(kept.plan.spare) - len(now.known - kept.known):
                    self._hope()  # seats were given up, not taken
                if key in self._unplanned:  # a seat above its min was taken away
                    self._unplanned[key] = now.at.order
                return
            self._withdraw(key)
        self._unplanned[key] = standing_of(self.view, gang).order

    def _wants_plan(self, gang: Gang) -> bool:
        """True if a member waits for a plan, or the running members need one that is still to be created.

        A pod without a gang gets no plan, nor does a gang behind gates, or one held for members that never come.
        """
        if gang.key.dialect == Dialect.ALONE.value:
            return False
        waiting = [m for m in judged_members(gang) if m.waits]
        if not waiting:
            # Those above the min are hoped for, too: a plain Job's pods may be bound before its next one is there.
            return self.view.missing(gang) > 0 and self.started(gang)
        if all(m.gated for m in waiting):
            return gang.could_start(lifted=self.view.lifts_gates)
        return not self.hold_incomplete or self.view.missing(gang) > 0 or len(gang.living()) >= gang.least

    # Planning.

    def replan(self, key: GangKey) -> None:
        """Plan a gang from its members' places the next time that it is asked about: its plan cannot be kept."""
        if key in self.view.gangs:
            if self._kept.get(key) is not None:
                self._withdraw(key)
            self._unplanned[key] = standing_of(self.view, self.view.gangs[key]).order

    def _plan_until(self, last: Order | None, work: Work) -> None:
        """Plan the gangs without a plan, in order, up to a place in the order; None plans all of them.

        Where the work does not suffice, each namespace with such gangs gets an equal share of it.
        """
        while due := [(order, key) for key, order in self._unplanned.items() if last is None or order <= last]:
            heapq.heapify(due)
            share = work.left // len({key.namespace for _, key in due})
            spent = Counter[str]()
            while due and work.left > 0:
                _, key = heapq.heappop(due)
                if key not in self._unplanned or spent[key.namespace] > share:
                    continue
                before = work.spent
                for moved in self._plan(key, work):
                    if last is None or self._unplanned[moved] <= last:
                        heapq.heappush(due, (self._unplanned[moved], moved))
                spent[key.namespace] += work.spent - before
            if work.left <= 0:
                return

    def _plan(self, key: GangKey, work: Work | None = None) -> set[GangKey]:
        """Plan one gang and those placed with it. Return the gangs that make room for them. work: counts the steps."""
        together = linked(self.view, self.view.gangs[key])
        standing = {gang.key: plan for gang in together if (plan := self.standing(gang.key)) is not None}
        stood = {other for other, plan in standing.items() if plan.hosts}
        moved = self._plan_one(key, work)
        again = self._unplanned.keys() | (standing.keys() - stood - {key})  # a refused one may have waited for this one
        for other in (gang.key for gang in together if gang.key in again):
            moved |= self._plan_one(other, work)
        why = lacking(self.view, together, self.standing)
        for gang in together if why else ():
            kept = self._kept.get(gang.key)
            if kept is not None and kept.plan.hosts and not begun(self.view, gang):
                self._remove(gang.key)
                self._put(gang, refused(gang.key, why), kept.at)
                if gang.key in stood:  # seats that were kept a moment only have kept nobody away
                    self._hope()
        return moved - {gang.key for gang in together}

    def _plan_one(self, key: GangKey, work: Work | None) -> set[GangKey]:
        """Plan one gang, and return the gangs that had to make room for it."""
        gang = self.view.gangs[key]
        self._unplanned.pop(key, None)
        seated: dict[str, int] = {}
        if (kept := self._kept.get(key)) is not None:
            if kept.plan.refusal is None:  # it lost seats above its min alone: whoever has one stays
                seated = dict(kept.plan.hosts)
            self._remove(key)
        at = standing_of(self.view, gang)
        own, before = Work(), self.steps
        plan = self._placed(gang, at, seated, own)
        self.steps += _TURN_STEPS + own.spent + len(gang.members) * 4 + len(self._kept) // 4
        made = self._put(gang, plan, at)
        moved = self._relieve_all(made.by_row)
        if plan.refusal is not None and not plan.hosts:
            self.strict.keep_for(self.view, gang)
        elif self.strict.release(key):
            self._hope()
        if work is not None:
            work.spend(self.steps - before)
        return moved

    def _placed(self, gang: Gang, at: Standing, seated: dict[str, int], work: Work) -> GangPlan:
        """Place a gang in the room that the gangs ahead of it leave.

        An ask that failed for a gang ahead fails for this one, too.

        seated: uid -> host of members that keep their seats if possible.
        """
        request = self.request_of(gang)
        request = replace(request, wished={**seated, **request.wished})
        special = request.held or request.wished or request.left_out or request.barred is not None
        ask = None if special else whole_ask(request)
        if ask is not None and (failed := self._hopeless.get(ask)) is not None and failed[0] <= at.order:
            return GangPlan(gang.key, refusal=failed[1])
        self.replanned += 1
        plan = place(self.view.fabric, request, self._kept.room(self._kept.open_to(at.order, hoped=False)), work)
        if any(kept.at.order < at.order for kept in self._kept.hoping()):
            # Seats for members that may never come are kept where that costs this gang nothing.
            alone = place(self.view.fabric, request, self._kept.room(self._kept.open_to(at.order)), work)
            plan = min(plan, alone, key=partial(price, self.view.fabric))
        if ask is not None and plan.refusal is not None and not plan.hosts:
            self._hopeless[ask] = (at.order, plan.refusal)
        return beside_others(self.view.fabric, self._kept, request, plan, at, work)

    # What is kept.

    def _put(self, gang: Gang, plan: GangPlan, at: Standing, signature: object = None) -> CachedPlan:
        """Keep a plan and reserve room for it."""
        known = frozenset(member.uid for member in judged_members(gang) if not member.leaving)
        kept = CachedPlan(plan, at, signature or gang.words, known, claims_of(gang, plan, at))
        self.steps += _SEAT_STEPS * len(kept.claims)
        if plan.refusal is not None:
            self._refused.add(gang.key)
        self._kept.put(gang.key, kept)
        return kept

    def _replace(self, gang: Gang, kept: CachedPlan, plan: GangPlan) -> CachedPlan:
        """Keep what is left of a plan, and reserve no more room than it takes."""
        at = standing_of(self.view, gang)
        if plan is kept.plan and at == kept.at:
            return kept
        return self._put(gang, plan, at, kept.signature)

    def _remove(self, key: GangKey) -> bool:
        """Remove a plan. True if it kept any room."""
        self._refused.discard(key)
        kept_room = bool(self._kept.remove(key))
        if kept_room:
            self._hopeless.clear()
        return kept_room

    def _withdraw(self, key: GangKey) -> None:
        """Withdraw a plan, and mark refused gangs to be planned again, since its room is free.

        Gangs that are placed with it are looked at again.
        """
        if self._remove(key):
            self._hope()
        for other in linked(self.view, self.view.gangs[key]) if key in self.view.gangs else ():
            if (kept := self._kept.get(other.key)) is not None:
                self._unplanned[other.key] = kept.at.order

    def _hope(self) -> None:
        """Mark the refused gangs to be planned again, since room was given back."""
        self._hopeless.clear()
        for key in self._refused:
            if (kept := self._kept.get(key)) is not None:
                self._unplanned[key] = kept.at.order

    def _relieve_all(self, rows: Iterable[int]) -> set[GangKey]:
        """Take seats back from rows that cannot hold them all. Returns the gangs that need a plan."""
        rows = list(rows)
        surplus: dict[GangKey, set[str | int]] = {}
        for row in rows:
            for claim, key in self._kept.surplus_on(row):
                surplus.setdefault(key, set()).add(claim.uid or claim.rank)
        for key, seats in surplus.items():  # at once, since a gang may hope for a thousand of them
            kept = self._kept.of(key)
            self._replace(self.view.gangs[key], kept, without_seats(kept.plan, seats))
        return {moved for row in rows for moved in self._relieve(row)}

    def _relieve(self, row: int) -> list[GangKey]:
        """Take seats back from a row that cannot hold them all, the last in order first: the gangs that need a plan.

        One that loses a seat of its min loses its plan. One that loses a seat above its min keeps the other seats.
        """
        moved = []
        here = self._kept.on(row)
        unfit, overdrawn = self._kept.unfit(row, (claim.shape for claim, _ in here)), self._kept.overdrawn(row)
        for claim, key in here:
            kept = self._kept.get(key)
            if kept is None or not (overdrawn or claim.shape in unfit):
                continue
            if claim.order == kept.at.order:
                self._withdraw(key)
            else:
                self._replace(self.view.gangs[key], kept, without_seats(kept.plan, {claim.uid or claim.rank}))
            if claim.order[0] != Level.HOPED:
                self.displaced += 1
                self._unplanned[key] = kept.at.order
                moved.append(key)
            overdrawn = self._kept.overdrawn(row)
        return moved
