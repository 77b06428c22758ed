"""Remove our gate from all waiting pods, without asking the planner.

It is used when Turnout is uninstalled, or when no process places pods. While the Lease has been silent for less than
the bound, each gang gets an Event instead, once an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from turnout.jobs.gang import GangKey, membership
from turnout.kube import labels
from turnout.kube.client.clock import Clock
from turnout.kube.client.events import EventRecorder, EventStore, ObjectRef
from turnout.kube.errors import BadResponse, CallError, Conflict, NotFound
from turnout.kube.objects import Lease, Pod
from turnout.kube.status import decode_answer
from turnout.kube.times import unix_s
from turnout.scheduler_ext.gates.release import PlacerState, placer_state
from turnout.scheduler_ext.model import EventReason, GatedPod, Lift, LiftReason
from turnout.scheduler_ext.wire.pod_messages import gated_pod, lift_patch

MAX_PATCHES = 32
MAX_TRIES = 4  # tries for a pod that changes meanwhile


class _List(msgspec.Struct):
    items: list[Pod] = []


_pods, _pod = msgspec.json.Decoder(_List), msgspec.json.Decoder(Pod)


class PodCalls(Protocol):
    """The part of a Client that is needed here."""

    def pages(self, path: str, params: dict[str, Any] | None = None) -> AsyncIterator[bytes]:
        """Yield each page of a list."""

    async def get(self, path: str) -> bytes:
        """Return one object as JSON."""

    async def patch(self, path: str, body: dict[str, Any], *, field_manager: str) -> bytes:
        """Patch a pod, and return the patched pod as JSON."""


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The pods whose gate was lifted, and why others kept it."""

    released_pods: tuple[str, ...]  # each namespace/name
    failures: tuple[tuple[str, str], ...] = ()  # (namespace/name, reason)


async def release_all(pods: PodCalls, namespace: str, older_s: float, wall_s: float) -> ReleaseResult:
    """Lift our gate from every waiting pod, and return which were lifted and why others were not.

    A pod that is deleted or lost its gate meanwhile counts as lifted. namespace: "" for all. older_s: pods created less
    than so many seconds ago stay gated. wall_s: seconds since 1970. A gate that cannot be lifted is in `failures`.
    Raises CallError if pods cannot be listed; then no gate is lifted.
    """
    gated_pods = [gated async for _, gated in list_gated_pods(pods, namespace, older_s, wall_s)]
    room = asyncio.Semaphore(MAX_PATCHES)

    async def lift_one(pod: GatedPod) -> str | None:
        async with room:
            return await _lift(pods, pod)

    faults = await asyncio.gather(*map(lift_one, gated_pods))
    outcomes = [(f"{pod.namespace}/{pod.name}", fault) for pod, fault in zip(gated_pods, faults, strict=True)]
    return ReleaseResult(
        tuple(name for name, fault in outcomes if fault is None),
        tuple((name, fault) for name, fault in outcomes if fault),
    )


async def list_gated_pods(
    pods: PodCalls, namespace: str, older_s: float, wall_s: float
) -> AsyncIterator[tuple[Pod, GatedPod]]:
    """Yield (pod, its gate state) for the waiting pods behind our gate that are old enough.

    namespace: "" for all. older_s: the lowest age, in seconds; a pod without a creation time counts as old enough.
    wall_s: seconds since 1970. Raises CallError if pods cannot be listed.
    """
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    async for page in pods.pages(path, {"fieldSelector": "spec.nodeName="}):
        for pod in decode_answer(_pods, "GET", path, page).items:
            gated = gated_pod(pod)
            if gated is not None and wall_s - (unix_s(gated.created) or 0.0) >= older_s:
                yield pod, gated


async def _lift(pods: PodCalls, pod: GatedPod) -> str | None:
    """Lift the gate of one pod, with at most MAX_TRIES tries while the pod changes.

    Returns why it failed; None if the gate is lifted, or if the pod is gone, was replaced, or has no gate of ours any
    more.
    """
    path, fault = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", ""
    for _ in range(MAX_TRIES):
        try:
            await pods.patch(
                path, lift_patch(Lift(pod, LiftReason.RELEASED)), field_manager=labels.FIELD_MANAGER_NOMINATOR
            )
            return None
        except NotFound:
            return None
        except Conflict as error:
            fault = str(error)
        except CallError as error:
            return str(error)
        try:
            current = gated_pod(decode_answer(_pod, "GET", path, await pods.get(path)))
        except NotFound:
            return None
        except CallError as error:
            return str(error)
        if current is None or current.uid != pod.uid:
            return None
        pod = current
    return fault


EVENTS_PER_S = 20.0  # Events per second: a CronJob has about a minute

_lease = msgspec.json.Decoder(Lease)


NOTHING_RELEASED = ReleaseResult(())


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """The state of the Lease, the pods whose gate was lifted, and how many gangs got an Event."""

    placer: PlacerState
    result: ReleaseResult = NOTHING_RELEASED
    notified_gangs: int = 0


async def release_unplaced(
    pods: PodCalls,
    store: EventStore,
    lease: str,
    namespace: str,
    older_s: float,
    clock: Clock,
    instance: str,
    docs: str = "",
) -> ReleaseReport:
    """Lift the gates of pods that no process places, and return what was done.

    If the holder of the Lease has been silent for longer than `older_s`, the gates are lifted. Before that, one pod of
    each gang gets an Event. Nothing is done if a process places pods.

    lease: namespace/name. namespace: of the pods, "" for all. older_s: seconds; also the least age of a pod whose gate
    is lifted. instance: the name of this process, in Events. docs: the address of the docs site, "" for none. A missing
    or unreadable Lease counts as silent for ever. Raises CallError if the Lease cannot be read for another reason, or
    if pods cannot be listed. A gate that cannot be lifted raises nothing: it is in the result.
    """
    wall_s = clock.wall()
    found = placer_state(await _read_lease(pods, lease), older_s, wall_s)
    if found is PlacerState.PLACED:
        return ReleaseReport(found)
    if found is PlacerState.GONE:
        return ReleaseReport(found, await release_all(pods, namespace, older_s, wall_s))
    events = EventRecorder(store, "turnout-nominator", instance, clock=clock, per_s=EVENTS_PER_S, docs=docs)
    gangs: dict[GangKey, GatedPod] = {}
    async for pod, gated in list_gated_pods(pods, namespace, 0.0, wall_s):
        gangs.setdefault(membership(pod).key, gated)
    detail = (
        f"no process holds the Lease {lease}, so no process places gated pods; their gates are lifted once it has had "
        f"no holder for {older_s:.0f} s"
    )
    for gated in gangs.values():
        ref = ObjectRef("Pod", "v1", gated.namespace, gated.name, gated.uid)
        events.emit(ref, "Warning", EventReason.NOBODY_PLACES.value, detail, wall_s)
    await events.flush()
    return ReleaseReport(found, notified_gangs=len(gangs) - events.dropped)


async def _read_lease(calls: PodCalls, lease: str) -> Lease | None:
    """Return the Lease; None if it does not exist or cannot be decoded. lease: namespace/name.

    Raises CallError if the call fails for another reason.
    """
    namespace, _, name = lease.partition("/")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    try:
        return decode_answer(_lease, "GET", path, await calls.get(path))
    except (NotFound, BadResponse):
        return None
