"""Keep the plans of all waiting gangs between requests, and renew the plans that a change breaks.

Gangs are planned in one order (`order.py`). Each gang is planned as if only the gangs ahead of it had plans, and takes
room from the gangs behind it. So the plan of a gang does not depend on the order of questions. A gang that does not fit
whole takes no room.

Started gangs come first, because a gang that is half placed cannot run. Nominated gangs come before new gangs of the
same second, so that a new gang does not move a nomination. A plan stands until a fact breaks it: a member went
elsewhere, its room was taken, or the gang changed. New members take the seats reserved for them.

One question plans a limited amount (`place_gang.py`). If the gangs ahead need more, each of their namespaces gets an
equal share, and the gang in question is planned beside the standing plans. `plan_some` continues between questions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.reservation import Reservation
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.request_hints import RejectedHosts
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.batches import ALL_STEPS, HOST_STEPS, QUESTION_STEPS, Work
from turnout.scheduler_ext.planner.order import (
    GangPosition,
    SeatClass,
    SeatOrder,
    can_start,
    gangs_of_set,
    has_started,
    hosted_members,
    order_seats,
    position_after,
    position_of,
    refuse_for_partner,
    rows_outside_shared_domain,
    update_plan,
    waiting_partners,
)
from turnout.scheduler_ext.planner.place_gang import request_signature
from turnout.scheduler_ext.planner.refusals import refuse_after_fault
from turnout.scheduler_ext.planner.request import (
    PLANNING_FAILED,
    AbsentMembers,
    GangPlan,
    GangRequest,
    HardTerm,
    build_request,
    count_lost,
    count_missing,
    drop_seats,
    exclusive_rows,
    plan_sort_key,
    planned_members,
    union_rows,
)
from turnout.scheduler_ext.planner.reservations import KeptDomain, Reservations, StrictOrder, mark_domain
from turnout.scheduler_ext.planner.reserved_room import (
    StandingPlan,
    StandingPlans,
    growth_seats_beside,
    room_beside_plans,
    shapes_without_room,
)
from turnout.scheduler_ext.planner.seat_units import seat_units
from turnout.scheduler_ext.planner.seats_above_min import place_beside_plans, replace_lost_seats
from turnout.scheduler_ext.planner.trees import SharedDomains
from turnout.topology.model import DistanceRule, Refusal

MAX_GROWTH_SEATS = 1_024  # growth seats of one namespace at a time
_TURN_STEPS = 300  # for each gang, in addition to its placing: measured as the time to place a small gang
_SEAT_STEPS = 4  # to reserve one seat


class Plans:
    """The plans of all gangs. Call `sync` after changes of the view, then ask. Pods without a gang: `answers.py`."""

    def __init__(
        self,
        view: ClusterView,
        rule: DistanceRule = DistanceRule.ALL_TIERS,
        hold_incomplete: bool = False,
        strict_queues: frozenset[str] = frozenset(),
    ) -> None:
        """Start without plans.

        rule: whether all tiers or only the leaf count as nearness. hold_incomplete: True to make no plan for a gang
        below its min whose missing members are not expected. strict_queues: names of queues of strict order, each
        `queue` or `namespace/queue`.
        """
        self.view = view
        self.distance_rule = rule
        self.hold_incomplete = hold_incomplete
        self.replanned = 0  # plans made in all
        self.displaced = 0  # plans that were withdrawn for a gang ahead, or because of a change
        self.steps = 0  # steps of planning in all
        self.rejected_plans = Counter[str]()  # gangs refused for a fault of ours, by HardTerm, or PLANNING_FAILED
        self.rejected_hosts = RejectedHosts()
        self.strict_order = StrictOrder(strict_queues)
        self.reservations = Reservations()
        self._trees = SharedDomains(view)
        self._plans = StandingPlans(view.snapshot)
        self._unplanned: dict[GangKey, SeatOrder] = {}
        self._refused: set[GangKey] = set()  # gangs with a refused plan: planned again once room is released
        # Signatures of requests without room, and the first order.
        self._known_failures: dict[object, tuple[SeatOrder, Refusal]] = {}
        self._gain_versions: tuple[int, int] | None = None  # of the snapshot and the reservations, at the last update
        self._layout_version: int | None = None

    # Questions.

    def plan_of(self, key: GangKey, now_s: float) -> GangPlan | None:
        """Return the plan of one gang, planned after all gangs ahead of it.

        None for an unknown gang, for a pod without a gang, and for a gang that needs no plan now: no member waits for a
        place, it could not start, or it is incomplete and such gangs are held. If too many gangs are ahead, the work of
        one question ends first, and the gang is planned beside the plans made so far. now_s: by the monotonic clock.
        """
        self.sync(now_s)
        gang = self.view.gangs.get(key)
        if gang is None:
            return None
        self._plan_until((self.position_in_plan(key) or position_of(self.view, gang)).last_key, self._work())
        if key in self._unplanned:  # many gangs are ahead of it; the question does not wait for all of them
            self._plan_gangs_of_set(key)
        return self.current_plan(key)

    def forget_plans(self) -> None:
        """Forget every plan. The next plans use the nominated nodes that the watch shows, whoever wrote them."""
        self._layout_version = None

    def current_plan(self, key: GangKey) -> GangPlan | None:
        """Return the stored plan of a gang without applying new changes; None if it has none."""
        stored = self._plans.get(key)
        return stored.plan if stored is not None else None

    def position_in_plan(self, key: GangKey) -> GangPosition | None:
        """Return the place in the order with which a gang's plan is stored; None without a plan."""
        stored = self._plans.get(key)
        return stored.position if stored is not None else None

    def plan_all(self, now_s: float) -> list[GangPlan]:
        """Make every missing plan and return all plans in the order of their gangs. The work is not limited.

        now_s: by the monotonic clock.
        """
        self.sync(now_s)
        self._plan_until(None, Work(ALL_STEPS))
        return self.current_plans()

    def plan_some(self, now_s: float) -> bool:
        """Plan with the steps that one question may use. Return True if gangs that are to be planned are left.

        now_s: by the monotonic clock.
        """
        self.sync(now_s)
        self._plan_until(None, self._work())
        return bool(self._unplanned)

    def current_plans(self) -> list[GangPlan]:
        """Return all stored plans in the order of their gangs, without applying new changes."""
        return [stored.plan for stored in sorted(self._plans, key=lambda stored: stored.position.first_needed_key)]

    def try_place(self, request: GangRequest, only_rows: Iterable[int] | None = None) -> GangPlan:
        """Place a gang beside all other plans, and return the plan without storing it.

        It has a refusal if the gang does not fit.

        only_rows: the only rows that may be used; None for all. Growth seats of other gangs are used only if nothing
        else is left.
        """
        stored = self._plans.get(request.gang.key)
        own = stored.plan.reserved_pods() if stored else []
        others = [other for other in self._plans.with_growth_seats.values() if other is not stored]
        growth = [pod for other in others for pod in other.growth_seats()]
        rows = None if only_rows is None else list(only_rows)
        work = Work()
        plan = place_beside_plans(self.view.fabric, self._plans, request, work, own, rows)
        if plan.refusal is not None and growth:
            plan = place_beside_plans(self.view.fabric, self._plans, request, work, own + growth, rows)
        self.steps += work.spent_steps
        self.rejected_plans.update(plan.broken_terms)
        return plan

    def request_of(self, gang: Gang, unplaced_uids: Iterable[str] = ()) -> GangRequest:
        """Build the planner's request for a gang.

        unplaced_uids: members that count as if they had no host and no nomination.
        """
        return self._request_at(gang, position_of(self.view, gang).first_needed_key, unplaced_uids)

    def _request_at(self, gang: Gang, order: SeatOrder, unplaced_uids: Iterable[str] = ()) -> GangRequest:
        """Build the planner's request for a gang at a place in the order. unplaced_uids: as for request_of()."""
        request, work = build_request(self.view, gang, set(unplaced_uids)), Work()
        growth_limit = MAX_GROWTH_SEATS - growth_seats_beside(gang.key, self._plans.with_growth_seats)
        needed, growth = count_missing(self.view, gang, growth_limit)
        rows = len(self.view.fabric.hosts)
        ahead = partial(self._hosts_ahead, order)
        strict = mark_domain(self._domain_kept_against(gang), rows)
        reserved = union_rows(strict, self.reservations.rows_against(gang, self.view.snapshot.row_of, rows))
        excluded = union_rows(exclusive_rows(self.view, gang, ahead), reserved)
        terms = gang.terms
        if terms.sets.one_domain or terms.ancestors:
            room_of = room_beside_plans(self._plans.room, self._plans.pods_behind(order, with_growth_seats=False))
            rows_outside = (
                self._trees.rows_outside if terms.ancestors else partial(rows_outside_shared_domain, self.view, work)
            )
            excluded = union_rows(excluded, rows_outside(gang, self.current_plan, room_of))
            self.steps += work.spent_steps
        return replace(
            request,
            absent=AbsentMembers(needed, growth, count_lost(self.view, gang, needed)),
            distance_rule=self.distance_rule,
            rejected_rows=self.rejected_hosts.rows_by_shape(gang.key),
            excluded_rows=excluded,
        )

    def reserve(self, reservation: Reservation) -> None:
        """Reserve nodes for a gang, and withdraw the plans of gangs of a lower priority on these nodes, to be planned
        again.
        """
        if not self.reservations.put(reservation):
            return
        row_of = self.view.snapshot.row_of
        rows = {row for node in reservation.nodes if (row := row_of.get(node)) is not None}
        for plan in self.current_plans():
            other = self.view.gangs.get(plan.key)
            if other is None or other.priority >= reservation.priority or other.key == reservation.holder:
                continue
            if any(row in rows for row, _ in plan.reserved_pods()):
                self.replan(plan.key)

    def reservation_against(self, gang: Gang) -> Reservation | None:
        """Return a reservation that keeps a gang off some nodes, that of strict order first; None if there is none."""
        if (domain := self._domain_kept_against(gang)) is not None:
            return domain.reservation
        return self.reservations.against(gang.key, gang.priority)

    def _domain_kept_against(self, gang: Gang) -> KeptDomain | None:
        """Return the domain that strict order keeps for a gang ahead of this one; None when there is none."""
        domain = self.strict_order.domain_against(gang)
        if domain is None or (oldest := self.view.gangs.get(domain.reservation.holder)) is None:
            return None
        return (
            domain
            if position_of(self.view, oldest).first_needed_key < position_of(self.view, gang).first_needed_key
            else None
        )

    def _hosts_ahead(self, order: SeatOrder, key: GangKey) -> list[int]:
        """Return the hosts in the plan of a gang, one for each pod; [] if it has no plan, or comes after `order`."""
        stored = self._plans.get(key)
        return (
            []
            if stored is None or stored.position.first_needed_key > order
            else [host for host, _ in stored.plan.reserved_pods()]
        )

    def _work(self) -> Work:
        return Work(QUESTION_STEPS + HOST_STEPS * len(self.view.fabric.hosts))

    # Keeping up.

    def sync(self, now_s: float) -> None:
        """Apply the changes of the cluster since the last call to the plans. now_s: by the monotonic clock."""
        self.view.settle(now_s)
        for key in self.rejected_hosts.expire(now_s):
            self.view.changed_gangs.add(key)
        self.sync_room()

    def sync_room(self) -> None:
        """Apply the changes of gangs, layout and room to the plans, for a view that is up to date (`view.settle`)."""
        view = self.view
        if view.layout_version != self._layout_version:
            self._layout_version = view.layout_version
            for table in (self._plans, self._refused, self._unplanned, self.rejected_hosts, self.strict_order):
                table.clear()
            self.reservations.clear_rows()
            for key in view.gangs:
                view.changed_gangs.add(key)
        for key in view.changed_gangs:
            self._update_gang(key)
        view.changed_gangs.clear()
        self._take_back_seats_on_rows(view.snapshot.changed_rows.intersection(self._plans.gangs_by_row))
        view.snapshot.changed_rows.clear()
        if self.strict_order.choose_again(view):
            self._requeue_refused()
        if (gains := (view.snapshot.gain_version, self.reservations.release_count)) != self._gain_versions:
            self._gain_versions = gains
            self._requeue_refused()

    def _update_gang(self, key: GangKey) -> None:
        """Update the plan of a changed gang, withdraw it if the gang needs none, or mark the gang to be planned."""
        gang, stored = self.view.gangs.get(key), self._plans.get(key)
        if gang is not None and stored is not None and self._release_taken_seats(gang, stored):
            return
        if gang is None or not self._wants_plan(gang):
            if stored is not None:
                self._withdraw(key)
            self._unplanned.pop(key, None)
            self.rejected_hosts.drop(key)
            if self.strict_order.release(key):
                self._requeue_refused()
            return
        if stored is not None:
            is_unchanged = stored.plan.refusal is None and stored.stated_terms == gang.stated_terms
            if is_unchanged and (updated := update_plan(self.view, gang, stored.plan, stored.member_uids)) is not None:
                replaced = self._replace(gang, stored, updated)
                if len(updated.open_seats) < len(stored.plan.open_seats) - len(
                    replaced.member_uids - stored.member_uids
                ):
                    self._requeue_refused()  # seats were given up, not taken
                if key in self._unplanned:  # a seat above its min was taken away
                    self._unplanned[key] = replaced.position.first_needed_key
                return
            self._withdraw(key)
        self._unplanned[key] = position_of(self.view, gang).first_needed_key

    def _release_taken_seats(self, gang: Gang, stored: StandingPlan) -> bool:
        """Remove from the plan the seats of members that now hold their planned hosts.

        Return False, with nothing changed, if anything else has changed, so that the gang must be planned or updated as
        a whole. The cost grows with the change, not with the size of the gang.
        """
        uids = self.view.changed_gangs.placed_uids(gang.key)
        if uids is None or stored.plan.refusal is not None:
            return False
        seated_uids = uids & stored.plan.hosts.keys()
        position = position_after(self.view, gang, stored.plan, stored.position, uids, stored.member_uids)
        first_needed_key = stored.position.first_needed_key
        if position is None or any(stored.seat_of(uid).order != first_needed_key for uid in seated_uids):
            return False
        if position.first_needed_key != first_needed_key and stored.pods_by_order.keys() != {first_needed_key}:
            return False  # the gang starts, and its seats have several orders
        self._plans.release_taken_seats(gang.key, seated_uids, position)
        self.steps += _SEAT_STEPS * len(uids)
        return True

    def _wants_plan(self, gang: Gang) -> bool:
        """Return True if a member waits for a plan, or the running members need a member that does not exist yet.

        False for a pod without a gang, and for a gang of gated pods that could not start without the gates. With
        `hold_incomplete`, False also for a gang that is below its min and whose missing members are not expected.
        """
        if gang.key.dialect == Dialect.ALONE.value:
            return False
        waiting = [m for m in planned_members(gang) if m.is_waiting]
        missing_pods = self.view.awaited_members.missing_pods(gang)
        if not waiting:
            # Growth seats count, too: a plain Job's pods may be bound before its next pod exists.
            return missing_pods > 0 and has_started(self.view, gang)
        if all(m.gated for m in waiting):
            return gang.could_start(gates_lifted=self.view.lifts_gates)
        return not self.hold_incomplete or missing_pods > 0 or len(gang.living()) >= gang.min_pods

    # Planning.

    def replan(self, key: GangKey) -> None:
        """Withdraw a gang's plan. The next question plans the gang again from the places of its members.

        A gang without a plan is planned at the next question, too. Does nothing for an unknown gang.
        """
        if key in self.view.gangs:
            if self._plans.get(key) is not None:
                self._withdraw(key)
            self._unplanned[key] = position_of(self.view, self.view.gangs[key]).first_needed_key

    def _plan_until(self, last: SeatOrder | None, work: Work) -> None:
        """Plan the gangs without a plan, in order, up to a place in the order; None plans all of them.

        If the steps of `work` do not suffice, each namespace with such gangs gets an equal share of them, and some
        gangs stay without a plan.
        """
        while due := [(order, key) for key, order in self._unplanned.items() if last is None or order <= last]:
            heapq.heapify(due)
            share = work.steps_left // len({key.namespace for _, key in due})
            spent = Counter[str]()
            while due and work.steps_left > 0:
                _, key = heapq.heappop(due)
                if key not in self._unplanned or spent[key.namespace] > share:
                    continue
                before = work.spent_steps
                for moved in self._plan_gangs_of_set(key, work):
                    if last is None or self._unplanned[moved] <= last:
                        heapq.heappush(due, (self._unplanned[moved], moved))
                spent[key.namespace] += work.spent_steps - before
            if work.steps_left <= 0:
                return

    def _plan_gangs_of_set(self, key: GangKey, work: Work | None = None) -> set[GangKey]:
        """Plan one gang and the gangs of its set. Returns the other gangs that lost room to them and need a new plan.

        work: counts the steps; None for no limit.
        """
        partners = gangs_of_set(self.view, self.view.gangs[key])
        current = {gang.key: plan for gang in partners if (plan := self.current_plan(gang.key)) is not None}
        with_hosts = {other for other, plan in current.items() if plan.hosts}
        self._trees.forget_refusals()
        moved = self._plan_gang(key, work)
        to_plan = self._unplanned.keys() | (
            current.keys() - with_hosts - {key}
        )  # a refused one may have waited for this one
        for other in (gang.key for gang in partners if gang.key in to_plan):
            moved |= self._plan_gang(other, work)
        self._trees.forget_refusals()
        delays = waiting_partners(self.view, partners, self.current_plan)
        for gang in (gang for gang in partners if gang.key in delays):
            stored = self._plans.get(gang.key)
            if stored is not None and stored.plan.hosts and not has_started(self.view, gang):
                self._drop_plan(gang.key)
                self._put(gang, refuse_for_partner(gang.key, delays[gang.key]), stored.position)
                if gang.key in with_hosts:  # seats that were reserved only now have displaced no gang
                    self._requeue_refused()
        if self._trees.may_followers_start(partners, with_hosts, self.current_plan):
            self._requeue_refused()
        return moved - {gang.key for gang in partners}

    def _plan_gang(self, key: GangKey, work: Work | None) -> set[GangKey]:
        """Plan one gang. Return the gangs that lost reserved room to it and need a new plan.

        The gang itself is included if it took more room than was free. work: the steps are counted there, too; None for
        no limit.
        """
        gang = self.view.gangs[key]
        self._unplanned.pop(key, None)
        seated: dict[str, int] = {}
        if (previous := self._plans.get(key)) is not None:
            if previous.plan.refusal is None:  # it lost only seats above its min: the other members keep their seats
                seated = dict(previous.plan.hosts)
            self._drop_plan(key)
        position = position_of(self.view, gang)
        own_work, before = Work(), self.steps
        try:
            plan = self._place_gang(gang, position, seated, own_work)
        except Exception as error:  # a fault of ours with one gang must not cost the others their places
            plan = refuse_after_fault(key, error)
            self.rejected_plans[PLANNING_FAILED] += 1
        self.steps += self._trees.take_steps() + _TURN_STEPS + own_work.spent_steps
        self.steps += len(gang.members) * 4 + len(self._plans) // 4
        stored = self._put(gang, plan, position)
        moved = self._take_back_seats_on_rows(stored.seats_by_row)
        self.rejected_plans.update(plan.broken_terms)
        if key in moved:  # it took more than was free, though all gangs behind it made room
            self.rejected_plans[HardTerm.CAPACITY] += 1
        if plan.refusal is not None and not plan.hosts:
            has_new_domain = self.strict_order.keep_domain_for(self.view, gang)
        else:
            has_new_domain = self.strict_order.release(key)
        if has_new_domain:
            self._requeue_refused()
        if work is not None:
            work.spend(self.steps - before)
        return moved

    def _place_gang(self, gang: Gang, position: GangPosition, seated: dict[str, int], work: Work) -> GangPlan:
        """Place a gang in the room that the gangs ahead of it leave.

        A request that failed for a gang ahead fails for this gang, too.

        seated: uid -> host of members that keep their seats if possible.
        """
        if detail := self._trees.delay_beyond_limit(gang, partial(can_start, self.view, self.current_plan)):
            return refuse_for_partner(gang.key, detail)
        request = self._request_at(gang, position.first_needed_key)
        if seated:
            request = replace(request, nominated_hosts={**seated, **request.nominated_hosts})
        is_placed = request.placed_members or request.nominated_hosts
        has_own_room = is_placed or request.rejected_rows or request.excluded_rows is not None
        if self._known_failures and not has_own_room:
            failed = self._known_failures.get(request_signature(request))
            if failed is not None and failed[0] <= position.first_needed_key:
                return GangPlan(gang.key, refusal=failed[1])
        self.replanned += 1
        fabric, plans, order = self.view.fabric, self._plans, position.first_needed_key
        plan = place_beside_plans(fabric, plans, request, work, plans.pods_behind(order, with_growth_seats=False))
        if any(stored.position.first_needed_key < order for stored in plans.with_growth_seats.values()):
            # Growth seats of gangs ahead are kept if that costs this gang nothing.
            beside_growth = place_beside_plans(fabric, plans, request, work, plans.pods_behind(order))
            plan = min(plan, beside_growth, key=partial(plan_sort_key, fabric))
        if not has_own_room and plan.refusal is not None and not plan.hosts:
            self._known_failures[request_signature(request)] = (order, plan.refusal)
        return replace_lost_seats(fabric, plans, request, plan, position, work)

    # Standing plans.

    def _put(self, gang: Gang, plan: GangPlan, position: GangPosition, stated_terms: object = None) -> StandingPlan:
        """Store a plan and reserve room for it. stated_terms: the gang's statements; None for those of now."""
        member_uids = frozenset(member.uid for member in planned_members(gang) if not member.terminating)
        seats = order_seats(gang, plan, position, hosted_members(self.view, gang))
        stored = StandingPlan(plan, position, stated_terms or gang.stated_terms, member_uids, seats)
        self.steps += _SEAT_STEPS * len(seats)
        if plan.refusal is not None:
            self._refused.add(gang.key)
        self._plans.put(gang.key, stored)
        return stored

    def _replace(self, gang: Gang, stored: StandingPlan, plan: GangPlan) -> StandingPlan:
        """Store a reduced or updated plan in place of `stored`, with the gang's place in the order as it is now."""
        position = position_of(self.view, gang)
        if plan is stored.plan and position == stored.position:
            return stored
        return self._put(gang, plan, position, stored.stated_terms)

    def _drop_plan(self, key: GangKey) -> bool:
        """Remove a gang's plan and release its room.

        Returns True if the plan reserved any room. Raises KeyError if the gang has no plan.
        """
        self._refused.discard(key)
        kept_room = bool(self._plans.remove(key))
        if kept_room:
            self._known_failures.clear()
        return kept_room

    def _withdraw(self, key: GangKey) -> None:
        """Withdraw a plan. If it had reserved room, mark the refused gangs to be planned again.

        The gangs of its set that have a plan are planned again, too.
        """
        if self._drop_plan(key):
            self._requeue_refused()
        for other in gangs_of_set(self.view, self.view.gangs[key]) if key in self.view.gangs else ():
            if (stored := self._plans.get(other.key)) is not None:
                self._unplanned[other.key] = stored.position.first_needed_key

    def _requeue_refused(self) -> None:
        """Mark the refused gangs to be planned again, since room was given back."""
        self._known_failures.clear()
        for key in self._refused:
            if (stored := self._plans.get(key)) is not None:
                self._unplanned[key] = stored.position.first_needed_key

    def _take_back_seats_on_rows(self, rows: Iterable[int]) -> set[GangKey]:
        """Take seats back from rows that cannot hold all of them; seats of the gangs that come last go first.

        rows: indexes of hosts in the snapshot. Rows with enough room stay unchanged. Returns the gangs that need a new
        plan. A gang that loses only growth seats needs none.
        """
        rows = list(rows)
        surplus: dict[GangKey, set[str | int]] = {}
        for row in rows:
            for seat, key in self._plans.surplus_on(row):
                surplus.setdefault(key, set()).add(seat.uid or seat.rank)
        for key, lost_seats in surplus.items():  # at once, since a gang may hope for a thousand of them
            stored = self._plans.plan_of(key)
            self._drop_lost_seats(key, stored, lost_seats)
        return {moved for row in rows for moved in self._take_back_seats_on_row(row)}

    def _drop_lost_seats(self, key: GangKey, stored: StandingPlan, lost_seats: Collection[str | int]) -> None:
        """Remove the lost seats and their units from a gang's plan. Seats of its min that are not lost stay.

        lost_seats: uids, and ranks of open seats. stored: the plan.
        """
        gang = self.view.gangs[key]
        units = seat_units(gang, stored.plan, hosted_members(self.view, gang))
        of_rows = stored.seats_by_row.values()
        first = stored.position.first_needed_key
        needed = {seat.uid or seat.rank for seats in of_rows for seat in seats if seat.order == first}
        self._replace(
            gang, stored, drop_seats(stored.plan, units.with_partners(lost_seats) - (needed - set(lost_seats)))
        )

    def _take_back_seats_on_row(self, row: int) -> list[GangKey]:
        """Take seats back from a row that cannot hold all of them; seats of the gangs that come last go first.

        row: index of a host in the snapshot. Returns the gangs that lost a seat that is no growth seat: they need a
        plan. A gang below its min that loses a seat of its min loses its plan. So does a gang at its min that loses the
        seat of an existing pod. Any other gang loses the seat and the other seats of its unit (`seat_units.py`).
        """
        moved = []
        seats = self._plans.seats_on(row)
        refused_shapes = shapes_without_room(self.view.snapshot, row, (seat.shape for seat, _ in seats))
        is_overdrawn = self._plans.room.is_overdrawn(row)
        for seat, key in seats:
            stored = self._plans.get(key)
            is_planned = stored is not None and seat in stored.seats_by_row.get(row, ())
            if stored is None or not is_planned or not (is_overdrawn or seat.shape in refused_shapes):
                continue
            if seat.order == stored.position.first_needed_key:
                self._withdraw(key)
            else:
                self._drop_lost_seats(key, stored, {seat.uid or seat.rank})
            if seat.order[0] != SeatClass.GROWTH:
                self.displaced += 1
                self._unplanned[key] = stored.position.first_needed_key
                moved.append(key)
            is_overdrawn = self._plans.room.is_overdrawn(row)
        return moved


def plans_by(rules: Rules) -> Plans:
    """Return the plans of an empty cluster that follow the admin's rules."""
    rule = DistanceRule.LEAF_ONLY if rules.leaf_only else DistanceRule.ALL_TIERS
    return Plans(ClusterView(rules.gpu_resources), rule, rules.hold_incomplete, rules.strict_queues)
