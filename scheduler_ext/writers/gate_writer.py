"""Lift gates as `gates/release.py` decides: all nominations of a gang first, then all gates, many patches in parallel.

`gate_patches.py` sends each patch. `gates/gang_waits.py` decides when an owner gets a notice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube import labels
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.objects import Pod
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.request_hints import PodGroupState
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.gates.gang_waits import GangWaits
from turnout.scheduler_ext.gates.release import Writes, next_writes, observe_gated_gang
from turnout.scheduler_ext.model import EventReason, Evict, GatedPod, Lift, LiftReason, Nominate, Notice
from turnout.scheduler_ext.planner.batches import QUESTION_STEPS
from turnout.scheduler_ext.planner.nominations import NominationChoices
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.server.fault_log import FaultLog
from turnout.scheduler_ext.server.metrics import OTHER_GATE, PLANNED, GateWait, NominatorMetrics
from turnout.scheduler_ext.server.watches import WatchState
from turnout.scheduler_ext.wire.pod_messages import gated_pod
from turnout.scheduler_ext.writers.eviction_writer import Evictor
from turnout.scheduler_ext.writers.gate_patches import GatedPods, GatePatches, version_number

MAX_WRITE_ROUNDS = 4  # for a gang, one after the other: nominations, gates, and what changes meanwhile need
ROOM_INTERVAL_S = 0.1  # how soon released room is noticed
TICK_S = 1.0  # between two checks of all gated gangs: failed writes, and members that do not come
MAX_POSTPONEMENT_S = 2.0  # how long a gang waits until the nomination of another gang is moved

_NO_WRITES: Writes = ()


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
        self._choices, self._clock = choices, clock
        self._plans, self._view, self._watches = watches.plans, watches.plans.view, watches
        self._notify, self._evictor = notify, evictor
        self._metrics, self._faults = metrics, FaultLog(clock.monotonic)
        self._gated = GatedPods()
        self._gang_waits = GangWaits()
        self._patches = GatePatches(pods, self._view, self._gated, clock, metrics)
        self._due_gangs: dict[GangKey, None] = {}
        self._due_single_pods: dict[str, None] = {}  # uids of gated pods without a gang
        self._busy: set[GangKey | str] = set()
        self._postponed: dict[GangKey, float] = {}  # gang -> since when it waits for a nomination of another gang
        self._is_leading = False
        self._wake = asyncio.Event()
        metrics.show_gated_pods(lambda: len(self._gated.by_uid))
        # A follower does not know why gangs wait.
        metrics.show_oldest_gates(
            lambda: (
                gate_waits(self._view, self._gated.by_uid, self._gang_waits, clock.wall()) if self._is_leading else ()
            )
        )
        self._view.lifts_gates = True
        watches.follow_pods(self.observe_pod, self.drop)

    def observe_pod(self, pod: Pod) -> None:
        """Store a gated pod, and mark the pod as due if it has no gang; else its gang, while this replica leads.

        A pod without our gate, or one that the view does not know, is dropped: update the view first. A version older
        than the newest known state, which may come from our own patch, is ignored.
        """
        uid = pod.metadata.uid
        if version_number(pod.metadata.resource_version) < self._gated.newest_version(uid):
            return
        member, gated = self._view.pods.get(uid), gated_pod(pod)
        if member is None or gated is None:
            self._note_ungated(pod)
            return
        self._gated.by_uid[uid] = gated
        if gated.nominated == self._view.unconfirmed_nominations.get(uid):
            del self._view.unconfirmed_nominations[uid]
        if member.membership.key.dialect == Dialect.ALONE.value:
            self._due_single_pods[uid] = None
            self._wake.set()
        else:
            self._mark_due(member.membership.key)

    def _note_ungated(self, pod: Pod) -> None:
        """Note that a pod does not carry our gate any more, or is unknown to the view.

        If we lifted its gate and the pod is bound or unknown, the lift is forgotten, and a binding is counted. The gang
        of a known pod that had the gate is marked as due.
        """
        uid = pod.metadata.uid
        gated = self._gated
        known, lift, member = gated.by_uid.pop(uid, None), gated.lifts.get(uid), self._view.pods.get(uid)
        self._due_single_pods.pop(uid, None)
        if lift is not None and (pod.spec.node_name or member is None):
            del gated.lifts[uid]
            if lift.node and pod.spec.node_name:
                self._metrics.bindings.labels(str(pod.spec.node_name == lift.node).lower()).inc()
        if member is not None and (known is not None or lift is not None):
            self._mark_due(member.membership.key)

    def drop(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._gated.drop(uid)
        self._due_single_pods.pop(uid, None)

    async def run(self) -> None:
        """Lift gates until cancelled. Old plans are forgotten first; patches under way are cancelled with it.

        So a former leader writes nothing.
        """
        self._patches.reset()
        self._busy.clear()
        self._postponed.clear()
        if self._evictor is not None:
            self._evictor.forget_all()
        self._plans.forget_plans()  # our plans may differ from the plans of a former leader
        self._is_leading = True
        try:
            await self._process_changes()
        finally:
            self._is_leading = False
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
                free = [key for key in self._due_gangs if key not in self._busy]
                due, self._due_gangs = sort_gangs(self._view, free), {}
                while due:
                    before = self._plans.steps
                    while due and self._plans.steps - before < QUESTION_STEPS:
                        key = due.popleft()
                        decide = partial(self._writes, key)
                        if writes := self._faults.call("gang_not_decided", decide, _NO_WRITES, gang=str(key)):
                            self._busy.add(key)
                            tasks.create_task(self._write_gang(key, writes))
                    if due:
                        await asyncio.sleep(0)  # the Lease and the probes are served between plans

    # Which gangs are due.

    def _mark_due(self, key: GangKey) -> None:
        if self._is_leading:  # otherwise the first tick of a term finds it
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
                self._gang_waits.forget_deleted_gangs(self._view.gangs)
                if self._evictor is not None:
                    self._evictor.forget_deleted_gangs()
                self._patches.pauses.forget_old(now_s)
                for uid in self._gated.by_uid:
                    if (member := self._view.pods.get(uid)) is None:
                        continue  # the view has dropped the pod, and our own table follows
                    key = member.membership.key
                    if key.dialect == Dialect.ALONE.value:
                        self._due_single_pods[uid] = None
                    else:
                        self._due_gangs[key] = None
                self._wake.set()
            await self._clock.sleep(ROOM_INTERVAL_S)

    # What to write.

    def _writes(self, key: GangKey) -> Writes:
        """Return the next writes for a gang, and report to its owner why members wait. () if nothing is to be written
        now.

        () also while the gang pauses after a failure, or waits at most MAX_POSTPONEMENT_S for another gang's
        nomination. The places of the returned writes are assumed as taken.
        """
        gang = self._view.gangs.get(key)
        if gang is None or not any(uid in self._gated.by_uid for uid in gang.members):
            self._gang_waits.forget(key)
            if self._evictor is not None:
                self._evictor.forget(key)
            return ()
        now_s, plans = self._clock.monotonic(), self._plans
        if not self._patches.pauses.may_try(key, now_s):
            return ()
        plans.view.settle(now_s)
        awaits_pod_group = self._watches.pod_group_state(key) is PodGroupState.AWAITED
        gated_gang = observe_gated_gang(
            plans, gang, self._gated.by_uid, self._gated.lifts, self._choices.schedulers, now_s, awaits_pod_group
        )
        if self._evictor is not None:
            gated_gang = self._evictor.add_preemption(gated_gang, gang)
        writes, wait = next_writes(gated_gang)
        if (notice := self._gang_waits.update(key, gated_gang.gated_pods, wait, now_s)) is not None:
            self._notify(notice)
        if (other := gang_in_conflict(plans, self._gated.by_uid, key, writes)) is not None:
            self._due_gangs[other] = None  # so that its nomination is cleared or moved
            self._wake.set()
            if now_s - self._postponed.setdefault(key, now_s) < MAX_POSTPONEMENT_S:
                return ()
        self._postponed.pop(key, None)
        assume_writes(self._view, writes, self._clock.monotonic())
        return writes

    # Writing.

    async def _write_gang(self, key: GangKey, writes: Writes) -> None:
        """Send a gang's writes, then decide on the next ones and send those, up to MAX_WRITE_ROUNDS times.

        Ends early if nothing is left or a write failed: the next tick goes on. The caller has put `key` into `_busy`;
        it is taken out at the end. writes: the first ones.
        """
        try:
            for _ in range(MAX_WRITE_ROUNDS):
                evictions = tuple(each for each in writes if isinstance(each, Evict))
                if evictions:
                    accepted = self._evictor is not None and await self._evictor.evict(key, evictions)
                else:
                    patches = [self._patches.send(each) for each in writes if not isinstance(each, Evict)]
                    accepted = all(await asyncio.gather(*patches))
                if not accepted:
                    return
                writes = self._faults.call("gang_not_decided", partial(self._writes, key), _NO_WRITES, gang=str(key))
                if not writes:
                    return
        finally:
            self._busy.discard(key)
            if self._postponed:
                self._due_gangs.update(dict.fromkeys(self._postponed))
                self._wake.set()

    async def _lift_single_pod(self, uid: str) -> None:
        """Lift the gate of a pod that belongs to no gang, and report that to its owner.

        Sends nothing while the pod pauses after a failure, or if it is not gated any more. The caller has put `uid`
        into `_busy`; it is taken out at the end.
        """
        pod = self._gated.by_uid.get(uid)
        try:
            may_try = pod is not None and self._patches.pauses.may_try(uid, self._clock.monotonic())
            if pod is not None and may_try and await self._patches.send(Lift(pod, LiftReason.NO_GANG)):
                detail = f"{labels.PLACEMENT_GATE} was lifted: the pod belongs to no gang"
                self._notify(Notice(EventReason.GATE_WITHOUT_GANG, pod.namespace, pod.name, uid, detail))
        finally:
            self._busy.discard(uid)


def sort_gangs(view: ClusterView, keys: Iterable[GangKey]) -> deque[GangKey]:
    """Return the gangs of `keys` that exist, by priority, then by creation."""
    gangs = [gang for key in keys if (gang := view.gangs.get(key)) is not None]
    return deque(gang.key for gang in sorted(gangs, key=lambda gang: (-gang.priority, gang.age[0])))


def gang_in_conflict(plans: Plans, gated_pods: Mapping[str, GatedPod], key: GangKey, writes: Writes) -> GangKey | None:
    """Return another gang of which a gated pod is nominated for a node of a lift, and not planned there; None if there
    is none.

    The scheduler would reserve that node for the other pod. gated_pods: uid -> pod. key, writes: the gang that lifts,
    and its writes.
    """
    nodes = {each.node for each in writes if isinstance(each, Lift) and each.node}
    for uid, pod in gated_pods.items() if nodes else ():
        member = plans.view.pods.get(uid)
        if pod.nominated not in nodes or member is None or member.membership.key == key:
            continue
        if _planned_node(plans, member) != pod.nominated:
            return member.membership.key
    return None


def _planned_node(plans: Plans, member: GangMember) -> str:
    """Return the node on which a member takes room, else the node of its plan; "" if it has neither."""
    plan = plans.current_plan(member.membership.key)
    host = plan.hosts.get(member.uid) if plan is not None else None
    return plans.view.node_of(member) or (plans.view.fabric.hosts[host] if host is not None else "")


def assume_writes(view: ClusterView, writes: Writes, now_s: float) -> None:
    """Store writes in the view before they are sent, so that no other gang is planned on their places.

    now_s: by the monotonic clock.
    """
    for each in writes:
        if isinstance(each, Evict) or (member := view.pods.get(each.pod.uid)) is None:
            continue
        if isinstance(each, Nominate):
            view.unconfirmed_nominations[each.pod.uid] = each.node  # nominated pods come before new pods
            view.changed_gangs.add(member.membership.key)
        elif each.node:
            view.assume(member, each.node, now_s)


def gate_waits(
    view: ClusterView, gated_pods: Mapping[str, GatedPod], gang_waits: GangWaits, wall_s: float
) -> Iterator[GateWait]:
    """Yield each gated pod as a wait of its gang, or of the pod alone.

    Left out are pods that the view does not know or that have no creation time. gated_pods: uid -> pod. wall_s: seconds
    since 1970.
    """
    for uid, pod in gated_pods.items():
        member, created_s = view.pods.get(uid), unix_s(pod.created)
        if member is None or created_s is None:
            continue
        key = member.membership.key
        reason = gang_waits.reason(key)
        word = reason.value if reason is not None else OTHER_GATE if pod.other_gates else PLANNED
        yield GateWait(max(0.0, wall_s - created_s), key.namespace, key.name, word)
