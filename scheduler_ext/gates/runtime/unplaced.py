"""Let gated pods go where nobody has placed any for longer than a bound; until then tell each gang, once an hour."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from turnout.jobs.gang import GangKey, membership
from turnout.kube.client.clock import Clock
from turnout.kube.client.events import EventRecorder, EventStore, ObjectRef
from turnout.kube.errors import NotFound
from turnout.kube.objects import Lease
from turnout.scheduler_ext.gates.runtime.release import PodCalls, ReleaseResult, list_gated_pods, release_all
from turnout.scheduler_ext.gates.unplaced import PlacerState, placer_state
from turnout.scheduler_ext.model import EventReason, GatedPod

EVENTS_PER_S = 20.0  # Events: a schedule has a minute or so

_lease = msgspec.json.Decoder(Lease)


NOTHING_RELEASED = ReleaseResult(())


@dataclass(frozen=True, slots=True)
class ReleaseReport:
    """How the Lease stands, what was let go, and how many gangs were told."""

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
    told_by: str,
    docs: str = "",
) -> ReleaseReport:
    """Lift gates only where the holder of the Lease has been silent for longer than `older_s`. Raises CallError.

    lease: namespace/name. namespace: of the pods, "" for all. told_by: the name of this process, in Events.
    docs: the address of the docs site, "" where there is none.
    """
    wall_s = clock.wall()
    found = placer_state(await _read_lease(pods, lease), older_s, wall_s)
    if found is PlacerState.PLACED:
        return ReleaseReport(found)
    if found is PlacerState.GONE:
        return ReleaseReport(found, await release_all(pods, namespace, older_s, wall_s))
    events = EventRecorder(store, "turnout-nominator", told_by, clock=clock, per_s=EVENTS_PER_S, docs=docs)
    gangs: dict[GangKey, GatedPod] = {}
    async for pod, gated in list_gated_pods(pods, namespace, 0.0, wall_s):
        gangs.setdefault(membership(pod).key, gated)
    detail = f"nobody holds the Lease {lease}: nobody places gated pods, and they are let go after {older_s:.0f} s"
    for gated in gangs.values():
        ref = ObjectRef("Pod", "v1", gated.namespace, gated.name, gated.uid)
        events.emit(ref, "Warning", EventReason.NOBODY_PLACES.value, detail, wall_s)
    await events.flush()
    return ReleaseReport(found, notified_gangs=len(gangs) - events.dropped)


async def _read_lease(calls: PodCalls, lease: str) -> Lease | None:
    """Return the Lease; None where there is none, or none that can be read."""
    namespace, _, name = lease.partition("/")
    try:
        return _lease.decode(await calls.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"))
    except (NotFound, msgspec.DecodeError):
        return None
