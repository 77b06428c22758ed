"""Evict pods for gangs behind our gates, and hold the hosts that they leave, for a bounded time.

One set of pods leaves for a gang, and no second one while any of them is there. What the API server refuses for a
disruption budget is tried again later. Whoever takes over sees by nominations and deletionTimestamps what is under way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry

from turnout.jobs.gang import GangKey
from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import Clock
from turnout.kube.errors import CallError
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.gates.evictions import may_preempt, plan_preemption, reserve_hosts
from turnout.scheduler_ext.gates.model import GatedGang
from turnout.scheduler_ext.gates.runtime.eviction_calls import EvictionOutcome, Evictions, evict_each
from turnout.scheduler_ext.gates.runtime.gate_metrics import EvictionMetrics
from turnout.scheduler_ext.model import EventReason, Evict, Notice
from turnout.scheduler_ext.server.extender import Extender

log = logging.getLogger("turnout.nominator")

RESERVATION_S = 600.0  # how long hosts are held for a gang: longer than most pods may take to leave
PREEMPTION_REST_S = 600.0  # how long nobody is evicted for a gang that did not get its hosts in that time
EVICTION_BACKOFF = Backoff(first_s=2.0, max_s=30.0)  # of a gang's evictions, when one is refused or fails


@dataclass(slots=True)
class _PreemptionState:
    """The room that is made for a gang. since_s: when that began."""

    since_s: float
    hosts: Mapping[str, str] = field(default_factory=dict)
    refusal_detail: str = ""
    failures: int = 0  # in a row
    paused_until_s: float = 0.0  # nothing is evicted before


class Evictor:
    """Makes room for the gangs of one cluster. One writer of gates calls it."""

    def __init__(
        self,
        view: Extender,
        calls: Evictions,
        clock: Clock,
        registry: CollectorRegistry,
        tell: Callable[[Notice], None],
        may_write: Callable[[], bool],
    ) -> None:
        self._view, self._calls, self._clock, self._notify, self._may_write = view, calls, clock, tell, may_write
        self._preemptions: dict[GangKey, _PreemptionState] = {}
        self._evicted_uids: set[str] = set()  # uids of evicted pods, until they are gone
        self._count = EvictionMetrics(registry).outcomes
        view.on_drop.append(self._evicted_uids.discard)

    def forget_all(self) -> None:
        """Begin a term: what another leader did meanwhile is read from the API server."""
        for key in list(self._preemptions):
            self.forget(key)
        self._evicted_uids.clear()

    def forget(self, key: GangKey) -> None:
        """Hold nothing for a gang any more: it goes, or is gone."""
        self._preemptions.pop(key, None)
        self._view.plans.reservations.release(key)

    def forget_deleted_gangs(self) -> None:
        """Hold nothing for gangs that are gone."""
        for key in [key for key in self._preemptions if key not in self._view.view.gangs]:
            self.forget(key)

    def add_preemption(self, gated_gang: GatedGang, gang: Gang) -> GatedGang:
        """Add to a gang's turn the room that is made for it, and hold that room against lower gangs."""
        plans, now_s, state = self._view.plans, self._clock.monotonic(), self._preemptions.get(gang.key)
        if state is not None and now_s - state.since_s >= RESERVATION_S:
            plans.reservations.release(gang.key)
            state.hosts = {}
            if now_s - state.since_s < RESERVATION_S + PREEMPTION_REST_S:
                return gated_gang
            self.forget(gang.key)
            state = None
        if gated_gang.hosts or gated_gang.has_started:  # it has its places, which stay held until it has gone there
            return gated_gang
        preemption = None
        if may_preempt(gated_gang, gang):
            preemption = plan_preemption(
                plans, gang, state.hosts if state else {}, self._evicted_uids, self._clock.wall()
            )
        if preemption is None:
            plans.reservations.release(gang.key)
            if state is not None:
                state.hosts = {}
            return gated_gang
        state = self._preemptions.setdefault(gang.key, _PreemptionState(now_s))
        state.hosts = preemption.hosts
        reserve_hosts(plans, gang, preemption.hosts.values())
        victims = preemption.victims if now_s >= state.paused_until_s else ()
        return replace(gated_gang, preemption=replace(preemption, victims=victims, refusal_detail=state.refusal_detail))

    async def evict(self, key: GangKey, victims: tuple[Evict, ...]) -> bool:
        """Evict pods one after the other. False, and none of the rest, when one is refused."""
        done = 0
        async for result in evict_each(self._calls, victims, self._may_write):
            pod = result.pod
            self._count.labels(result.outcome.value).inc()
            if result.error is not None:
                self._note_failure(key, pod, result.error)
                continue  # it was the last
            done += 1
            if result.outcome is EvictionOutcome.EVICTED:
                self._evicted_uids.add(pod.uid)
                log.info("evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "gang": str(key)})
                self._notify(Notice(EventReason.PREEMPTED, pod.namespace, pod.name, pod.uid, pod.detail[:500]))
        if done < len(victims):  # one was refused, or another leads by now
            return False
        if (state := self._preemptions.get(key)) is not None:
            state.refusal_detail, state.failures = "", 0
        return True

    def _note_failure(self, key: GangKey, each: Evict, error: CallError) -> None:
        log.warning("eviction_failed", extra={"pod": f"{each.namespace}/{each.name}", "why": str(error)})
        if (state := self._preemptions.get(key)) is None:
            return
        state.failures += 1
        state.refusal_detail = f"pod {each.namespace}/{each.name} cannot be evicted for it: {error.message[:200]}"
        state.paused_until_s = self._clock.monotonic() + EVICTION_BACKOFF.wait_s(
            state.failures, 1.0, error.retry_after_s
        )
