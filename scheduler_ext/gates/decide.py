"""Decide what is written next for a gang behind our gates: first every nomination, then every gate.

The answer depends on what the API server shows and on the plan, and on nothing that a process remembers. So whoever
takes over after a crash goes on where the last write ended. Source: docs/managed-clusters.md
"""

from __future__ import annotations

from turnout.scheduler_ext.gates.model import Evict, GatedPod, Lift, MakingRoom, Nominate, Turn, Wait, Why
from turnout.scheduler_ext.model import EventReason

Writes = tuple[Nominate, ...] | tuple[Lift, ...] | tuple[Evict, ...]


def next_writes(turn: Turn) -> tuple[Writes, Wait | None]:
    """Decide the next writes for a gang, all of which may be sent at once, and why the rest of it waits.

    Lifts and evictions are returned only when no nomination is left to write. Evictions are sent one after the other,
    and none after one that is refused. Raises nothing.
    """
    lacking = _lacking(turn)
    going = () if lacking is not None else _going(turn)
    if not going and turn.making is not None:
        return _making_room(turn, turn.making)
    if not going:
        taken_back = tuple(Nominate(pod, "") for pod in turn.gated if pod.uid in turn.ours and pod.nominated)
        return taken_back, lacking or turn.lacking
    due = tuple(Nominate(lift.pod, lift.node) for lift in going if _is_due(turn, lift))
    return due or going, turn.lacking


def _making_room(turn: Turn, making: MakingRoom) -> tuple[Writes, Wait]:
    """Nominate a gang for the hosts that others leave, so that the scheduler keeps them from lower pods; then evict."""
    due = tuple(
        Nominate(pod, node) for pod in turn.gated if (node := making.hosts.get(pod.uid, "")) and pod.nominated != node
    )
    if making.refused:
        return due or making.victims, Wait(EventReason.EVICTION_REFUSED, making.refused)
    leaving = len(making.victims) + making.leaving
    pods = "1 pod of a lower priority leaves" if leaving == 1 else f"{leaving} pods of a lower priority leave"
    return due or making.victims, Wait(EventReason.PREEMPTING, f"{pods} for it")


def _lacking(turn: Turn) -> Wait | None:
    """Return why no member may go; None when the min may start."""
    if turn.unknown is not None:
        return turn.unknown
    if turn.begun:  # the min is for the start: who runs already, or has ended well, need not wait for others again
        return None
    if turn.able < turn.least:
        return Wait(EventReason.GANG_INCOMPLETE, f"{turn.able} of {turn.least} members exist")
    seated = sum(1 for pod in turn.gated if not pod.others and (pod.uid in turn.hosts or pod.uid not in turn.judged))
    if turn.open + seated >= turn.least:
        return None
    return turn.lacking or Wait(EventReason.NO_ROOM, f"{turn.open + seated} of {turn.least} members have a place")


def _going(turn: Turn) -> tuple[Lift, ...]:
    """Return the lifts of all members that may go, in rank order.

    A started gang is completed up to its min even by members without a seat. A required gang is not: such a member
    could land anywhere.
    """
    found: list[Lift] = []
    short = turn.least - turn.open
    seatless: list[GatedPod] = []
    for pod in turn.gated:
        if pod.others:
            continue
        node = turn.hosts.get(pod.uid, "")
        if node:
            found.append(Lift(pod, Why.PLACED, node, pinned=turn.required))
        elif pod.uid not in turn.judged:
            found.append(Lift(pod, Why.NOT_JUDGED))
        else:
            seatless.append(pod)
    if turn.begun and not turn.required:
        found += [Lift(pod, Why.COMPLETING) for pod in seatless[: max(0, short - len(found))]]
    return tuple(found)


def _is_due(turn: Turn, lift: Lift) -> bool:
    """True if the nomination is still to be written. One of somebody else stays as it is."""
    pod = lift.pod
    if pod.nominated == lift.node or (pod.nominated and pod.uid not in turn.ours):
        return False
    return bool(pod.nominated) if not lift.node else pod.uid in turn.may_nominate
