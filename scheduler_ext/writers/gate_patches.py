"""Send patches of gated pods, and store what the API server showed of these pods last.

Each patch carries the pod's uid and resourceVersion, and its response is read as the newest state of the pod. So a
former leader, or a second one, changes no pod that was changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube import labels
from turnout.kube.backoff import Backoff, RetryPauses
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, NotFound, NotLeading
from turnout.kube.objects import Pod
from turnout.kube.status import decode_answer
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import GatedPod, Lift, Nominate
from turnout.scheduler_ext.server.metrics import NominatorMetrics
from turnout.scheduler_ext.wire.pod_messages import gated_pod, lift_patch, nomination_patch

log = logging.getLogger("turnout.nominator")

MAX_PATCHES = 64  # patches on their way
BACKOFF = Backoff(first_s=1.0, max_s=10.0)  # of a gang's writes, when the server refuses or fails

_pod_decoder = msgspec.json.Decoder(Pod)


def version_number(version: str) -> int:
    """Return a resourceVersion as a number, by which states of one pod are ordered; 0 if it is not a number."""
    return int(version) if version.isdecimal() and len(version) <= 20 else 0


@dataclass(frozen=True, slots=True)
class SentLift:
    """A lift that the API server has accepted."""

    version: int  # the resourceVersion of the pod after the lift
    node: str  # the node that was planned, "" for none


class GatedPods:
    """The pods behind our gate as the API server showed them last, and the lifts that the watch has not shown yet."""

    def __init__(self) -> None:
        self.by_uid: dict[str, GatedPod] = {}
        self.lifts: dict[str, SentLift] = {}  # by uid, until the watch shows the pod bound

    def newest_version(self, uid: str) -> int:
        """Return the resourceVersion of the newest known state of a pod; 0 for an unknown pod."""
        if (lift := self.lifts.get(uid)) is not None:
            return lift.version
        known = self.by_uid.get(uid)
        return version_number(known.version) if known is not None else 0

    def store_lift(self, uid: str, answer: Pod, node: str) -> None:
        """Store that the gate of a pod is lifted.

        answer: the pod after the lift. node: its planned node, "" for none.
        """
        self.by_uid.pop(uid, None)
        self.lifts[uid] = SentLift(version_number(answer.metadata.resource_version), node)

    def drop(self, uid: str) -> None:
        """Forget a deleted pod."""
        self.by_uid.pop(uid, None)
        self.lifts.pop(uid, None)


class GatePatches:
    """Sends patches of gated pods, a limited number at a time, and stores their results."""

    def __init__(
        self, pods: Calls, view: ClusterView, gated: GatedPods, clock: Clock, metrics: NominatorMetrics
    ) -> None:
        """Start without pauses. gated: gets the state of each pod that was patched."""
        self._pods, self._view, self._gated, self._clock, self._metrics = pods, view, gated, clock, metrics
        self.pauses = RetryPauses[GangKey | str](BACKOFF)  # by gang or uid of a single pod
        self._slots = asyncio.Semaphore(MAX_PATCHES)

    def reset(self) -> None:
        """End all pauses, and free the slots of patches that were cancelled."""
        self._slots = asyncio.Semaphore(MAX_PATCHES)
        self.pauses.clear()

    async def send(self, write: Nominate | Lift) -> bool:
        """Send one patch. True if it was accepted; its response counts as a state of the pod.

        False without the Lease, and if it fails: then the failure is noted.
        """
        pod = write.pod
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        path += "" if isinstance(write, Lift) else "/status"
        body = lift_patch(write) if isinstance(write, Lift) else nomination_patch(write)
        async with self._slots:
            try:
                answer = await self._pods.patch(path, body, field_manager=labels.FIELD_MANAGER_NOMINATOR)
                shown_pod = decode_answer(_pod_decoder, "PATCH", path, answer)
            except NotLeading:
                return False
            except CallError as error:
                self._note_failure(write, error)
                return False
        self._note_success(write, shown_pod)
        return True

    def _note_success(self, write: Nominate | Lift, answer: Pod) -> None:
        """Store the result of an accepted write, end the pauses of its gang, and count a lifted gate.

        answer: the pod as the API server returned it, which counts as its newest state. It is not stored if the watch
        has shown the deletion of the pod meanwhile.
        """
        uid = write.pod.uid
        is_known = uid in self._view.pods
        self.pauses.note_success(_pause_key(self._view, write.pod))
        log.debug("gate_written", extra={"pod": write.pod.name, "node": write.node, "lifts": isinstance(write, Lift)})
        if isinstance(write, Nominate):
            if is_known and (gated := gated_pod(answer)) is not None:
                self._gated.by_uid[uid] = gated
            return
        if is_known:
            self._gated.store_lift(uid, answer, write.node)
        self._metrics.lifts.labels(write.reason.value).inc()
        created_s = unix_s(write.pod.created)
        if created_s is not None:
            self._metrics.gate_wait_s.observe(max(0.0, self._clock.wall() - created_s))

    def _note_failure(self, write: Nominate | Lift, error: CallError) -> None:
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
            self.pauses.note_failure(_pause_key(self._view, pod), self._clock.monotonic(), error.retry_after_s)
            log.warning("gate_failed", extra={"pod": f"{pod.namespace}/{pod.name}", "why": str(error)})


def _pause_key(view: ClusterView, pod: GatedPod) -> GangKey | str:
    """Return whom a failed write of a pod pauses: its gang, or the uid of a pod without a gang."""
    member = view.pods.get(pod.uid)
    is_single = member is None or member.membership.key.dialect == Dialect.ALONE.value
    return pod.uid if member is None or is_single else member.membership.key
