"""Evict pods: victims of gangs behind our gates, and the rest of gangs that are repaired.

Evictions of a gang are sent one after the other, because a disruption budget may refuse each. A refused eviction is
tried again later.

The hosts of the victims, and those to which a gang moves, are reserved for a bounded time before the first eviction
(`reservation_writer.py`). For a gang behind our gates no second set of victims is chosen while pods of the first set
still exist. A new leader reads the state from nominations and deletionTimestamps.

A gang is repaired while this process leads and its view is current. The gang must be stuck without interruption for the
time that its owner stated. After a repair it rests, so that no gang is moved again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from turnout.jobs.gang import GangKey, Remedy
from turnout.jobs.reservation import Reservation, ReservationReason
from turnout.kube.backoff import Backoff, RetryPauses
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, NotFound, NotLeading
from turnout.kube.server.client_metrics import start_at_zero
from turnout.scheduler_ext.cluster.gang import Gang, waiting_gangs
from turnout.scheduler_ext.gates.evictions import (
    GangRepair,
    find_stuck_gang,
    may_preempt,
    plan_preemption,
    plan_repair,
)
from turnout.scheduler_ext.gates.release import GatedGang
from turnout.scheduler_ext.model import EventReason, Evict, Notice
from turnout.scheduler_ext.server.metrics import NominatorMetrics
from turnout.scheduler_ext.server.watches import WatchState
from turnout.scheduler_ext.wire.pod_messages import eviction_body
from turnout.scheduler_ext.writers.reservation_writer import ReservationWriter


class EvictionOutcome(StrEnum):
    """The outcome of an eviction. The values are those of the label `outcome` of turnout_gate_evictions."""

    EVICTED = "evicted"
    ALREADY_DELETED = "already_deleted"  # the pod was deleted before, or another pod has its name
    REFUSED = "refused"  # with the status 429: by a disruption budget, or by a rate limit of the API server
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """The result of one eviction."""

    pod: Evict
    outcome: EvictionOutcome
    error: CallError | None = None


async def evict_each(calls: Calls, victims: Iterable[Evict]) -> AsyncIterator[EvictionResult]:
    """Yield the result of each eviction, in order. The first REFUSED or FAILED result is the last one.

    Without the Lease it ends without a result for the rest. A pod that is gone, or whose name another pod has, yields
    ALREADY_DELETED, and the next one follows. calls: refused without the Lease.
    """
    for each in victims:
        try:
            await calls.create(f"/api/v1/namespaces/{each.namespace}/pods/{each.name}/eviction", eviction_body(each))
        except NotLeading:
            return
        except (NotFound, Conflict):
            yield EvictionResult(each, EvictionOutcome.ALREADY_DELETED)
        except CallError as error:
            yield EvictionResult(
                each, EvictionOutcome.REFUSED if error.status == 429 else EvictionOutcome.FAILED, error
            )
            return
        else:
            yield EvictionResult(each, EvictionOutcome.EVICTED)


log = logging.getLogger("turnout.nominator")

RESERVATION_S = 600.0  # how long hosts are reserved for a gang: longer than most pods take to leave
PREEMPTION_REST_S = 600.0  # how long no pod is evicted for a gang that did not get its hosts in that time
EVICTION_BACKOFF = Backoff(first_s=2.0, max_s=30.0)  # of a gang's evictions, when one is refused or fails


@dataclass(slots=True)
class _PreemptionState:
    """The preemption for a gang since it began."""

    since_s: float  # of the monotonic clock
    until_s: float  # when the reservation of its hosts ends, in seconds since 1970
    hosts: Mapping[str, str] = field(default_factory=dict)  # uid -> node of the members
    refusal_detail: str = ""  # why the last eviction was refused or failed; "" if none was


class Evictor:
    """Evicts pods for the gangs of one cluster. One gate writer calls it."""

    def __init__(
        self,
        watches: WatchState,
        calls: Calls,
        clock: Clock,
        metrics: NominatorMetrics,
        notify: Callable[[Notice], None],
        reservations: ReservationWriter,
    ) -> None:
        """Start watching pods, without any preemption. notify: receives the notices for the owners of victims."""
        self._calls, self._clock, self._notify, self._reservations = calls, clock, notify, reservations
        self._plans, self._view = watches.plans, watches.plans.view
        self._preemptions: dict[GangKey, _PreemptionState] = {}
        self._pauses = RetryPauses[GangKey](EVICTION_BACKOFF)
        self._evicted_uids: set[str] = set()  # uids of evicted pods, until they are deleted
        self._metrics = metrics
        start_at_zero(metrics.evictions, (outcome.value for outcome in EvictionOutcome))
        watches.follow_pods(drop=self._evicted_uids.discard)

    def forget_all(self) -> None:
        """Begin a term of leading: release all hosts, because the work of another leader is read from the API
        server.
        """
        for key in list(self._preemptions):
            self.forget(key)
        self._evicted_uids.clear()

    def forget(self, key: GangKey) -> None:
        """Release the hosts that are reserved for a gang's preemption, and forget its pauses and its last refusal.

        Called when the gang starts or is deleted. Does nothing for an unknown gang.
        """
        self._preemptions.pop(key, None)
        self._pauses.note_success(key)
        self._reservations.release(key, ReservationReason.PREEMPTION)

    def forget_deleted_gangs(self) -> None:
        """Release the hosts of deleted gangs."""
        for key in [key for key in self._preemptions if key not in self._view.gangs]:
            self.forget(key)

    def add_preemption(self, gated_gang: GatedGang, gang: Gang) -> GatedGang:
        """Return a gated gang with its preemption, and reserve the victims' hosts against gangs of a lower priority.

        Unchanged if the gang has places, has started, may not preempt or cannot profit. After RESERVATION_S without
        success the hosts are released, and the gang does not preempt for PREEMPTION_REST_S. No victims are named while
        evictions pause.
        """
        plans, now_s, state = self._plans, self._clock.monotonic(), self._preemptions.get(gang.key)
        if state is not None and now_s - state.since_s >= RESERVATION_S:
            self._reservations.release(gang.key, ReservationReason.PREEMPTION)
            state.hosts = {}
            if now_s - state.since_s < RESERVATION_S + PREEMPTION_REST_S:
                return gated_gang
            self.forget(gang.key)
            state = None
        if (
            gated_gang.hosts or gated_gang.has_started
        ):  # it has its places, which stay reserved until its pods are bound
            return gated_gang
        preemption = None
        if may_preempt(gated_gang, gang):
            preemption = plan_preemption(
                plans, gang, state.hosts if state else {}, self._evicted_uids, self._clock.wall()
            )
        if preemption is None:
            self._reservations.release(gang.key, ReservationReason.PREEMPTION)
            if state is not None:
                state.hosts = {}
            return gated_gang
        state = self._preemptions.setdefault(gang.key, _PreemptionState(now_s, self._clock.wall() + RESERVATION_S))
        state.hosts = preemption.hosts
        nodes = tuple(sorted(set(preemption.hosts.values())))
        self._reservations.reserve(
            Reservation(gang.key, nodes, ReservationReason.PREEMPTION, gang.priority, state.until_s)
        )
        victims = preemption.victims if self._pauses.may_try(gang.key, now_s) else ()
        return replace(gated_gang, preemption=replace(preemption, victims=victims, refusal_detail=state.refusal_detail))

    async def evict(self, key: GangKey, victims: tuple[Evict, ...]) -> bool:
        """Evict pods one after the other, and report each to its owner. True if all are evicted or deleted already.

        key: of the gang for which they leave. False if one is refused or fails, after which no other is evicted, if the
        Lease is lost, or if the reservation of the hosts cannot be published: then no pod is evicted.
        """
        if not await self._reservations.publish(key):
            return False
        done = 0
        async for result in evict_each(self._calls, victims):
            pod = result.pod
            self._metrics.evictions.labels(result.outcome.value).inc()
            if result.error is not None:
                self._note_failure(key, pod, result.error)
                continue  # it was the last
            done += 1
            if result.outcome is EvictionOutcome.EVICTED:
                if pod.uid in self._view.pods:  # its deletion may have been shown before the answer
                    self._evicted_uids.add(pod.uid)
                log.info("evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "gang": str(key)})
                self._notify(Notice(pod.reason, pod.namespace, pod.name, pod.uid, pod.detail[:500]))
        if done < len(victims):  # one was refused, or another leads by now
            return False
        if (state := self._preemptions.get(key)) is not None:
            state.refusal_detail = ""
            self._pauses.note_success(key)
        return True

    def _note_failure(self, key: GangKey, each: Evict, error: CallError) -> None:
        """Log that an eviction failed; if the gang preempts, store the reason and pause its evictions.

        each: the pod that was not evicted.
        """
        log.warning("eviction_failed", extra={"pod": f"{each.namespace}/{each.name}", "why": str(error)})
        if (state := self._preemptions.get(key)) is None:
            return
        state.refusal_detail = f"pod {each.namespace}/{each.name} cannot be evicted for it: {error.message[:200]}"
        self._pauses.note_failure(key, self._clock.monotonic(), error.retry_after_s)


REPAIR_INTERVAL_S = 2.0
REPAIR_REST_S = 600.0  # after the start of a repair: a gang that is stuck again waits
FAILED_REPAIR_REST_S = 3600.0  # after a move whose gang did not get its room, so that it reserves room again rarely
MAX_MOVES_PER_NAMESPACE = 4  # gangs of one namespace that move at a time, since whole hosts are reserved for each
MAX_GANGS_PER_TICK = 256  # gangs that are looked at in one tick
MAX_GANGS_IN_PARALLEL = 16  # gangs whose pods are evicted in parallel, so that one tenant does not block the others
REPAIR_BACKOFF = Backoff(first_s=2.0, max_s=30.0)  # of a gang's evictions, when one is refused or fails


class Repairer:
    """Repairs the gangs of one cluster while `run` runs."""

    def __init__(
        self,
        watches: WatchState,
        calls: Calls,
        clock: Clock,
        metrics: NominatorMetrics,
        notify: Callable[[Notice], None],
        reservations: ReservationWriter,
        gangs_per_tick: int = MAX_GANGS_PER_TICK,
    ) -> None:
        """Start without stuck gangs.

        notify: receives the notices for the owners of pods. gangs_per_tick: how many gangs are looked at in one tick,
        >= 1; the others follow in the next ticks.
        """
        self._watches, self._calls, self._clock, self._notify = watches, calls, clock, notify
        self._reservations = reservations
        self._plans, self._view = watches.plans, watches.plans.view
        self._stuck_since_s: dict[GangKey, float] = {}  # gang -> since when it is stuck
        self._last_repair_s: dict[GangKey, float] = {}  # gang -> when its last repair began
        self._pauses = RetryPauses[GangKey](REPAIR_BACKOFF)
        self._gangs_per_tick = gangs_per_tick
        self._turns = 0  # how often gangs were chosen
        self._last_turn: dict[GangKey, int] = {}  # gang -> its last turn; only of waiting gangs with a remedy
        self._metrics = metrics

    async def run(self) -> None:
        """Repair gangs until cancelled. The time that a gang is stuck begins again with each new leader."""
        self._stuck_since_s.clear()
        self._last_repair_s.clear()
        self._pauses.clear()
        while True:
            await self.tick()
            await self._clock.sleep(REPAIR_INTERVAL_S)

    async def tick(self) -> None:
        """Carry out the repairs that are due, MAX_GANGS_IN_PARALLEL at once, and return when their evictions were sent.

        Does nothing while the view may be old. What is known of deleted gangs is forgotten.
        """
        if self._watches.may_be_old():
            return
        gangs = self._view.gangs
        for table in (self._stuck_since_s, self._last_repair_s):
            for key in [key for key in table if key not in gangs]:
                del table[key]
        self._pauses.forget(lambda key: key not in gangs)
        slots = asyncio.Semaphore(MAX_GANGS_IN_PARALLEL)
        async with asyncio.TaskGroup() as group:
            for key in self._choose_gangs():
                async with slots:  # a gang is decided on when its evictions can begin, so on the cluster as it is then
                    gang = gangs.get(key)
                    repair = None if gang is None else self._due_repair(gang)
                if gang is not None and repair is not None:
                    group.create_task(self._repair(gang, repair, slots))
                await asyncio.sleep(0)  # the Lease and the probes do not wait for all plans

    def _choose_gangs(self) -> list[GangKey]:
        """Return the waiting gangs with a remedy, at most `gangs_per_tick`, and remember their turn.

        The gangs whose last turn is the longest ago come first, and before them those that had none.
        """
        wishing = [g.key for g in waiting_gangs(self._view.gangs.values()) if g.repair.remedy is not Remedy.WAIT]
        turns = {key: self._last_turn.get(key, 0) for key in wishing}
        chosen = sorted(wishing, key=turns.__getitem__)[: self._gangs_per_tick]
        self._turns += 1
        self._last_turn = turns | dict.fromkeys(chosen, self._turns)
        return chosen

    def _due_repair(self, gang: Gang) -> GangRepair | None:
        """Return the repair of a gang; None if it is not due, or nothing can repair the gang. Notes since when the gang
        is stuck.

        It is due once the gang has been stuck for its owner's time. For REPAIR_REST_S after a repair it is due only
        when a pause after a failed eviction is over, and for FAILED_REPAIR_REST_S after a failed repair not at all. A
        new repair that moves the gang is not due while MAX_MOVES_PER_NAMESPACE gangs of the namespace move.
        """
        now_s, plans = self._clock.monotonic(), self._plans
        stuck_gang = find_stuck_gang(plans, gang, now_s)
        if stuck_gang is None:
            self._stuck_since_s.pop(gang.key, None)
            return None
        since_s = self._stuck_since_s.setdefault(gang.key, now_s)
        if self._reservations.failed_within(gang.key, FAILED_REPAIR_REST_S):
            self._pauses.note_success(gang.key)  # the next repair is a new one
            return None
        is_in_rest_period = gang.key in self._last_repair_s and now_s - self._last_repair_s[gang.key] < REPAIR_REST_S
        if is_in_rest_period and not (gang.key in self._pauses and self._pauses.may_try(gang.key, now_s)):
            return None
        if not is_in_rest_period and now_s - since_s < gang.repair.after_s:
            return None
        others = self._reservations.count(gang.key.namespace, ReservationReason.REPAIR)
        if gang.repair.remedy is Remedy.MOVE and others >= MAX_MOVES_PER_NAMESPACE and not is_in_rest_period:
            return None
        return plan_repair(plans, gang, stuck_gang)

    async def _repair(self, gang: Gang, repair: GangRepair, slots: asyncio.Semaphore) -> None:
        """Evict the pods of a gang one after the other. If the gang moves, its new nodes are reserved first.

        Nothing is evicted if that reservation cannot be published. If the first attempt evicts no pod, the reservation
        is released. slots: limits the gangs whose pods are evicted in parallel. repair: the members to evict, and the
        nodes to which the gang moves.
        """
        key, is_first_attempt = gang.key, gang.key not in self._pauses
        async with slots:
            if repair.nodes:
                until_s = self._reservations.end_of(key, ReservationReason.REPAIR)  # a retry does not prolong it
                until_s = self._clock.wall() + RESERVATION_S if until_s is None else until_s
                self._reservations.reserve(
                    Reservation(key, repair.nodes, ReservationReason.REPAIR, gang.priority, until_s)
                )
                if not await self._reservations.publish(key):
                    self._reservations.release(key, ReservationReason.REPAIR)
                    return
            done = await self._evict_each(key, repair.victims)
        if not done and is_first_attempt:  # nothing has left, so nothing moves
            self._reservations.release(key, ReservationReason.REPAIR)

    async def _evict_each(self, key: GangKey, victims: tuple[Evict, ...]) -> int:
        """Evict pods until an eviction is refused or fails, or the Lease is lost; report each evicted pod to its owner.

        Returns how many are evicted or deleted already.

        Notes when the repair began, unless it continues after a pause. If all are evicted, the gang's pauses end.
        """
        if key not in self._pauses:
            self._last_repair_s[key] = self._clock.monotonic()
        done = 0
        async for result in evict_each(self._calls, victims):
            pod = result.pod
            if result.error is not None:
                self._note_failure(key, pod, result.error)
                continue  # it was the last
            done += 1
            if result.outcome is EvictionOutcome.EVICTED:
                self._metrics.repairs.labels(pod.reason.value).inc()
                log.info("evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "reason": pod.reason.value})
                self._notify(Notice(pod.reason, pod.namespace, pod.name, pod.uid, pod.detail[:500]))
        if done == len(victims):  # else one was refused, or another leads by now
            self._pauses.note_success(key)
        return done

    def _note_failure(self, key: GangKey, each: Evict, error: CallError) -> None:
        """Log that an eviction failed and pause the gang's repairs.

        A refusal (429) is reported to the owner, too, with the message of the API server.

        each: the pod that was not evicted.
        """
        log.warning("eviction_failed", extra={"pod": f"{each.namespace}/{each.name}", "why": str(error)})
        self._pauses.note_failure(key, self._clock.monotonic(), error.retry_after_s)
        if error.status == 429:
            why = f"pod {each.name} cannot be evicted: {error.message[:200]}"
            self._notify(Notice(EventReason.EVICTION_REFUSED, each.namespace, each.name, each.uid, why))
