"""Write the switch paths of `planner/nominations.py`: one patch per pod whose path differs, by one leader.

Each patch carries the pod's uid, so a new pod of the same name never gets the path of the pod before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from turnout.kube import labels
from turnout.kube.backoff import Backoff, PendingWrites, RetryPauses
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, NotFound, NotLeading, Rejected
from turnout.kube.objects import Pod
from turnout.scheduler_ext.planner.nominations import PathAnnotation, plan_annotations
from turnout.scheduler_ext.server.metrics import NominatorMetrics
from turnout.scheduler_ext.server.watches import WatchState

log = logging.getLogger("turnout.nominator")

MAX_PATCHES = 16
TICK_S = 5.0  # between two checks of all bound pods: another map, and failed patches
SENT_S = 15.0  # how long the same patch is not repeated
PAUSE = Backoff(first_s=1.0, max_s=300.0)  # of all patches, when the server refuses or fails


class SwitchPathWriter:
    """Keeps the switch paths on the pods of one cluster equal to the map while `run` runs."""

    def __init__(self, watches: WatchState, pods: Calls, clock: Clock, metrics: NominatorMetrics) -> None:
        """Start watching pods."""
        self._view, self._pods, self._clock = watches.plans.view, pods, clock
        self._metrics = metrics
        self._current_paths: dict[str, str] = {}  # uid of each bound pod -> the path that it carries
        self._sent = PendingWrites[str, str](SENT_S)  # by uid, the path
        self._given_up: set[str] = set()  # until they change
        self._pauses = RetryPauses[None](PAUSE)  # of all patches together
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._patch_slots = asyncio.Semaphore(MAX_PATCHES)
        watches.follow_pods(self.observe_pod)

    def observe_pod(self, pod: Pod) -> None:
        """Store the switch path with which a bound pod is annotated now ("" for none), and mark the pod for a check.

        A pod without a node, or one that the view does not hold (finished or unreadable), is forgotten. Update the view
        first.
        """
        uid = pod.metadata.uid
        self._given_up.discard(uid)
        if not pod.spec.node_name or uid not in self._view.pods:
            self._forget(uid)
            return
        self._current_paths[uid] = (pod.metadata.annotations or {}).get(labels.SWITCH_PATH, "")
        self._dirty[uid] = None
        self._wake.set()

    async def run(self) -> None:
        """Write paths until cancelled. Patches under way are cancelled, too, so a former leader writes nothing."""
        self._patch_slots = asyncio.Semaphore(MAX_PATCHES)  # a cancelled term released none of its slots
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._wake.wait()
                self._wake.clear()
                uids, self._dirty = list(self._dirty), {}
                for annotation in self._decide(uids):
                    await self._patch_slots.acquire()
                    tasks.create_task(self._write(annotation, self._patch_slots))

    async def _tick(self) -> None:
        """Check the paths of all present pods every TICK_S seconds, and forget deleted pods. Runs until cancelled."""
        while True:
            for uid in [uid for uid in self._current_paths if uid not in self._view.pods]:
                self._forget(uid)
            self._dirty.update(dict.fromkeys(self._current_paths))
            self._wake.set()
            await self._clock.sleep(TICK_S)

    def _decide(self, uids: Iterable[str]) -> list[PathAnnotation]:
        """Return the annotations to write on these pods now; [] while writes pause after a failure.

        Pods whose write is on its way, or was refused for good, are left out.
        """
        now_s = self._clock.monotonic()
        if not self._pauses.may_try(None, now_s):
            return []
        return [
            annotation
            for annotation in plan_annotations(self._view, self._current_paths, uids, now_s)
            if annotation.uid not in self._given_up
            and not self._sent.is_pending(annotation.uid, annotation.path, now_s)
        ]

    async def _write(self, annotation: PathAnnotation, slots: asyncio.Semaphore) -> None:
        """Write the switch path of one pod, unless a pause has begun, and release one of `slots`.

        A failure is noted.
        """
        now_s = self._clock.monotonic()
        body = {"metadata": {"uid": annotation.uid, "annotations": {labels.SWITCH_PATH: annotation.path}}}
        path = f"/api/v1/namespaces/{annotation.namespace}/pods/{annotation.name}"
        try:
            if not self._pauses.may_try(None, now_s):
                return
            self._sent.note(annotation.uid, annotation.path, now_s)
            await self._pods.patch(path, body, field_manager=labels.FIELD_MANAGER_NOMINATOR)
        except NotLeading:
            self._sent.forget(annotation.uid)
        except CallError as error:
            self._note_failure(annotation, error)
        else:
            self._pauses.note_success(None)
            self._metrics.switch_paths.inc()
            log.debug(
                "switch_path_written",
                extra={"pod": f"{annotation.namespace}/{annotation.name}", "path": annotation.path},
            )
        finally:
            slots.release()

    def _note_failure(self, annotation: PathAnnotation, error: CallError) -> None:
        """Count a failed write. A pod that changed, was deleted or is refused is given up until it changes.

        On other errors all patches pause, longer each time.
        """
        self._metrics.patch_failures.labels("switch_path", type(error).__name__).inc()
        self._sent.forget(annotation.uid)
        if isinstance(error, (Conflict, NotFound, Rejected)):
            self._given_up.add(annotation.uid)
            is_reported = isinstance(error, Rejected)
        else:
            is_reported = self._pauses.note_failure(None, self._clock.monotonic(), error.retry_after_s)
        if is_reported:
            pod = f"{annotation.namespace}/{annotation.name}"
            log.warning("switch_path_failed", extra={"pod": pod, "why": str(error)})

    def _forget(self, uid: str) -> None:
        """Remove a pod from all tables of this writer."""
        for table in (self._current_paths, self._dirty):
            table.pop(uid, None)
        self._sent.forget(uid)
        self._given_up.discard(uid)
