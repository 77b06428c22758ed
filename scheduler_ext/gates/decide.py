"""Decide what is written next for a gang behind our gates: first every nomination, then every gate.

The answer depends on what the API server shows and on the plan, and on nothing that a process remembers. So whoever
takes over after a crash goes on where the last write ended. Source: docs/managed-clusters.md
"""

from __future__ import annotations

from turnout.scheduler_ext.gates.model import GatedGang, Preemption, Wait
from turnout.scheduler_ext.model import EventReason, Evict, GatedPod, Lift, LiftReason, Nominate

Writes = tuple[Nominate, ...] | tuple[Lift, ...] | tuple[Evict, ...]


def next_writes(gated_gang: GatedGang) -> tuple[Writes, Wait | None]:
    """Decide the next writes for a gang, all of which may be sent at once, and why the rest of it waits.

    Lifts and evictions are returned only when no nomination is left to write. Evictions are sent one after the other,
    and none after one that is refused. Raises nothing.
    """
    refusal = _start_refusal(gated_gang)
    lifts = () if refusal is not None else _lifts(gated_gang)
    if not lifts and gated_gang.preemption is not None:
        return _preemption_writes(gated_gang, gated_gang.preemption)
    if not lifts:
        taken_back = tuple(
            Nominate(pod, "")
            for pod in gated_gang.gated_pods
            if pod.uid in gated_gang.nominated_by_us and pod.nominated
        )
        return taken_back, refusal or gated_gang.shortfall
    due = tuple(Nominate(lift.pod, lift.node) for lift in lifts if _needs_nomination(gated_gang, lift))
    return due or lifts, gated_gang.shortfall


def _preemption_writes(gated_gang: GatedGang, preemption: Preemption) -> tuple[Writes, Wait]:
    """Nominate a gang for the hosts that others leave, so that the scheduler keeps them from lower pods; then evict."""
    nominations = tuple(
        Nominate(pod, node)
        for pod in gated_gang.gated_pods
        if (node := preemption.hosts.get(pod.uid, "")) and pod.nominated != node
    )
    if preemption.refusal_detail:
        return nominations or preemption.victims, Wait(EventReason.EVICTION_REFUSED, preemption.refusal_detail)
    leaving = len(preemption.victims) + preemption.terminating_pods
    pods = "1 pod of a lower priority leaves" if leaving == 1 else f"{leaving} pods of a lower priority leave"
    return nominations or preemption.victims, Wait(EventReason.PREEMPTING, f"{pods} for it")


def _start_refusal(gated_gang: GatedGang) -> Wait | None:
    """Return why no member may go; None when the min may start."""
    if gated_gang.unknown_size is not None:
        return gated_gang.unknown_size
    if (
        gated_gang.has_started
    ):  # the min is for the start: who runs already, or has ended well, need not wait for others again
        return None
    if gated_gang.startable_pods < gated_gang.min_pods:
        return Wait(EventReason.GANG_INCOMPLETE, f"{gated_gang.startable_pods} of {gated_gang.min_pods} members exist")
    seated = sum(
        1
        for pod in gated_gang.gated_pods
        if not pod.other_gates and (pod.uid in gated_gang.hosts or pod.uid not in gated_gang.planned_uids)
    )
    if gated_gang.ungated_pods + seated >= gated_gang.min_pods:
        return None
    return gated_gang.shortfall or Wait(
        EventReason.NO_ROOM, f"{gated_gang.ungated_pods + seated} of {gated_gang.min_pods} members have a place"
    )


def _lifts(gated_gang: GatedGang) -> tuple[Lift, ...]:
    """Return the lifts of all members that may go, in rank order.

    A started gang is completed up to its min even by members without a seat. A required gang is not: such a member
    could land anywhere.
    """
    lifts: list[Lift] = []
    missing_pods = gated_gang.min_pods - gated_gang.ungated_pods
    without_seat: list[GatedPod] = []
    for pod in gated_gang.gated_pods:
        if pod.other_gates:
            continue
        node = gated_gang.hosts.get(pod.uid, "")
        if node:
            lifts.append(Lift(pod, LiftReason.PLACED, node, only_this_node=gated_gang.requires_level))
        elif pod.uid not in gated_gang.planned_uids:
            lifts.append(Lift(pod, LiftReason.NOT_JUDGED))
        else:
            without_seat.append(pod)
    if gated_gang.has_started and not gated_gang.requires_level:
        lifts += [Lift(pod, LiftReason.COMPLETING) for pod in without_seat[: max(0, missing_pods - len(lifts))]]
    return tuple(lifts)


def _needs_nomination(gated_gang: GatedGang, lift: Lift) -> bool:
    """True if the nomination is still to be written. One of somebody else stays as it is."""
    pod = lift.pod
    if pod.nominated == lift.node or (pod.nominated and pod.uid not in gated_gang.nominated_by_us):
        return False
    return bool(pod.nominated) if not lift.node else pod.uid in gated_gang.nominable_uids
