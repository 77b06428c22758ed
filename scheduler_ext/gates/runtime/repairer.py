"""Evict what is left of gangs that are below their min for long, where their owners wish it (gates/repairs.py).

A gang is looked at while this process leads and sees the cluster as it is now. It has to be stuck all the time, for as
long as its owner said; after that it rests, so that no gang is moved again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from turnout.jobs.gang import GangKey
from turnout.jobs.repair import Remedy
from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import Clock
from turnout.kube.errors import CallError
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.gates.repairs import RepairPlan, find_stuck_gang, plan_repair
from turnout.scheduler_ext.gates.runtime.eviction_calls import EvictionOutcome, Evictions, evict_each
from turnout.scheduler_ext.gates.runtime.gate_metrics import RepairMetrics
from turnout.scheduler_ext.model import EventReason, Evict, Notice
from turnout.scheduler_ext.server.extender import Extender

log = logging.getLogger("turnout.nominator")

REPAIR_INTERVAL_S = 2.0
REPAIR_REST_S = 600.0  # after a remedy was begun: a gang that is stuck once more waits
MAX_GANGS_PER_TICK = 256  # looked at in one look; the rest has the next
MAX_GANGS_IN_PARALLEL = (
    16  # gangs whose pods are evicted side by side, so that many of one tenant do not keep all others waiting
)
REPAIR_BACKOFF = Backoff(first_s=2.0, max_s=30.0)  # of a gang's evictions, when one is refused or fails


class Repairer:
    """Takes the remedies of one cluster's gangs while `run` runs."""

    def __init__(
        self,
        view: Extender,
        calls: Evictions,
        clock: Clock,
        registry: CollectorRegistry,
        tell: Callable[[Notice], None],
        may_write: Callable[[], bool],
    ) -> None:
        """tell: receives the notices for the owners of pods. may_write: True while the Lease is ours."""
        self._view, self._calls, self._clock, self._notify, self._may_write = view, calls, clock, tell, may_write
        self._stuck_since_s: dict[GangKey, float] = {}  # since when each gang is stuck
        self._started_s: dict[GangKey, float] = {}  # when the last remedy of each gang began
        self._pauses: dict[GangKey, tuple[int, float]] = {}  # failures in a row, and until when nothing is tried
        self._last_gangs: list[GangKey] = []
        self._counts = RepairMetrics(registry)

    async def run(self) -> None:
        """Look until cancelled. A term begins afresh: how long a gang is stuck is counted from its first look."""
        for table in (self._stuck_since_s, self._started_s, self._pauses):
            table.clear()
        while True:
            await self.tick()
            await self._clock.sleep(REPAIR_INTERVAL_S)

    async def tick(self) -> None:
        """Look at the gangs whose owners wish a remedy, and evict what is due."""
        if self._view.may_be_old():
            return
        gangs = self._view.view.gangs
        for table in (self._stuck_since_s, self._started_s, self._pauses):
            for key in [key for key in table if key not in gangs]:
                del table[key]
        slots = asyncio.Semaphore(MAX_GANGS_IN_PARALLEL)
        async with asyncio.TaskGroup() as group:
            for key in self._choose_gangs():
                async with slots:  # a gang is decided on when its evictions can begin, so on the cluster as it is then
                    gang = gangs.get(key)
                    plan = None if gang is None else self._due_repair(gang)
                if gang is not None and plan is not None:
                    group.create_task(self._evict(key, plan, slots))
                await asyncio.sleep(0)  # the Lease and the probes do not wait for all plans

    def _choose_gangs(self) -> list[GangKey]:
        """Return the gangs of this look: at most so many, those first that were not looked at the last time."""
        wishing = [g.key for g in self._view.view.waiting_gangs() if g.repair.remedy is not Remedy.WAIT]
        last = set(self._last_gangs)
        self._last_gangs = sorted(wishing, key=lambda key: key in last)[:MAX_GANGS_PER_TICK]
        return self._last_gangs

    def _due_repair(self, gang: Gang) -> RepairPlan | None:
        """Return what is to be done for a gang now; None where nothing is."""
        now_s, plans = self._clock.monotonic(), self._view.plans
        stuck_gang = find_stuck_gang(plans, gang, now_s)
        if stuck_gang is None:
            self._stuck_since_s.pop(gang.key, None)
            return None
        since_s = self._stuck_since_s.setdefault(gang.key, now_s)
        failed = self._pauses.get(gang.key)
        rests = gang.key in self._started_s and now_s - self._started_s[gang.key] < REPAIR_REST_S
        if rests and (failed is None or now_s < failed[1]):
            return None
        if not rests and now_s - since_s < gang.repair.after_s:
            return None
        return plan_repair(plans, gang, stuck_gang)

    async def _evict(self, key: GangKey, plan: RepairPlan, slots: asyncio.Semaphore) -> None:
        """Evict a gang's pods one after the other, and none of the rest when one is refused."""
        async with slots:
            await self._evict_each(key, plan)

    async def _evict_each(self, key: GangKey, plan: RepairPlan) -> None:
        if key not in self._pauses:
            self._started_s[key] = self._clock.monotonic()
        done = 0
        async for result in evict_each(self._calls, plan.victims, self._may_write):
            pod = result.pod
            if result.error is not None:
                self._note_failure(key, pod, result.error)
                continue  # it was the last
            done += 1
            if result.outcome is EvictionOutcome.EVICTED:
                self._counts.evictions.labels(plan.reason.value).inc()
                log.info("evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "reason": plan.reason.value})
                self._notify(Notice(plan.reason, pod.namespace, pod.name, pod.uid, plan.detail[:500]))
        if done == len(plan.victims):  # else one was refused, or another leads by now
            self._pauses.pop(key, None)

    def _note_failure(self, key: GangKey, each: Evict, error: CallError) -> None:
        log.warning("eviction_failed", extra={"pod": f"{each.namespace}/{each.name}", "why": str(error)})
        failures = self._pauses.get(key, (0, 0.0))[0] + 1
        until_s = self._clock.monotonic() + REPAIR_BACKOFF.wait_s(failures, 1.0, error.retry_after_s)
        self._pauses[key] = failures, until_s
        if error.status == 429:
            why = f"pod {each.name} cannot be evicted: {error.message[:200]}"
            self._notify(Notice(EventReason.EVICTION_REFUSED, each.namespace, each.name, each.uid, why))
