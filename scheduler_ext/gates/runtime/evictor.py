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
from turnout.scheduler_ext.gates.evictions import hold, make_room, may_preempt
from turnout.scheduler_ext.gates.model import Evict, Turn
from turnout.scheduler_ext.gates.runtime.eviction_calls import Evictions, Outcome, evict_each
from turnout.scheduler_ext.gates.runtime.gate_metrics import EvictionCounts
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.scheduler_ext.server.extender import Extender

log = logging.getLogger("turnout.nominator")

HELD_S = 600.0  # how long hosts are held for a gang: longer than most pods may take to leave
RESTS_S = 600.0  # how long nobody is evicted for a gang that did not get its hosts in that time
PAUSE = Backoff(first_s=2.0, max_s=30.0)  # of a gang's evictions, when one is refused or fails


@dataclass(slots=True)
class _Made:
    """The room that is made for a gang. since_s: when that began."""

    since_s: float
    hosts: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    failures: int = 0  # in a row
    until_s: float = 0.0  # nothing is evicted before


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
        self._view, self._calls, self._clock, self._tell, self._may_write = view, calls, clock, tell, may_write
        self._made: dict[GangKey, _Made] = {}
        self._sent: set[str] = set()  # uids of evicted pods, until they are gone
        self._count = EvictionCounts(registry).came
        view.on_drop.append(self._sent.discard)

    def forget_all(self) -> None:
        """Begin a term: what another leader did meanwhile is read from the API server."""
        for key in list(self._made):
            self.forget(key)
        self._sent.clear()

    def forget(self, key: GangKey) -> None:
        """Hold nothing for a gang any more: it goes, or is gone."""
        self._made.pop(key, None)
        self._view.plan_cache.held.release(key)

    def forget_gone(self) -> None:
        """Hold nothing for gangs that are gone."""
        for key in [key for key in self._made if key not in self._view.gangs.gangs]:
            self.forget(key)

    def with_room(self, turn: Turn, gang: Gang) -> Turn:
        """Add to a gang's turn the room that is made for it, and hold that room against lower gangs."""
        plans, now_s, made = self._view.plan_cache, self._clock.monotonic(), self._made.get(gang.key)
        if made is not None and now_s - made.since_s >= HELD_S:
            plans.held.release(gang.key)
            made.hosts = {}
            if now_s - made.since_s < HELD_S + RESTS_S:
                return turn
            self.forget(gang.key)
            made = None
        if turn.hosts or turn.begun:  # it has its places, which stay held until it has gone there
            return turn
        making = None
        if may_preempt(turn, gang):
            making = make_room(plans, gang, made.hosts if made else {}, self._sent, self._clock.wall())
        if making is None:
            plans.held.release(gang.key)
            if made is not None:
                made.hosts = {}
            return turn
        made = self._made.setdefault(gang.key, _Made(now_s))
        made.hosts = making.hosts
        hold(plans, gang, making.hosts.values())
        victims = making.victims if now_s >= made.until_s else ()
        return replace(turn, making=replace(making, victims=victims, refused=made.refused))

    async def evict(self, key: GangKey, victims: tuple[Evict, ...]) -> bool:
        """Evict pods one after the other. False, and none of the rest, when one is refused."""
        done = 0
        async for asked in evict_each(self._calls, victims, self._may_write):
            pod = asked.pod
            self._count.labels(asked.outcome.value).inc()
            if asked.error is not None:
                self._failed(key, pod, asked.error)
                continue  # it was the last
            done += 1
            if asked.outcome is Outcome.EVICTED:
                self._sent.add(pod.uid)
                log.info("evicted", extra={"pod": f"{pod.namespace}/{pod.name}", "gang": str(key)})
                self._tell(Notice(EventReason.PREEMPTED, pod.namespace, pod.name, pod.uid, pod.why[:500]))
        if done < len(victims):  # one was refused, or another leads by now
            return False
        if (made := self._made.get(key)) is not None:
            made.refused, made.failures = "", 0
        return True

    def _failed(self, key: GangKey, each: Evict, error: CallError) -> None:
        log.warning("eviction_failed", extra={"pod": f"{each.namespace}/{each.name}", "why": str(error)})
        if (made := self._made.get(key)) is None:
            return
        made.failures += 1
        made.refused = f"pod {each.namespace}/{each.name} cannot be evicted for it: {error.message[:200]}"
        made.until_s = self._clock.monotonic() + PAUSE.wait_s(made.failures, 1.0, error.retry_after_s)
