"""Lift gates as `gates/release.py` decides: all nominations of a gang first, then all gates, many patches in parallel.

Each patch carries the pod's uid and resourceVersion, and its response is read as the newest state of the pod. So a
former leader, or a second one, changes no pod that was changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube import labels
from turnout.kube.backoff import Backoff, RetryPauses
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, NotFound, NotLeading
from turnout.kube.objects import Pod
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.request_hints import PodGroupState
from turnout.scheduler_ext.gates.release import Writes, next_writes, observe_gated_gang
from turnout.scheduler_ext.model import EventReason, Evict, GatedPod, Lift, LiftReason, Nominate, Notice
from turnout.scheduler_ext.planner.batches import QUESTION_STEPS
from turnout.scheduler_ext.planner.nominations import NominationChoices
from turnout.scheduler_ext.server.metrics import OTHER_GATE, PLANNED, GateWait, NominatorMetrics
from turnout.scheduler_ext.server.watches import WatchState
from turnout.scheduler_ext.wire.pod_messages import gated_pod, lift_patch, nomination_patch
from turnout.scheduler_ext.writers.eviction_writer import Evictor
from turnout.topology.model import Refusal

log = logging.getLogger("turnout.nominator")

MAX_PATCHES = 64  # patches on their way
MAX_WRITE_ROUNDS = 4  # for a gang, one after the other: nominations, gates, and what changes meanwhile need
ROOM_INTERVAL_S = 0.1  # how soon released room is noticed
TICK_S = 1.0  # between two checks of all gated gangs: failed writes, and members that do not come
MAX_POSTPONEMENT_S = 2.0  # how long a gang waits until the nomination of another gang is moved
BACKOFF = Backoff(first_s=1.0, max_s=10.0)  # of a gang's writes, when the server refuses or fails
REPORT_AFTER_S = 10.0  # how long a gang waits for one reason before its owner gets a notice
REPORT_INTERVAL_S = 1_800.0  # and repeats it, because an API server deletes Events after an hour

_pod_decoder = msgspec.json.Decoder(Pod)


@dataclass(slots=True)
class _ReportedWait:
    """A gang that waits for one reason."""

    reason: EventReason
    next_report_s: float  # time of the next report to the owner, by the monotonic clock


class GateWriter:
    """Lifts the gates of one cluster while `run` runs."""

    def __init__(
        self,
        watches: WatchState,
        pods: Calls,
        choices: NominationChoices,
        clock: Clock,
        metrics: NominatorMetrics,
        notify: Callable[[Notice], None],
        evictor: Evictor | None = None,
    ) -> None:
        """Start watching pods.

        notify: receives the notices for the owners of pods. evictor: None where nobody is evicted for a gang.
        """
        self._pods, self._choices, self._clock = pods, choices, clock
        self._plans, self._view, self._watches = watches.plans, watches.plans.view, watches
        self._notify, self._evictor = notify, evictor
        self._metrics = metrics
        self._gated_pods: dict[str, GatedPod] = {}
        self._lifts: dict[
            str, tuple[int, str]
        ] = {}  # uid -> resourceVersion and node, until the watch shows the pod bound
        self._waiting: dict[GangKey, _ReportedWait] = {}
        self._due_gangs: dict[GangKey, None] = {}
        self._due_single_pods: dict[str, None] = {}  # uids of gated pods without a gang
        self._busy: set[GangKey | str] = set()
        self._postponed: dict[GangKey, float] = {}  # gang -> since when it waits for a nomination of another gang
        self._pauses = RetryPauses[GangKey | str](BACKOFF)  # by gang or uid of a single pod
        self._leads = False
        self._wake = asyncio.Event()
        self._patch_slots = asyncio.Semaphore(MAX_PATCHES)
        metrics.show_gated_pods(lambda: len(self._gated_pods))
        metrics.show_oldest_gates(self._gate_waits)
        self._view.lifts_gates = True
        watches.follow_pods(self.observe_pod, self.drop)

    def observe_pod(self, pod: Pod) -> None:
        """Store a gated pod, and mark the pod as due if it has no gang; else its gang, while this replica leads.

        A pod without our gate, or one that the view does not know, is dropped: update the view first. A version older
        than the newest known state, which may come from our own patch, is ignored.
        """
        uid = pod.metadata.uid
        if _version_number(pod.metadata.resource_version) < self._newest_version(uid):
            return
        member, gated = self._view.pods.get(uid), gated_pod(pod)
        if member is None or gated is None:
            self._note_ungated(pod)
            return
        self._gated_pods[uid] = gated
        if gated.nominated == self._view.unconfirmed_nominations.get(uid):
            del self._view.unconfirmed_nominations[uid]
        if member.membership.key.dialect == Dialect.ALONE.value:
            self._due_single_pods[uid] = None
            self._wake.set()
        else:
            self._mark_due(member.membership.key)

    def _newest_version(self, uid: str) -> int:
        """Return the resourceVersion of the newest known state of a pod; 0 for an unknown pod."""
        if (lift := self._lifts.get(uid)) is not None:
            return lift[0]
        known = self._gated_pods.get(uid)
        return _version_number(known.version) if known is not None else 0

    def _note_ungated(self, pod: Pod) -> None:
        """Note that a pod does not carry our gate any more, or is unknown to the view.

        If we lifted its gate and the pod is bound or unknown, the lift is forgotten, and a binding is counted. The gang
        of a known pod that had the gate is marked as due.
        """
        uid = pod.metadata.uid
        known, lift, member = self._gated_pods.pop(uid, None), self._lifts.get(uid), self._view.pods.get(uid)
        self._due_single_pods.pop(uid, None)
        if lift is not None and (pod.spec.node_name or member is None):
            self._note_binding(uid, lift[1], pod.spec.node_name)
        if member is not None and (known is not None or lift is not None):
            self._mark_due(member.membership.key)

    def drop(self, uid: str) -> None:
        """Forget a deleted pod."""
        for table in (self._gated_pods, self._lifts, self._due_single_pods):
            table.pop(uid, None)

    async def run(self) -> None:
        """Lift gates until cancelled. Old plans are forgotten first; patches under way are cancelled with it.

        So a former leader writes nothing.
        """
        self._patch_slots = asyncio.Semaphore(MAX_PATCHES)  # a cancelled term released none of its slots
        self._busy.clear()
        self._postponed.clear()
        self._pauses.clear()
        if self._evictor is not None:
            self._evictor.forget_all()
        self._plans.forget_plans()  # our plans may differ from the plans of a former leader
        self._leads = True
        try:
            await self._process_changes()
        finally:
            self._leads = False
            self._due_gangs.clear()

    async def _process_changes(self) -> None:
        """Decide on due gangs and single pods until cancelled, and write for each in a task of its own.

        Those with writes under way are skipped. The end of a gang's writes decides on that gang again.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._wake.wait()
                self._wake.clear()
                single_pods, self._due_single_pods = [uid for uid in self._due_single_pods if uid not in self._busy], {}
                for uid in single_pods:
                    self._busy.add(uid)
                    tasks.create_task(self._lift_single_pod(uid))
                due, self._due_gangs = self._sort_gangs(self._due_gangs), {}
                while due:
                    for key, writes in self._decide(due):
                        self._busy.add(key)
                        tasks.create_task(self._write_gang(key, writes))
                    if due:
                        await asyncio.sleep(0)  # the Lease and the probes are served between plans

    # Which gangs are due.

    def _mark_due(self, key: GangKey) -> None:
        if self._leads:  # otherwise the first tick of a term finds it
            self._due_gangs[key] = None
            self._wake.set()

    async def _tick(self) -> None:
        """Mark every gated gang and single pod as due: every TICK_S seconds, and at most ROOM_INTERVAL_S after room
        became free or the map changed.

        Runs until cancelled.
        """
        ticked_s, versions = 0.0, None
        while True:
            now_s = self._clock.monotonic()
            current = (self._view.snapshot.gain_version, self._view.layout_version)
            if current != versions or now_s - ticked_s >= TICK_S:
                ticked_s, versions = now_s, current
                self._forget_old(now_s)
                for uid in self._gated_pods:
                    key = self._view.pods[uid].membership.key
                    if key.dialect == Dialect.ALONE.value:
                        self._due_single_pods[uid] = None
                    else:
                        self._due_gangs[key] = None
                self._wake.set()
            await self._clock.sleep(ROOM_INTERVAL_S)

    def _forget_old(self, now_s: float) -> None:
        """Forget the waits and preemptions of deleted gangs, and failures of long ago.

        now_s: by the monotonic clock.
        """
        for key in [key for key in self._waiting if key not in self._view.gangs]:
            del self._waiting[key]
        if self._evictor is not None:
            self._evictor.forget_deleted_gangs()
        self._pauses.forget_old(now_s)

    def _sort_gangs(self, keys: Iterable[GangKey]) -> deque[GangKey]:
        """Return the gangs of `keys` that exist and for which no writes are under way, by priority, then by
        creation.
        """
        free = [key for key in keys if key not in self._busy]
        gangs = [gang for key in free if (gang := self._view.gangs.get(key)) is not None]
        return deque(gang.key for gang in sorted(gangs, key=lambda gang: (-gang.priority, gang.age[0])))

    # What to write.

    def _decide(self, due: deque[GangKey]) -> list[tuple[GangKey, Writes]]:
        """Remove due gangs from the queue until the planner's steps for one turn are spent.

        Returns (gang, writes) where not empty.
        """
        plans, found = self._plans, []
        before = plans.steps
        while due and plans.steps - before < QUESTION_STEPS:
            key = due.popleft()
            if writes := self._writes(key):
                found.append((key, writes))
        return found

    def _writes(self, key: GangKey) -> Writes:
        """Return the next writes for a gang, and report to its owner why members wait. () if nothing is to be written
        now.

        () also while the gang pauses after a failure, or waits at most MAX_POSTPONEMENT_S for another gang's
        nomination. The places of the returned writes are assumed as taken.
        """
        gang = self._view.gangs.get(key)
        if gang is None or not any(uid in self._gated_pods for uid in gang.members):
            self._waiting.pop(key, None)
            if self._evictor is not None:
                self._evictor.forget(key)
            return ()
        now_s, plans = self._clock.monotonic(), self._plans
        if not self._pauses.may_try(key, now_s):
            return ()
        plans.view.settle(now_s)
        awaits_pod_group = self._watches.pod_group_state(key) is PodGroupState.AWAITED
        gated_gang = observe_gated_gang(
            plans, gang, self._gated_pods, self._lifts, self._choices.schedulers, now_s, awaits_pod_group
        )
        if self._evictor is not None:
            gated_gang = self._evictor.add_preemption(gated_gang, gang)
        writes, wait = next_writes(gated_gang)
        self._report_wait(key, gated_gang.gated_pods, wait)
        if (
            self._conflicts_with_nomination(key, writes)
            and now_s - self._postponed.setdefault(key, now_s) < MAX_POSTPONEMENT_S
        ):
            return ()
        self._postponed.pop(key, None)
        self._assume_writes(writes)
        return writes

    def _conflicts_with_nomination(self, key: GangKey, writes: Writes) -> bool:
        """Return True if a node of a lift is nominated for a gated pod of another gang that is not planned there.

        The scheduler would reserve that node for the other pod. That other gang is marked as due, so that its
        nomination is cleared or moved.
        """
        nodes = {each.node for each in writes if isinstance(each, Lift) and each.node}
        for uid, pod in self._gated_pods.items() if nodes else ():
            member = self._view.pods.get(uid)
            if pod.nominated not in nodes or member is None or member.membership.key == key:
                continue
            if self._planned_node(member) != pod.nominated:
                self._due_gangs[member.membership.key] = None
                self._wake.set()
                return True
        return False

    def _planned_node(self, member: GangMember) -> str:
        """Return the node on which a member takes room, else the node of its plan; "" if it has neither."""
        plan = self._plans.current_plan(member.membership.key)
        host = plan.hosts.get(member.uid) if plan is not None else None
        return self._view.node_of(member) or (self._view.fabric.hosts[host] if host is not None else "")

    def _report_wait(self, key: GangKey, gated: tuple[GatedPod, ...], wait: Refusal | None) -> None:
        """Report to the owner of the first gated pod why the gang waits, once it has waited for one reason for
        REPORT_AFTER_S.

        Repeated every REPORT_INTERVAL_S. gated: the gated pods. wait: None if the gang does not wait.
        """
        now_s, known = self._clock.monotonic(), self._waiting.get(key)
        if wait is None:
            self._waiting.pop(key, None)
            return
        reason = EventReason(wait.reason.value)
        if known is None or known.reason is not reason:
            self._waiting[key] = _ReportedWait(reason, now_s + REPORT_AFTER_S)
        elif now_s >= known.next_report_s:
            known.next_report_s = now_s + REPORT_INTERVAL_S
            first = gated[0]
            self._notify(Notice(reason, first.namespace, first.name, first.uid, wait.detail[:500]))

    def _gate_waits(self) -> Iterator[GateWait]:
        """Yield each gated pod as a wait of its gang, or of the pod alone.

        Left out are pods that the view does not know or that have no creation time. A follower does not know why gangs
        wait, and yields nothing.
        """
        now_s = self._clock.wall()
        for uid, pod in self._gated_pods.items() if self._leads else ():
            member, created_s = self._view.pods.get(uid), unix_s(pod.created)
            if member is None or created_s is None:
                continue
            key = member.membership.key
            reason = OTHER_GATE if pod.other_gates else PLANNED
            if (wait := self._waiting.get(key)) is not None:
                reason = wait.reason.value
            yield GateWait(max(0.0, now_s - created_s), key.namespace, key.name, reason)

    # Writing.

    async def _write_gang(self, key: GangKey, writes: Writes) -> None:
        """Send a gang's writes, then decide on the next ones and send those, up to MAX_WRITE_ROUNDS times.

        Ends early if nothing is left or a write failed: the next tick goes on. The caller has put `key` into `_busy`;
        it is taken out at the end. writes: the first ones.
        """
        try:
            for _ in range(MAX_WRITE_ROUNDS):
                if not await self._send(key, writes):
                    return
                writes = self._writes(key)
                if not writes:
                    return
        finally:
            self._busy.discard(key)
            if self._postponed:
                self._due_gangs.update(dict.fromkeys(self._postponed))
                self._wake.set()

    async def _send(self, key: GangKey, writes: Writes) -> bool:
        """Send the writes of a gang, in parallel unless they are evictions. Return True if all were accepted.

        For evictions the result of Evictor.evict(); False without an evictor.
        """
        evictions = tuple(each for each in writes if isinstance(each, Evict))
        if evictions:
            return self._evictor is not None and await self._evictor.evict(key, evictions)
        return all(await asyncio.gather(*(self._write(each) for each in writes if not isinstance(each, Evict))))

    async def _lift_single_pod(self, uid: str) -> None:
        """Lift the gate of a pod that belongs to no gang, and report that to its owner.

        Sends nothing while the pod pauses after a failure, or if it is not gated any more. The caller has put `uid`
        into `_busy`; it is taken out at the end.
        """
        pod = self._gated_pods.get(uid)
        try:
            may_try = pod is not None and self._pauses.may_try(uid, self._clock.monotonic())
            if pod is not None and may_try and await self._write(Lift(pod, LiftReason.NO_GANG)):
                detail = f"{labels.PLACEMENT_GATE} was lifted: the pod belongs to no gang"
                self._notify(Notice(EventReason.GATE_WITHOUT_GANG, pod.namespace, pod.name, uid, detail))
        finally:
            self._busy.discard(uid)

    async def _write(self, write: Nominate | Lift) -> bool:
        """Send one patch. True if it was accepted; its response counts as a state of the pod.

        False without the Lease, and if it fails: then the failure is noted.
        """
        pod = write.pod
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        lifts = isinstance(write, Lift)
        body = lift_patch(write) if isinstance(write, Lift) else nomination_patch(write)
        async with self._patch_slots:
            try:
                answer = await self._pods.patch(
                    path if lifts else f"{path}/status", body, field_manager=labels.FIELD_MANAGER_NOMINATOR
                )
                shown_pod = _pod_decoder.decode(answer)
            except NotLeading:
                return False
            except (CallError, msgspec.DecodeError) as error:
                self._note_failure(write, error)
                return False
        self._note_success(write, shown_pod)
        return True

    def _note_success(self, write: Nominate | Lift, answer: Pod) -> None:
        """Store the result of an accepted write, end the pauses of its gang, and count a lifted gate.

        answer: the pod as the API server returned it, which counts as its newest state.
        """
        uid = write.pod.uid
        self._pauses.note_success(self._key_of(write.pod))
        log.debug("gate_written", extra={"pod": write.pod.name, "node": write.node, "lifts": isinstance(write, Lift)})
        if isinstance(write, Nominate):
            if (gated := gated_pod(answer)) is not None:
                self._gated_pods[uid] = gated
            return
        self._gated_pods.pop(uid, None)
        self._lifts[uid] = (_version_number(answer.metadata.resource_version), write.node)
        self._metrics.lifts.labels(write.reason.value).inc()
        created_s = unix_s(write.pod.created)
        if created_s is not None:
            self._metrics.gate_wait_s.observe(max(0.0, self._clock.wall() - created_s))

    def _assume_writes(self, writes: Writes) -> None:
        """Store the writes in the view before they are sent, so that no other gang is planned on their places."""
        view, now_s = self._view, self._clock.monotonic()
        for each in writes:
            if isinstance(each, Evict) or (member := view.pods.get(each.pod.uid)) is None:
                continue
            if isinstance(each, Nominate):
                view.unconfirmed_nominations[each.pod.uid] = each.node  # nominated pods come before new pods
                view.changed_gangs.add(member.membership.key)
            elif each.node:
                view.assume(member, each.node, now_s)

    def _note_failure(self, write: Nominate | Lift, error: CallError | msgspec.DecodeError) -> None:
        """Count a failed write and release its place. Unless the pod only changed or was deleted, its gang pauses."""
        pod = write.pod
        what = "nomination" if isinstance(write, Nominate) else "gate"
        self._metrics.patch_failures.labels(what, type(error).__name__).inc()
        member = self._view.pods.get(pod.uid)
        if isinstance(write, Nominate):
            self._view.unconfirmed_nominations.pop(pod.uid, None)
        if member is not None:
            self._view.forget_assumed(member)
        if not isinstance(error, (Conflict, NotFound)):  # the pod changed or was deleted: its next state decides
            retry_after_s = error.retry_after_s if isinstance(error, CallError) else 0.0
            self._pauses.note_failure(self._key_of(pod), self._clock.monotonic(), retry_after_s)
            log.warning("gate_failed", extra={"pod": f"{pod.namespace}/{pod.name}", "why": str(error)})

    def _key_of(self, pod: GatedPod) -> GangKey | str:
        member = self._view.pods.get(pod.uid)
        is_single = member is None or member.membership.key.dialect == Dialect.ALONE.value
        return pod.uid if member is None or is_single else member.membership.key

    def _note_binding(self, uid: str, node: str, bound: str) -> None:
        del self._lifts[uid]
        if node and bound:
            self._metrics.bindings.labels(str(bound == node).lower()).inc()


def _version_number(version: str) -> int:
    """Return a resourceVersion as a number, by which states of one pod are ordered; 0 if it is not a number."""
    return int(version) if version.isdecimal() and len(version) <= 20 else 0
