"""Write the nominations that nominate.py decides on: one patch per pod, many at once, never over another program's.

Each patch carries the pod's uid and resourceVersion. So a pod that changed meanwhile stays as it is, and is looked at
again when the watch shows its change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter

from turnout.jobs.gang import GangKey
from turnout.kube import labels
from turnout.kube.client.clock import Clock
from turnout.kube.errors import CallError, Conflict, NotFound
from turnout.kube.objects import Pod
from turnout.scheduler_ext.cache.unseen_groups import Group
from turnout.scheduler_ext.planner.nominate import Nominating, Nomination, Why, clear_all, nominate
from turnout.scheduler_ext.planner.work import QUESTION_STEPS
from turnout.scheduler_ext.server.extender import Extender

log = logging.getLogger("turnout.nominator")

AT_ONCE = 32
LOOK_EACH_S = 1.0  # at everything: expiry, refusals that end, room that came back
SENT_S = 5.0  # how long a patch that the watch has not shown yet is not repeated


class PodStatus(Protocol):
    """The part of a Client that is needed here."""

    async def patch(self, path: str, body: dict[str, Any], *, field_manager: str) -> bytes:
        """Patch a pod and return the result. Raises Conflict when its version or uid is not the body's."""


class Nominations:
    """The counters for the metrics page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.written = Counter(
            "turnout_nominations", "Nominations written or cleared, by why.", ["why"], registry=registry
        )
        self.failed = Counter(
            "turnout_nomination_failures", "Patches that were refused, by error.", ["error"], registry=registry
        )


class Nominator:
    """Keeps the nominations of one cluster equal to the plan while `run` runs."""

    def __init__(
        self,
        view: Extender,
        pods: PodStatus,
        choices: Nominating,
        clock: Clock,
        registry: CollectorRegistry,
        may_write: Callable[[], bool],
    ) -> None:
        """Start watching pods.

        may_write: True while the Lease is ours; called before each patch.
        """
        self._view, self._pods, self._choices, self._clock = view, pods, choices, clock
        self._may_write = may_write
        self._counts = Nominations(registry)
        self._versions: dict[str, str] = {}
        self._since_s: dict[str, float] = {}  # uid -> since when the nomination of `_named` stands, or ended
        self._named: dict[str, str] = {}
        self._sent: dict[str, tuple[str, float]] = {}
        self.due: dict[GangKey, None] = {}  # gangs to look at next, while this replica leads
        self._leads = False
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)
        view.on_pod.append(self.see)

    def see(self, pod: Pod) -> None:
        """Take in a pod as the watch shows it."""
        uid = pod.metadata.uid
        member = self._view.gangs.pods.get(uid)
        if member is None or not member.waits:
            for kept in (self._versions, self._since_s, self._named, self._sent, self._view.gangs.sent):
                kept.pop(uid, None)
            return
        self._versions[uid] = pod.metadata.resource_version
        if member.ours and self._named.get(uid) != member.nominated:
            self._named[uid] = member.nominated
            self._since_s[uid] = self._clock.monotonic()
        sent = self._sent.get(uid)
        if sent is not None and sent[0] == member.nominated:
            del self._sent[uid]
            self._view.gangs.sent.pop(uid, None)
        if member.nominated and not (member.ours and self._is_news(uid, member.nominated)):
            return
        if self._leads:  # a term begins with a look at every waiting gang
            self.due[member.belongs.key] = None
            self._news.set()

    async def run(self) -> None:
        """Nominate until cancelled. Patches under way are cancelled, too, so a former leader writes nothing."""
        self._view.plan_cache.plan_anew()  # ours may differ from those by which a former leader has written
        self._leads = True
        try:
            await self._work()
        finally:
            self._leads = False
            self.due.clear()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._news.wait()
                self._news.clear()
                due, self.due = self._in_order(self.due), {}
                while due:
                    for wish in self._decide(due):
                        await self._room.acquire()
                        tasks.create_task(self._write(wish))
                    if due:
                        await asyncio.sleep(0)  # the Lease and the probes do not wait for all plans

    async def clear(self) -> int:
        """Take back every nomination of ours, and return how many there were."""
        wishes = clear_all(self._view.gangs.pods.values())
        async with asyncio.TaskGroup() as tasks:
            for wish in wishes:
                await self._room.acquire()
                tasks.create_task(self._write(wish))
        return len(wishes)

    def _is_news(self, uid: str, node: str) -> bool:
        """True if our nomination names another node than the plan does by now."""
        member = self._view.gangs.pods[uid]
        standing = self._view.plan_cache.standing(member.belongs.key)
        host = standing.hosts.get(uid) if standing is not None else None
        return host is None or self._view.gangs.fabric.hosts[host] != node

    async def _tick(self) -> None:
        """Look at every waiting gang once a second."""
        while True:
            now_s = self._clock.monotonic()
            for uid in [u for u, s in self._since_s.items() if now_s - s > 2 * self._choices.expire_s]:
                del self._since_s[uid]  # given up long ago: it may be nominated again
                self._named.pop(uid, None)
            self.due.update(dict.fromkeys(gang.key for gang in self._view.gangs.waiting_gangs()))
            self._news.set()
            await self._clock.sleep(LOOK_EACH_S)

    def _in_order(self, keys: Iterable[GangKey]) -> deque[GangKey]:
        """Return those of some gangs that still exist, in the order in which the scheduler will ask."""
        gangs = [gang for key in keys if (gang := self._view.gangs.gangs.get(key)) is not None]
        return deque(gang.key for gang in sorted(gangs, key=lambda gang: (-gang.priority, gang.age[0])))

    def _decide(self, due: deque[GangKey]) -> list[Nomination]:
        """Take due gangs, as many as may be planned at once, and return what to write for them."""
        now_s, plans = self._clock.monotonic(), self._view.plan_cache
        before, wishes = plans.steps, list[Nomination]()
        while due and plans.steps - before < QUESTION_STEPS:
            key = due.popleft()
            if self._view.group_of(key) is not Group.AWAITED:  # what is written on pods cannot be taken back in time
                wishes += nominate(plans, (key,), self._choices, self._since_s, now_s)
        fresh = []
        for wish in wishes:
            sent = self._sent.get(wish.uid)
            if sent is not None and sent[0] == wish.node and now_s - sent[1] < SENT_S:
                continue
            self._sent[wish.uid] = (wish.node, now_s)
            self._view.gangs.sent[wish.uid] = wish.node  # a plan made before the watch shows it keeps to it
            fresh.append(wish)
        return fresh

    async def _write(self, wish: Nomination) -> None:
        version = self._versions.get(wish.uid)
        meta = {"uid": wish.uid} | ({"resourceVersion": version} if version else {})
        body = {"metadata": meta, "status": {"nominatedNodeName": wish.node or None}}
        path = f"/api/v1/namespaces/{wish.namespace}/pods/{wish.name}/status"
        try:
            if not self._may_write():  # a leader that was paused wakes up: somebody else leads by now
                return
            await self._pods.patch(path, body, field_manager=labels.FIELD_MANAGER_NOMINATOR)
        except (Conflict, NotFound) as error:
            self._failed(wish, error)  # it changed or went: its next sighting says what to do
        except CallError as error:
            self._failed(wish, error)
            log.warning("nomination_failed", extra={"pod": f"{wish.namespace}/{wish.name}", "why": str(error)})
        else:
            self._counts.written.labels(wish.why.value).inc()
            if wish.why is Why.EXPIRED:
                self._since_s[wish.uid] = self._clock.monotonic()
            elif not wish.node:
                self._since_s.pop(wish.uid, None)
                self._named.pop(wish.uid, None)
            log.debug("nominated", extra={"pod": wish.name, "node": wish.node, "reason": wish.why.value})
        finally:
            self._room.release()

    def _failed(self, wish: Nomination, error: CallError) -> None:
        self._counts.failed.labels(type(error).__name__).inc()
        self._sent.pop(wish.uid, None)
        self._view.gangs.sent.pop(wish.uid, None)
        self._view.gangs.assumed_pods.forget(wish.uid)
