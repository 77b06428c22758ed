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
from turnout.scheduler_ext.gates.model import Evict
from turnout.scheduler_ext.gates.repairs import Remedied, remedy, stuck
from turnout.scheduler_ext.gates.runtime.eviction_calls import Evictions, Outcome, evict_each
from turnout.scheduler_ext.gates.runtime.gate_metrics import RepairCounts
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.scheduler_ext.server.extender import Extender

log = logging.getLogger("turnout.nominator")

LOOK_EACH_S = 2.0
RESTS_S = 600.0  # after a remedy was begun: a gang that is stuck once more waits
MOST_GANGS = 256  # looked at in one look; the rest has the next
AT_ONCE = 16  # gangs whose pods are evicted side by side, so that many of one tenant do not keep all others waiting
PAUSE = Backoff(first_s=2.0, max_s=30.0)  # of a gang's evictions, when one is refused or fails


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
        self._view, self._calls, self._clock, self._tell, self._may_write = view, calls, clock, tell, may_write
        self._since_s: dict[GangKey, float] = {}  # since when each gang is stuck
        self._begun: dict[GangKey, float] = {}  # when the last remedy of each gang began
        self._pauses: dict[GangKey, tuple[int, float]] = {}  # failures in a row, and until when nothing is tried
        self._looked_at: list[GangKey] = []
        self._counts = RepairCounts(registry)

    async def run(self) -> None:
        """Look until cancelled. A term begins afresh: how long a gang is stuck is counted from its first look."""
        for table in (self._since_s, self._begun, self._pauses):
            table.clear()
        while True:
            await self.look()
            await self._clock.sleep(LOOK_EACH_S)

    async def look(self) -> None:
        """Look at the gangs whose owners wish a remedy, and evict what is due."""
        if self._view.may_be_old():
            return
        gangs = self._view.gangs.gangs
        for table in (self._since_s, self._begun, self._pauses):
            for key in [key for key in table if key not in gangs]:
                del table[key]
        slots = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for key in self._turn():
                async with slots:  # a gang is decided on when its evictions can begin, so on the cluster as it is then
                    gang = gangs.get(key)
                    found = None if gang is None else self._due(gang)
                if gang is not None and found is not None:
                    group.create_task(self._evict(key, found, slots))
                await asyncio.sleep(0)  # the Lease and the probes do not wait for all plans

    def _turn(self) -> list[GangKey]:
        """Return the gangs of this look: at most so many, those first that were not looked at the last time."""
        wishing = [g.key for g in self._view.gangs.waiting_gangs() if g.repair.remedy is not Remedy.WAIT]
        last = set(self._looked_at)
        self._looked_at = sorted(wishing, key=lambda key: key in last)[:MOST_GANGS]
        return self._looked_at

    def _due(self, gang: Gang) -> Remedied | None:
        """Return what is to be done for a gang now; None where nothing is."""
        now_s, plans = self._clock.monotonic(), self._view.plan_cache
        how = stuck(plans, gang, now_s)
        if how is None:
            self._since_s.pop(gang.key, None)
            return None
        since_s = self._since_s.setdefault(gang.key, now_s)
        failed = self._pauses.get(gang.key)
        rests = gang.key in self._begun and now_s - self._begun[gang.key] < RESTS_S
        if rests and (failed is None or now_s < failed[1]):
            return None
        if not rests and now_s - since_s < gang.repair.after_s:
            return None
        return remedy(plans, gang, how)

    async def _evict(self, key: GangKey, found: Remedied, slots: asyncio.Semaphore) -> None:
        """Evict a gang's pods one after the other, and none of the rest when one is refused."""
        async with slots:
            await self._evict_each(key, found)

    async def _evict_each(self, key: GangKey, found: Remedied) -> None:
        if key not in self._pauses:
            self._begun[key] = self._clock.monotonic()
        done = 0
        async for asked in evict_each(self._calls, found.victims, self._may_write):
            pod = asked.pod
            if asked.error is not None:
                self._failed(key, pod, asked.error)
                continue  # it was the last
            done += 1
            if asked.outcome is Outcome.EVICTED:
                self._counts.evicted.labels(found.word.value).inc()
                log.info("evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "reason": found.word.value})
                self._tell(Notice(found.word, pod.namespace, pod.name, pod.uid, found.detail[:500]))
        if done == len(found.victims):  # else one was refused, or another leads by now
            self._pauses.pop(key, None)

    def _failed(self, key: GangKey, each: Evict, error: CallError) -> None:
        log.warning("eviction_failed", extra={"pod": f"{each.namespace}/{each.name}", "why": str(error)})
        failures = self._pauses.get(key, (0, 0.0))[0] + 1
        until_s = self._clock.monotonic() + PAUSE.wait_s(failures, 1.0, error.retry_after_s)
        self._pauses[key] = failures, until_s
        if error.status == 429:
            why = f"pod {each.name} cannot be evicted: {error.message[:200]}"
            self._tell(Notice(EventReason.EVICTION_REFUSED, each.namespace, each.name, each.uid, why))
