"""Write the nominations of `planner/nominations.py`: one patch per pod, many in parallel, none over another program's.

Each patch carries the pod's uid and resourceVersion. So a pod that changed meanwhile stays as it is, and is decided
again when the watch shows its change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial

from turnout.jobs.gang import GangKey
from turnout.kube import labels
from turnout.kube.backoff import PendingWrites
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, NotFound, NotLeading
from turnout.kube.objects import Pod
from turnout.kube.server.client_metrics import start_at_zero
from turnout.scheduler_ext.cluster.gang import waiting_gangs
from turnout.scheduler_ext.cluster.request_hints import PodGroupState
from turnout.scheduler_ext.planner.batches import QUESTION_STEPS
from turnout.scheduler_ext.planner.nominations import (
    Nomination,
    NominationChoices,
    NominationReason,
    clear_all,
    nominate,
)
from turnout.scheduler_ext.server.fault_log import FaultLog
from turnout.scheduler_ext.server.metrics import NominatorMetrics
from turnout.scheduler_ext.server.watches import WatchState

log = logging.getLogger("turnout.nominator")

MAX_PATCHES = 32
TICK_S = 1.0  # between two checks of all waiting gangs: expired nominations, ended refusals, released room
SENT_S = 5.0  # how long the same patch is not repeated


class NominationWriter:
    """Keeps the nominations of one cluster equal to the plan while `run` runs."""

    def __init__(
        self,
        watches: WatchState,
        pods: Calls,
        choices: NominationChoices,
        clock: Clock,
        metrics: NominatorMetrics,
    ) -> None:
        """Start watching pods."""
        self._watches, self._pods, self._choices, self._clock = watches, pods, choices, clock
        self._plans, self._view = watches.plans, watches.plans.view
        self._metrics, self._faults = metrics, FaultLog(clock.monotonic)
        start_at_zero(metrics.nominations, (reason.value for reason in NominationReason))
        self._versions: dict[str, str] = {}
        # Uid -> since when the nomination of `_nominated_nodes` stands, or when it expired.
        self._since_s: dict[str, float] = {}
        self._nominated_nodes: dict[str, str] = {}
        self._sent = PendingWrites[str, str](SENT_S)  # by uid, the nominated node
        self.due: dict[GangKey, None] = {}  # the gangs that are due, while this replica leads
        self._is_leading = False
        self._wake = asyncio.Event()
        self._patch_slots = asyncio.Semaphore(MAX_PATCHES)
        watches.follow_pods(self.observe_pod, self._forget)

    def observe_pod(self, pod: Pod) -> None:
        """Store a pod that the watch shows. While this replica leads, mark the pod's gang as due if the pod has no
        nomination or an outdated one of ours.

        A pod that does not wait any more is forgotten.
        """
        uid = pod.metadata.uid
        member = self._view.pods.get(uid)
        if member is None or not member.is_waiting:
            self._forget(uid)
            return
        self._versions[uid] = pod.metadata.resource_version
        if member.nominated_by_us and self._nominated_nodes.get(uid) != member.nominated:
            self._nominated_nodes[uid] = member.nominated
            self._since_s[uid] = self._clock.monotonic()
        if self._sent.confirm(uid, member.nominated):
            self._view.unconfirmed_nominations.pop(uid, None)
        if member.nominated and not (member.nominated_by_us and self._is_outdated(uid, member.nominated)):
            return
        if self._is_leading:  # a term begins with every waiting gang
            self.due[member.membership.key] = None
            self._wake.set()

    def _forget(self, uid: str) -> None:
        """Forget a pod that was deleted or does not wait any more. Does nothing for an unknown pod."""
        for table in (self._versions, self._since_s, self._nominated_nodes, self._view.unconfirmed_nominations):
            table.pop(uid, None)
        self._sent.forget(uid)

    async def run(self) -> None:
        """Nominate until cancelled. Old plans are forgotten first; patches under way are cancelled with it.

        So a former leader writes nothing.
        """
        self._plans.forget_plans()  # our plans may differ from the plans of a former leader
        self._is_leading = True
        try:
            await self._process_changes()
        finally:
            self._is_leading = False
            self.due.clear()

    async def _process_changes(self) -> None:
        """Decide on due gangs until cancelled, and write at most MAX_PATCHES nominations at a time."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._wake.wait()
                self._wake.clear()
                due, self.due = self._sort_gangs(self.due), {}
                while due:
                    for nomination in self._decide(due):
                        await self._patch_slots.acquire()
                        tasks.create_task(self._write(nomination))
                    if due:
                        await asyncio.sleep(0)  # the Lease and the probes are served between plans

    async def clear(self) -> int:
        """Clear all our nominations, and return how many there were. A write that fails is counted and logged only."""
        nominations = clear_all(self._view.pods.values())
        async with asyncio.TaskGroup() as tasks:
            for nomination in nominations:
                await self._patch_slots.acquire()
                tasks.create_task(self._write(nomination))
        return len(nominations)

    def _is_outdated(self, uid: str, node: str) -> bool:
        """Return True unless the current plan places the pod on this node; so also True without a plan.

        node: the node of our nomination.
        """
        member = self._view.pods[uid]
        plan = self._plans.current_plan(member.membership.key)
        host = plan.hosts.get(uid) if plan is not None else None
        return host is None or self._view.fabric.hosts[host] != node

    async def _tick(self) -> None:
        """Mark every waiting gang as due once a second, and forget nominations that expired long ago.

        Runs until cancelled.
        """
        while True:
            now_s = self._clock.monotonic()
            for uid in [u for u, s in self._since_s.items() if now_s - s > 2 * self._choices.expire_s]:
                del self._since_s[uid]  # expired long ago: the pod may be nominated again
                self._nominated_nodes.pop(uid, None)
            self.due.update(dict.fromkeys(gang.key for gang in waiting_gangs(self._view.gangs.values())))
            self._wake.set()
            await self._clock.sleep(TICK_S)

    def _sort_gangs(self, keys: Iterable[GangKey]) -> deque[GangKey]:
        """Return the gangs that still exist, in the order of the scheduler's questions."""
        gangs = [gang for key in keys if (gang := self._view.gangs.get(key)) is not None]
        return deque(gang.key for gang in sorted(gangs, key=lambda gang: (-gang.priority, gang.age[0])))

    def _decide(self, due: deque[GangKey]) -> list[Nomination]:
        """Remove due gangs from the queue until the planner's steps for one turn are spent.

        Returns the nominations to write.

        Gangs whose PodGroup is awaited get none, and a nomination that was just sent is left out. The returned
        nominations are stored in the view as sent.
        """
        now_s, plans = self._clock.monotonic(), self._plans
        before, nominations = plans.steps, list[Nomination]()
        while due and plans.steps - before < QUESTION_STEPS:
            key = due.popleft()
            if self._watches.pod_group_state(key) is PodGroupState.AWAITED:
                continue  # a written nomination cannot be taken back in time
            decide = partial(nominate, plans, (key,), self._choices, self._since_s, now_s)
            nominations += self._faults.call("gang_not_decided", decide, [], gang=str(key))
        fresh = []
        for nomination in nominations:
            if self._sent.is_pending(nomination.uid, nomination.node, now_s):
                continue
            self._sent.note(nomination.uid, nomination.node, now_s)
            self._view.unconfirmed_nominations[nomination.uid] = (
                nomination.node
            )  # so that a plan keeps to it before the watch shows it
            fresh.append(nomination)
        return fresh

    async def _write(self, nomination: Nomination) -> None:
        """Write one nomination, valid for one version of the pod, and release the patch slot.

        An error is counted, and the pod is decided again. Without the Lease nothing is written.
        """
        version = self._versions.get(nomination.uid)
        meta = {"uid": nomination.uid} | ({"resourceVersion": version} if version else {})
        body = {"metadata": meta, "status": {"nominatedNodeName": nomination.node or None}}
        path = f"/api/v1/namespaces/{nomination.namespace}/pods/{nomination.name}/status"
        try:
            await self._pods.patch(path, body, field_manager=labels.FIELD_MANAGER_NOMINATOR)
        except NotLeading:
            return
        except (Conflict, NotFound) as error:
            self._note_failure(nomination, error)  # the pod changed or was deleted: its next state decides
        except CallError as error:
            self._note_failure(nomination, error)
            log.warning(
                "nomination_failed", extra={"pod": f"{nomination.namespace}/{nomination.name}", "why": str(error)}
            )
        else:
            self._metrics.nominations.labels(nomination.reason.value).inc()
            if nomination.reason is NominationReason.EXPIRED:
                self._since_s[nomination.uid] = self._clock.monotonic()
            elif not nomination.node:
                self._since_s.pop(nomination.uid, None)
                self._nominated_nodes.pop(nomination.uid, None)
            log.debug(
                "nominated", extra={"pod": nomination.name, "node": nomination.node, "reason": nomination.reason.value}
            )
        finally:
            self._patch_slots.release()

    def _note_failure(self, nomination: Nomination, error: CallError) -> None:
        """Count a failed write, and remove the nomination from the view, so that its room is free again."""
        self._metrics.patch_failures.labels("nomination", type(error).__name__).inc()
        self._sent.forget(nomination.uid)
        self._view.unconfirmed_nominations.pop(nomination.uid, None)
        self._view.assumed_pods.forget(nomination.uid)
