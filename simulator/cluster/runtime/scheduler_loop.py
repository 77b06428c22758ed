"""Run the local cluster's scheduler: watch pods and nodes, run one cycle after another, ask the extender, bind.

scheduler.py and scheduling_queue.py decide. A decision counts before the watch shows it, as in kube-scheduler's cache,
and is taken back when the binding fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import msgspec

from turnout.jobs.gang import Dialect, membership
from turnout.kube.objects import Node, Pod
from turnout.kube.times import rfc3339
from turnout.simulator.cluster.cluster import Cluster, PodInfo, pod_info_of
from turnout.simulator.cluster.controllers.model import amounts_of, has_ended
from turnout.simulator.cluster.controllers.volcano_job import GROUP
from turnout.simulator.cluster.runtime.clients import ApiClient, ApiError, ExtenderClient
from turnout.simulator.cluster.scheduler import (
    Chosen,
    Cursor,
    Cycle,
    ExtenderReply,
    ExtenderSettings,
    Outcome,
    Unscheduled,
    WaitReason,
    scheduling_cycle,
)
from turnout.simulator.cluster.scheduling_queue import HELD_GROUP_PATHS, Gangs, WaitingPods

log = logging.getLogger(__name__)

_MAX_CONCURRENT_BINDS = 16
_ENDED = ("Succeeded", "Failed")
_pods = msgspec.json.Decoder(Pod)
_nodes = msgspec.json.Decoder(Node)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings of the scheduler."""

    name: str = "default-scheduler"  # the schedulerName of the pods that it serves
    # further schedulerNames that it serves, whose gangs are held until their min fits
    gangs: tuple[str, ...] = ("volcano", "koord-scheduler")
    extender: ExtenderSettings | None = None  # None for no extender
    percentage: int = 0  # percentageOfNodesToScore, 0 for the adaptive default
    # of a pod that found no node: the first pause and the longest, in seconds
    backoff_s: tuple[float, float] = (1.0, 10.0)
    seed: int = 0  # of its random choices


