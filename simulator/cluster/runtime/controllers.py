"""Run the controllers of the local cluster: watch jobs and their pods, look at what changed, write what is needed."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable

import aiohttp

from turnout.simulator.api.model import value_at
from turnout.simulator.cluster.controllers import batch_job, pod_group, volcano_job
from turnout.simulator.cluster.controllers.model import (
    ControllerResult,
    CreateWrite,
    DeleteWrite,
    Object,
    PatchWrite,
    Write,
)
from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError
from turnout.simulator.cluster.runtime.scheduler_loop import NODES, PODS, ObjectCache, error_message, log_and_skip

log = logging.getLogger(__name__)

_GROUP_OF = volcano_job.GROUP
_PATHS = {
    PODS: "/api/v1",
    NODES: "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    batch_job.JOBS: "/apis/batch/v1",
    volcano_job.JOBS: "/apis/batch.volcano.sh/v1alpha1",
    volcano_job.GROUPS: "/apis/scheduling.volcano.sh/v1beta1",
}
_CHILDREN = ("services", "configmaps")  # of Volcano Jobs, beside pods and PodGroups
_MERGE = "application/merge-patch+json"
_RETRY_S = 1.0
Key = tuple[str, str]  # resource, uid


class Controllers:
    """All controllers that create pods for jobs."""

    def __init__(self, api: ApiClient, retry_s: tuple[float, float] = batch_job.RETRY_S) -> None:
        """Make controllers that do not run yet.

        retry_s: of batch Jobs, (first, longest) pause after a failure, in seconds.
        """
        self._api, self._retry_s = api, retry_s
        self._cache = ObjectCache()
        self._due: set[Key] = set()
        self._later: list[tuple[float, Key]] = []
        self._changed = asyncio.Event()
        self._synced: set[str] = set()
        self._reconcilers: dict[str, Callable[[Object, float], ControllerResult]] = {
            batch_job.JOBS: self._batch_job,
            volcano_job.JOBS: self._volcano_job,
            volcano_job.GROUPS: self._group,
        }

    async def run(self) -> None:
        """Watch and reconcile until cancelled. Call it once. Failed watches and writes are logged and tried again."""
        async with asyncio.TaskGroup() as tasks:
            for resource in (NODES, PODS, *_CHILDREN, *self._reconcilers):
                tasks.create_task(self._watch(resource))
            tasks.create_task(self._reconcile_until_cancelled())

    # Watches.

    async def _watch(self, resource: str) -> None:
        """Watch one kind until cancelled, and store its objects.

        A watch that fails is logged, and begins again after a pause. resource: the key of the kind in _PATHS.
        """
        path = f"{_PATHS[resource]}/{resource.split('.')[0]}"
        while True:
            try:
                async for event, obj in self._api.changes(path):
                    if event == "SYNCED":
                        self._synced.add(resource)
                    else:
                        with log_and_skip(resource, obj.obj):
                            self._store_observed(resource, event, obj.obj)
                    self._changed.set()
            except (aiohttp.ClientError, ApiError, TimeoutError) as error:
                log.warning("watch_failed", extra={"kind": resource, "why": str(error)})
                await asyncio.sleep(_RETRY_S)

    def _store_observed(self, resource: str, event: str, obj: Object) -> None:
        """Store an object that a watch has shown, and mark every object that must be reconciled because of it.

        resource: the key of the kind in _PATHS, such as "jobs.batch". event: ADDED, MODIFIED or DELETED. obj: at
        DELETED its uid is enough. A version that is not newer than the known one is ignored.
        """
        uid = obj["metadata"]["uid"]
        before = self._cache.get(resource, uid)
        if event == "DELETED":
            obj = self._cache.drop(resource, uid) or obj
        elif not self._cache.put(resource, obj):
            return
        self._mark(resource, obj, before)

    def _mark(self, resource: str, obj: Object, before: Object | None) -> None:
        """Mark the objects as due that must be reconciled because an object changed.

        These are the object itself, its owners, the PodGroup of a pod, and all pending PodGroups if room may have
        become free. resource: of the object's kind, such as pods. before: its state before, None if it is new.
        """
        if resource in self._reconcilers:
            self._due.add((resource, obj["metadata"]["uid"]))
        owners = (obj["metadata"].get("ownerReferences") or ()) if resource != NODES else ()
        self._due.update((_resource_of(owner), owner["uid"]) for owner in owners)
        was_bound = resource == PODS and before is not None and before["spec"].get("nodeName")
        self._mark_groups(obj if resource == PODS else None, has_more_room=bool(resource == NODES or was_bound))

    def _mark_groups(self, pod: Object | None, has_more_room: bool) -> None:
        """Mark the PodGroup of a changed pod as due, and all pending PodGroups if there may be more room now.

        pod: None if no pod changed. has_more_room: True if room may have become free.
        """
        group = value_at(pod, "metadata", "annotations", _GROUP_OF)
        place = (value_at(pod, "metadata", "namespace"), group)
        for each in self._cache.all(volcano_job.GROUPS) if group or has_more_room else ():
            meta, phase = each["metadata"], value_at(each, "status", "phase") or "Pending"
            if (meta["namespace"], meta["name"]) == place or (has_more_room and phase == "Pending"):
                self._due.add((volcano_job.GROUPS, meta["uid"]))

    # Reconciliation.

    async def _reconcile_until_cancelled(self) -> None:
        """Reconcile due objects one after another until cancelled, once every kind has been listed."""
        while True:
            now_s = time.time()
            while self._later and self._later[0][0] <= now_s:
                self._due.add(heapq.heappop(self._later)[1])
            if not self._due or self._synced != {NODES, PODS, *_CHILDREN, *self._reconcilers}:
                self._changed.clear()
                pause_s = max(0.0, self._later[0][0] - now_s) if self._later else None
                try:
                    async with asyncio.timeout(pause_s):
                        await self._changed.wait()
                except TimeoutError:
                    pass  # an object has become due
                continue
            due, self._due = self._due, set()
            for key in sorted(due):
                await self._reconcile(key)

    async def _reconcile(self, key: Key) -> None:
        """Reconcile one object: compute the writes that it needs, and carry them out. Plan the next look.

        An unknown object, and one that is being deleted, is ignored. A failure is logged, and does not delay other
        objects; a failed write is tried again after a pause, a failed computation only after a change.
        """
        resource, uid = key
        obj = self._cache.get(resource, uid)
        if obj is None or resource not in self._reconcilers or obj["metadata"].get("deletionTimestamp"):
            return
        try:
            outcome = self._reconcilers[resource](obj, time.time())
        except Exception as error:  # a malformed job must not stop the jobs of others
            log.warning(
                "job_stuck", extra={"kind": resource, "job": obj["metadata"]["name"], "why": error_message(error)}
            )
            return
        if outcome.requeue_at_s is not None:
            heapq.heappush(self._later, (outcome.requeue_at_s, key))
        try:
            for write in outcome.writes:
                await self._carry_out(write)
        except (aiohttp.ClientError, ApiError, TimeoutError) as error:
            log.warning("job_stuck", extra={"kind": resource, "job": obj["metadata"]["name"], "why": str(error)})
            heapq.heappush(self._later, (time.time() + _RETRY_S, key))

    def _batch_job(self, job: Object, now_s: float) -> ControllerResult:
        """Return the writes that a Job needs. now_s: seconds since 1970."""
        return batch_job.reconcile_job(job, self._cache.pods_of(job["metadata"]["uid"]), now_s, self._retry_s)

    def _volcano_job(self, job: Object, now_s: float) -> ControllerResult:
        """Return the writes that a Volcano Job needs, by its pods, PodGroup, Services and ConfigMaps.

        now_s: seconds since 1970.
        """
        uid = job["metadata"]["uid"]
        group = next(iter(self._cache.owned(volcano_job.GROUPS, uid)), None)
        others = {resource: self._cache.owned(resource, uid) for resource in _CHILDREN}
        return volcano_job.reconcile_job(job, self._cache.pods_of(uid), group, now_s, others)

    def _group(self, group: Object, now_s: float) -> ControllerResult:
        """Return the writes that a PodGroup needs, by its members and the free room. now_s is not used."""
        members = self._cache.pods_of(f"{group['metadata']['namespace']}/{group['metadata']['name']}")
        return pod_group.reconcile_group(group, members, self._cache.free())

    async def _carry_out(self, write: Write) -> None:
        """Carry out one write and add its answer to the cache.

        A refusal with AlreadyExists or 404 is no error: the object exists already, or does not exist any more. Raises
        the errors of ApiClient.call for any other failure.
        """
        meta = write.obj["metadata"]
        short = write.resource.split(".")[0]
        place = f"{_PATHS[write.resource]}/namespaces/{meta['namespace']}/{short}"
        try:
            match write:
                case CreateWrite():
                    created = await self._api.call("POST", place, write.obj)
                case DeleteWrite():
                    body = {"preconditions": {"uid": meta["uid"]}, "propagationPolicy": "Background"}
                    created = await self._api.call("DELETE", f"{place}/{meta['name']}", body)
                case PatchWrite():
                    path = f"{place}/{meta['name']}" + (f"/{write.part}" if write.part else "")
                    created = await self._api.call("PATCH", path, write.change, _MERGE)
        except ApiError as error:
            if error.reason == "AlreadyExists" or error.code == 404:
                return
            raise
        if created.get("metadata", {}).get("uid") and write.resource in (PODS, *_CHILDREN, *self._reconcilers):
            before = self._cache.get(write.resource, created["metadata"]["uid"])
            if self._cache.put(write.resource, created):
                self._mark(write.resource, created, before)


def _resource_of(owner: Object) -> str:
    """Return the resource of an owner that has a controller here, else ""."""
    group = owner["apiVersion"].rpartition("/")[0]
    return {"batch": batch_job.JOBS, "batch.volcano.sh": volcano_job.JOBS}.get(group, "")