class Scheduler:
    """One scheduler for one API server."""

    def __init__(
        self,
        api: ApiClient,
        settings: SchedulerSettings,
        extender: ExtenderClient | None = None,
        on_outcome: Callable[[str, str, Outcome], None] | None = None,
    ) -> None:
        """Make a scheduler that does not run yet.

        extender: None for no extender. on_outcome: called with (namespace, name, outcome) of the pod after every cycle;
        Chosen means that the pod is bound.
        """
        self._api, self._settings, self._extender = api, settings, extender
        self._on_outcome = on_outcome or (lambda namespace, name, outcome: None)
        self._rng = random.Random(settings.seed)
        self._cursor = Cursor()
        self._raw: dict[str, bytes] = {}  # waiting pods as they came, for the extender
        self._name_by_uid: dict[str, tuple[str, str]] = {}  # (namespace, name) of waiting and assumed pods
        self._assumed: set[str] = set()
        self._bind_slots = asyncio.Semaphore(_MAX_CONCURRENT_BINDS)
        self._synced = {path: asyncio.Event() for path in ("/api/v1/nodes", "/api/v1/pods", *HELD_GROUP_PATHS.values())}
        self._changed = asyncio.Event()
        self._wait_reasons = WaitReasonWriter(api)
        self._gangs = Gangs()
        self.cluster = Cluster()
        self.waiting = WaitingPods(settings.backoff_s)

    async def run(self) -> None:
        """Watch, schedule and bind until cancelled. Call it once. Failed watches and bindings are logged and tried
        again.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch("/api/v1/nodes", self._observe_node))
            tasks.create_task(self._watch("/api/v1/pods", self._observe_pod))
            for dialect, path in HELD_GROUP_PATHS.items():
                tasks.create_task(self._watch(path, partial(self._observe_group, dialect)))
            tasks.create_task(self._schedule(tasks))
            tasks.create_task(self._wait_reasons.run())

    async def _watch(self, path: str, on_event: Callable[[str, bytes], None]) -> None:
        """Watch one kind until cancelled. A watch that fails is logged, and begins again after a pause.

        on_event: receives (ADDED, MODIFIED or DELETED; the raw object). Its exceptions are logged.
        """
        while True:
            try:
                async for event, obj in self._api.changes(path):
                    if event == "SYNCED":
                        self._synced[path].set()
                    else:
                        with log_and_skip(path):
                            on_event(event, obj.raw)
                    self._changed.set()
            except (aiohttp.ClientError, ApiError, TimeoutError) as error:
                log.warning("watch_failed", extra={"path": path, "why": str(error)})
                await asyncio.sleep(0.5)

    def _observe_node(self, event: str, raw: bytes) -> None:
        """Store or remove an observed node, and let waiting pods be tried again. event: ADDED, MODIFIED or DELETED.

        raw: its JSON. Raises BadQuantity if its resources cannot be read.
        """
        node = _nodes.decode(raw)
        if event == "DELETED":
            self.cluster.drop_node(node.metadata.name)
        else:
            self.cluster.put_node(node)
        self.waiting.wake()

    def _observe_group(self, dialect: Dialect, event: str, raw: bytes) -> None:
        """Store an observed PodGroup's minMember, and let waiting pods be tried again.

        It is 0 after the deletion, and if the PodGroup states none. event: ADDED, MODIFIED or DELETED. dialect: of the
        PodGroup. raw: its JSON.
        """
        group = msgspec.json.decode(raw)
        minimum = 0 if event == "DELETED" else int(group.get("spec", {}).get("minMember") or 0)
        self._gangs.put_group(dialect, group["metadata"]["namespace"], group["metadata"]["name"], minimum)
        self.waiting.wake()

    def _observe_pod(self, event: str, raw: bytes) -> None:
        """Store an observed pod: it waits for a node, uses room on its node, or has ended.

        A gated pod, and a pod of another scheduler, does not wait here. A pod whose binding is under way stays as it
        is. event: ADDED, MODIFIED or DELETED. raw: its JSON. Raises BadQuantity or TooComplex if its requests or
        affinity cannot be read.
        """
        pod = _pods.decode(raw)
        uid = pod.metadata.uid
        if event == "DELETED" or pod.status.phase in _ENDED:
            self._forget(uid)
            self._gangs.drop_pod(uid)
            self.cluster.remove(uid)
            self.waiting.wake()
            return
        pod_info = pod_info_of(pod)
        if pod.spec.scheduler_name in self._settings.gangs:
            self._gangs.put_pod(uid, membership(pod), bound=bool(pod.spec.node_name))
        if pod.spec.node_name:
            self._forget(uid)
            self.cluster.place(pod_info, pod.spec.node_name)
            self.waiting.wake()
        elif uid not in self._assumed:
            self.cluster.nominate(pod_info)
            served = (self._settings.name, *self._settings.gangs)
            if pod.spec.scheduler_name in served and not pod.spec.scheduling_gates:
                self._raw[uid] = raw
                self._name_by_uid[uid] = (pod.metadata.namespace, pod.metadata.name)
                self.waiting.put(pod_info)

    def _forget(self, uid: str) -> None:
        """Remove a pod that is deleted, bound or has ended from all tables of the scheduler. An unknown pod is
        ignored.
        """
        self.waiting.drop(uid)
        self._assumed.discard(uid)
        self._wait_reasons.drop(uid)
        self._raw.pop(uid, None)
        self._name_by_uid.pop(uid, None)

    async def _schedule(self, tasks: asyncio.TaskGroup) -> None:
        """Try one waiting pod after another until cancelled, once everything has been listed.

        tasks: runs the bindings. An exception for one pod is logged, and the pod is tried again later.
        """
        for synced in self._synced.values():
            await synced.wait()
        clock = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            pod_info = self.waiting.next(clock.time())
            if pod_info is not None:
                try:
                    await self._schedule_pod(pod_info, tasks)
                except Exception as error:  # of this pod or its gang: the others are tried all the same
                    log.exception("pod_not_tried", extra={"why": error_message(error)})
                    self._refuse_all(
                        [pod_info.uid], Unscheduled(WaitReason.SCHEDULER_ERROR, "the scheduler failed on this pod")
                    )
                    self.waiting.note_failed_try(pod_info.uid, clock.time(), until_change=False)
                continue
            try:
                async with asyncio.timeout(self.waiting.next_try_in_s(clock.time())):
                    await self._changed.wait()
            except TimeoutError:
                continue  # the pause of a pod is over

    async def _schedule_pod(self, pod_info: PodInfo, tasks: asyncio.TaskGroup) -> None:
        """Choose a node for a pod, and for its gang with it if the gang lacks more than this pod to its min. Start the
        bindings, or record why the pods wait.

        tasks: runs the bindings, which are not awaited here.
        """
        members = [
            each
            for each in self._gangs.pods_to_try(pod_info.uid)
            if each in self._name_by_uid and each not in self._assumed
        ]
        missing = self._gangs.missing_members(pod_info.uid)
        if missing > max(1, len(members)):
            why = f"gang {self._gangs.name(pod_info.uid)} waits for {missing - len(members)} more of its pods"
            self._refuse_all(members, Unscheduled(WaitReason.UNSCHEDULABLE, why))
            return
        pod_infos = [self.waiting.pod_info(uid) for uid in members] if missing > 1 else [pod_info]
        chosen, refusal = await self._decide_all([each for each in pod_infos if each is not None])
        if len(chosen) < max(1, missing):
            for each, _ in chosen:
                self.cluster.remove(each.uid)
            self._refuse_all(members, refusal or Unscheduled(WaitReason.UNSCHEDULABLE, "its gang changed"))
            return
        for each, outcome in chosen:
            self.waiting.drop(each.uid)
            self._assumed.add(each.uid)
            self._gangs.bind(each.uid, True)
            # Bound beside the next cycle, as kube-scheduler does it: the decision counts from now on.
            tasks.create_task(self._bind(each, *self._name_by_uid[each.uid], outcome))

    async def _decide_all(
        self, pod_infos: Sequence[PodInfo]
    ) -> tuple[list[tuple[PodInfo, Chosen]], Unscheduled | None]:
        """Choose a node for each pod, and charge the pod to it. Return (choices, first refusal or None).

        Pods that were deleted or bound by another scheduler meanwhile are left out and not charged.
        """
        chosen: list[tuple[PodInfo, Chosen]] = []
        refusal = None
        for pod_info in pod_infos:
            if pod_info.uid not in self._name_by_uid:
                continue
            asking = self._settings.extender if self._extender is not None else None
            percentage = self._settings.percentage
            questions = scheduling_cycle(self.cluster, pod_info, self._cursor, self._rng, asking, percentage)
            outcome = await _run_cycle(questions, self._raw[pod_info.uid], self._extender)
            if isinstance(outcome, Unscheduled):
                refusal = refusal or outcome
            elif pod_info.uid in self._name_by_uid:
                self.cluster.place(pod_info, outcome.node)
                chosen.append((pod_info, outcome))
        for each, _ in [each for each in chosen if each[0].uid not in self._name_by_uid]:
            self.cluster.remove(each.uid)
        return [each for each in chosen if each[0].uid in self._name_by_uid], refusal

    async def _bind(self, pod_info: PodInfo, namespace: str, name: str, chosen: Chosen) -> None:
        """Bind a pod to the chosen node, and report the outcome: `chosen`, or Unscheduled if the binding fails.

        After a failure the room of the pod is released, and the pod waits again. namespace, name: of the pod.
        """
        target = {"apiVersion": "v1", "kind": "Node", "name": chosen.node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        outcome: Outcome = chosen
        try:
            async with self._bind_slots:
                await self._api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            log.warning("bind_failed", extra={"pod": f"{namespace}/{name}", "why": str(error)})
            self._assumed.discard(pod_info.uid)
            self._gangs.bind(pod_info.uid, False)
            self.cluster.remove(pod_info.uid)
            if pod_info.uid in self._raw:
                self.waiting.put(pod_info)
                self.waiting.note_failed_try(pod_info.uid, asyncio.get_running_loop().time(), until_change=False)
                self._changed.set()  # or the loop could wait for ever, if no other pod waits
            outcome = Unscheduled(WaitReason.SCHEDULER_ERROR, f"the binding failed: {error}")
        self._on_outcome(namespace, name, outcome)

    def _refuse_all(self, uids: Sequence[str], outcome: Unscheduled) -> None:
        """Record that pods cannot be placed now, and report the reason.

        Unschedulable pods wait until the cluster changes; others only until their pause is over. uids: of the pods;
        unknown ones are ignored. outcome: the reason.
        """
        now_s = asyncio.get_running_loop().time()
        for uid in uids:
            if uid in self._name_by_uid:
                namespace, name = self._name_by_uid[uid]
                self.waiting.note_failed_try(uid, now_s, until_change=outcome.why is WaitReason.UNSCHEDULABLE)
                self._wait_reasons.put(uid, namespace, name, outcome)
                self._on_outcome(namespace, name, outcome)


async def _run_cycle(questions: Cycle, raw_pod: bytes, extender: ExtenderClient | None) -> Outcome:
    """Run a scheduling cycle, and ask the extender if there is one. Return Chosen, or Unscheduled with the reason.

    questions: of the cycle. raw_pod: the pod as JSON. The room is not charged: the caller calls cluster.place().
    """
    pod: Any = msgspec.json.decode(raw_pod)
    for key in ("kind", "apiVersion"):  # kube-scheduler sends pods without them
        pod.pop(key, None)
    try:
        question = next(questions)
        while True:
            reply = await extender.ask(pod, question) if extender is not None else ExtenderReply()
            question = questions.send(reply)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


_STRATEGIC = "application/strategic-merge-patch+json"


class WaitReasonWriter:
    """Reasons of waiting pods, each written once until it changes. They are written one by one, beside scheduling."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._last_written: dict[str, str] = {}  # uid -> message written last
        self._due: dict[str, tuple[str, str, Unscheduled]] = {}
        self._news = asyncio.Event()

    def put(self, uid: str, namespace: str, name: str, outcome: Unscheduled) -> None:
        """Queue the reason why a pod waits, in place of an earlier reason. Do nothing if it was queued or written last.

        uid, namespace, name: of the pod. outcome: a reason with the same message as the last one is the same.
        """
        if self._last_written.get(uid) != outcome.message:
            self._last_written[uid] = outcome.message
            self._due[uid] = (namespace, name, outcome)
            self._news.set()

    def drop(self, uid: str) -> None:
        """Forget a pod that waits no longer."""
        self._last_written.pop(uid, None)
        self._due.pop(uid, None)

    async def run(self) -> None:
        """Write queued reasons one by one until cancelled.

        A failed write is dropped, and logged unless the pod was deleted or replaced (404, 409). It is not repeated: the
        pod's next reason with another message is written.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                uid = next(iter(self._due))
                try:
                    await self._write_reason(uid, *self._due.pop(uid))
                except ApiError as error:
                    if error.code not in (404, 409):
                        log.warning("pod_not_told", extra={"why": str(error)})
                except (aiohttp.ClientError, TimeoutError) as error:
                    log.warning("pod_not_told", extra={"why": str(error)})

    async def _write_reason(self, uid: str, namespace: str, name: str, outcome: Unscheduled) -> None:
        """Write why a pod waits: its condition PodScheduled, then an Event. Raises the errors of ApiClient.call.

        Without the condition no Event is written. uid, namespace, name: of the pod.
        """
        at = rfc3339(time.time())
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": at,
            "reason": outcome.why.value,
            "message": outcome.message,
        }
        body: dict[str, Any] = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        place = f"/api/v1/namespaces/{namespace}"
        await self._api.call("PATCH", f"{place}/pods/{name}/status", body, _STRATEGIC)
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        event = {
            "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
            "involvedObject": about,
            "reason": "FailedScheduling",
            "message": outcome.message[:1024],
            "type": "Warning",
            "source": {"component": "turnout-local-scheduler"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        await self._api.call("POST", f"{place}/events", event)


Object = dict[str, Any]
PODS, NODES = "pods", "nodes"


def _lookup_keys(pod: Object) -> list[str]:
    """Return the keys by which an object of the cache is found: uids of its owners, and its gang as namespace/name."""
    meta = pod["metadata"]
    group = (meta.get("annotations") or {}).get(GROUP)
    return [owner["uid"] for owner in meta.get("ownerReferences") or ()] + (
        [f"{meta['namespace']}/{group}"] if group else []
    )


class ObjectCache:
    """Objects by resource and uid. A controller adds the answer of its own write at once, so its next look sees it.

    `resource` of all methods is PODS, NODES, or plural.group such as "jobs.batch": a key of _PATHS in controllers.py.
    """

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        # uids of deleted objects, so that a stale event does not add them again; the oldest first
        self._deleted_uids: dict[str, None] = {}
        self._pods_by_key: dict[str, set[str]] = {}  # uid of an owner, or namespace/name of a PodGroup -> uids of pods
        self._owned: dict[tuple[str, str], set[str]] = {}  # resource, uid of an owner -> uids of what is no pod
        self._free: Counter[str] = Counter()
        self._free_change_by_uid: dict[str, dict[str, int]] = {}  # uid of a bound pod or a node -> its part of `_free`

    def put(self, resource: str, obj: Object) -> bool:
        """Add an object, and return True. Return False if its version or a newer one is known, or if it was deleted.

        The last 10,000 deletions are remembered. obj: with uid and resourceVersion; it is stored, not copied. Raises
        BadQuantity for a node or bound pod whose amounts cannot be read; it is stored all the same.
        """
        meta = obj["metadata"]
        uid, objects = meta["uid"], self._objects.setdefault(resource, {})
        known = objects.get(uid)
        if uid in self._deleted_uids or (
            known and int(known["metadata"]["resourceVersion"]) >= int(meta["resourceVersion"])
        ):
            return False
        objects[uid] = obj
        if resource == PODS:
            for owner_or_group in _lookup_keys(obj):
                self._pods_by_key.setdefault(owner_or_group, set()).add(uid)
        else:
            for owner_or_group in _lookup_keys(obj):
                self._owned.setdefault((resource, owner_or_group), set()).add(uid)
        self._update_free(resource, uid, obj)
        return True

    def drop(self, resource: str, uid: str) -> Object | None:
        """Remove a deleted object, and return its last state, None if unknown. From now on put() refuses its uid.

        After 10,000 further deletions the uid is forgotten.
        """
        self._deleted_uids[uid] = None
        if len(self._deleted_uids) > 10_000:
            del self._deleted_uids[next(iter(self._deleted_uids))]
        obj = self._objects.get(resource, {}).pop(uid, None)
        for owner_or_group in _lookup_keys(obj) if obj else ():
            of = (
                self._pods_by_key.get(owner_or_group)
                if resource == PODS
                else self._owned.get((resource, owner_or_group))
            )
            (of or set()).discard(uid)
        self._update_free(resource, uid, None)
        return obj

    def get(self, resource: str, uid: str) -> Object | None:
        """Return the last known state of an object; None if it is unknown or deleted."""
        return self._objects.get(resource, {}).get(uid)

    def all(self, resource: str) -> Iterator[Object]:
        """Return an iterator over all objects of a kind, in no order. Later changes of the cache do not affect it."""
        return iter(list(self._objects.get(resource, {}).values()))

    def pods_of(self, owner_or_group: str) -> list[Object]:
        """Return the pods of an owner or of a PodGroup, sorted by name. A new list.

        owner_or_group: the owner's uid, or namespace/name of the PodGroup.
        """
        pods = self._objects.get(PODS, {})
        pods_of_key = [pods[each] for each in self._pods_by_key.get(owner_or_group, ()) if each in pods]
        return sorted(pods_of_key, key=lambda pod: str(pod["metadata"]["name"]))

    def owned(self, resource: str, uid: str) -> list[Object]:
        """Return the objects of a kind that the object with this uid owns, sorted by name. For pods use pods_of()."""
        objects = self._objects.get(resource, {})
        owned_objects = [objects[each] for each in self._owned.get((resource, uid), ()) if each in objects]
        return sorted(owned_objects, key=lambda each: str(each["metadata"]["name"]))

    def free(self) -> Mapping[str, int]:
        """Return what all nodes together have free, in thousandths, by name such as "cpu"; negative if pods request
        more.

        The mapping is the cache's own: do not change it.
        """
        return self._free

    def _update_free(self, resource: str, uid: str, obj: Object | None) -> None:
        """Update the free resources of all nodes together by a changed node or pod. Do nothing for another kind.

        uid: of the object. obj: its new state, None if it was deleted.
        """
        if resource not in (PODS, NODES):
            return
        self._free.subtract(self._free_change_by_uid.pop(uid, {}))
        if obj is None:
            return
        free_change: Counter[str] = Counter()
        if resource == NODES:
            free_change.update(amounts_of((obj.get("status") or {}).get("allocatable") or {}))
        elif obj["spec"].get("nodeName") and not has_ended(obj):
            for container in obj["spec"]["containers"]:
                free_change.subtract(amounts_of((container.get("resources") or {}).get("requests") or {}))
        self._free_change_by_uid[uid] = free_change
        self._free.update(free_change)


@contextmanager
def log_and_skip(kind: str, obj: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Log an exception in the `with` block and go on after it, so that one object cannot stop others.

    kind: of the object, for the log. obj: for its name in the log; None if unknown.
    """
    try:
        yield
    except Exception as error:
        log.warning("object_skipped", extra={"kind": kind, "about": _namespaced_name(obj), "why": error_message(error)})


def error_message(error: Exception) -> str:
    """Return a text about an error that was raised, and its place. It has at most 200 characters, because a tenant may
    have written the message.
    """
    step = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {step.filename.rpartition('/')[2]}:{step.lineno}: {error}"[:200]


def _namespaced_name(obj: Mapping[str, Any] | None) -> str:
    """Return namespace/name of an object, "" if it has no metadata."""
    meta = obj.get("metadata") if obj is not None else None
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}" if isinstance(meta, Mapping) else ""
