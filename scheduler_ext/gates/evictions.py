"""Choose who leaves so that a gang behind our gates can start: the cheapest domain, and there no pod too many.

The domain is chosen as for the `preempt` verb (planner/seats.py). A gang that cannot go on after what it loses is
evicted whole: what would be left of it would hold hosts for nothing. Nothing is chosen while pods still leave the hosts
of a gang. When evictions are sent, and for how long hosts are held, is settled in runtime/evictor.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.kube.pod_shape import PodShape
from turnout.kube.times import unix_s
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.gates.model import Evict, MakingRoom, Turn
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.planner.placing.model import judged_members
from turnout.scheduler_ext.planner.plan_cache import PlanCache
from turnout.scheduler_ext.planner.seats import plan_with_preemption

Takes = list[tuple[int, PodShape]]  # (row, shape) of each pod to come


def may_preempt(turn: Turn, gang: Gang) -> bool:
    """True if pods may have to leave for a gang: it could start, lacks room alone, and can be nominated whole.

    A started gang lets its members go instead, so that the scheduler preempts for them.
    """
    if turn.begun or turn.hosts or turn.lacking is None or turn.lacking.word is not EventReason.NO_ROOM:
        return False
    if any(m.waits and m.never_preempts for m in gang.members.values()):
        return False
    judged = [pod for pod in turn.gated if pod.uid in turn.judged]
    return bool(judged) and all(
        not pod.others and pod.uid in turn.may_nominate and (not pod.nominated or pod.uid in turn.ours)
        for pod in judged
    )


def make_room(
    plan_cache: PlanCache, gang: Gang, made: Mapping[str, str], sent: Collection[str], wall_s: float
) -> MakingRoom | None:
    """Choose the hosts of a gang that may preempt, and who leaves them; None where that would not help.

    made: uid -> node where room is made for it already, empty for none. sent: uids of evicted pods that the watch may
    show as before.
    """
    view = plan_cache.view
    members = [m for m in judged_members(gang) if m.waits]
    least = min(members, key=lambda m: (m.priority, m.uid))
    told = {m.uid: node for m in members if (node := view.wish_of(m)) in view.snapshot.row_of}
    for hosts in (made, told):  # what is nominated shows to whoever takes over for whom pods are leaving
        if hosts.keys() != {m.uid for m in members} or any(node not in view.snapshot.row_of for node in hosts.values()):
            continue
        takes = [(view.snapshot.row_of[hosts[m.uid]], m.shape) for m in members]
        leaving = sum(1 for m in _lower(view, takes, least.priority) if m.leaving or m.uid in sent)
        if leaving:
            return MakingRoom(hosts, (), leaving)
        chosen = leavers(view, gang.key, takes, least.priority, sent, wall_s) if hosts is made else None
        if chosen:
            return MakingRoom(hosts, _evictions(gang, chosen), 0)
    plan = plan_with_preemption(plan_cache, gang, least, wall_s)
    if plan.refusal is not None or plan.hosts.keys() != {m.uid for m in members}:
        return None
    takes = plan.takes()
    if _awaited(plan_cache, gang, {row for row, _ in takes}):
        return None
    chosen = leavers(view, gang.key, takes, least.priority, sent, wall_s)
    if chosen is None:
        return None
    leaving = sum(1 for m in _lower(view, takes, least.priority) if m.leaving or m.uid in sent)
    if not chosen and not leaving:
        return None
    hosts = {uid: view.fabric.hosts[row] for uid, row in sorted(plan.hosts.items())}
    return MakingRoom(hosts, _evictions(gang, chosen), leaving)


def leavers(
    view: GangView, own: GangKey, takes: Takes, priority: int, sent: Collection[str], wall_s: float
) -> tuple[Member, ...] | None:
    """Choose the pods below a priority that leave so that `takes` fits; None where no choice is enough.

    Nobody can be taken from the answer: the dearest gangs are spared first, then single pods above a min. Pods that no
    host of ours needs leave first, so that a process that dies amid the evictions leaves no gang in parts elsewhere.
    """
    rows = {row for row, _ in takes}
    lower = [m for m in _lower(view, takes, priority) if m.belongs.key != own]
    gone = {m.uid for m in lower if m.leaving or m.uid in sent}
    ledger = _Ledger(view, takes, lower)
    out = {m.uid for m in lower if m.node}
    if not ledger.fits(out | gone):
        return None
    out -= gone
    by_gang: dict[GangKey, list[Member]] = {}
    for member in lower:
        if member.uid in out:
            by_gang.setdefault(_gang_of(view, member), []).append(member)
    dearest = sorted(by_gang, key=lambda key: (-max(m.priority for m in by_gang[key]), -_lost(view, key, wall_s), key))
    for key in dearest:
        less = out - {m.uid for m in by_gang[key]}
        out = less if ledger.fits(less | gone) else out
    for key in dearest:
        for member in sorted(by_gang[key], key=lambda m: (-m.priority, m.created, m.uid)):
            if member.uid in out and not _stops(view, key, out | gone) and ledger.fits(out - {member.uid} | gone):
                out.discard(member.uid)
    chosen = [m for m in lower if m.uid in out]
    for key in dearest:
        if any(m.uid in out for m in by_gang[key]) and _stops(view, key, out | gone):
            chosen += [m for m in _rest(view, key, priority) if m.uid not in out | gone]
    row_of = view.snapshot.row_of
    return tuple(sorted(chosen, key=lambda m: (row_of.get(m.node) in rows, m.namespace, m.name)))


class _Ledger:
    """The room on the hosts of a plan, in vectors of the resources."""

    def __init__(self, view: GangView, takes: Takes, lower: Sequence[Member]) -> None:
        snapshot = view.snapshot
        for shape in {shape for _, shape in takes}:
            snapshot.vector(shape)  # a resource that is new makes all vectors longer
        self._short: dict[int, NDArray[np.int64]] = {}
        for row, shape in takes:
            self._short[row] = self._short.get(row, -snapshot.free_at(row)) + snapshot.vector(shape)
        asked = np.logical_or.reduce([snapshot.vector(shape) > 0 for _, shape in takes])
        self._short = {row: np.where(asked, short, 0) for row, short in self._short.items()}
        self._frees = {m.uid: (snapshot.row_of[snapshot.charges[m.uid].node], snapshot.vector(m.shape)) for m in lower}

    def fits(self, out: Iterable[str]) -> bool:
        """True if all takes fit once these are out."""
        short = {row: left.copy() for row, left in self._short.items()}
        for uid in out:
            row, vector = self._frees[uid]
            short[row] -= vector
        return all(bool((left <= 0).all()) for left in short.values())


def _lower(view: GangView, takes: Takes, priority: int) -> list[Member]:
    """Return the pods below a priority that are charged to the hosts, by uid."""
    found: list[Member] = []
    for row in sorted({row for row, _ in takes}):
        for uid in sorted(view.snapshot.pods_on(view.snapshot.order[row])):
            member = view.pods.get(uid)
            if member is not None and view.snapshot.charges[uid].priority < priority:
                found.append(member)
    return found


def _gang_of(view: GangView, member: Member) -> GangKey:
    """Return a pod's gang; one of its own where nobody has to start with it."""
    key = member.belongs.key
    return key if key in view.gangs else GangKey(member.namespace, member.uid, key.dialect)


def _rest(view: GangView, key: GangKey, priority: int) -> list[Member]:
    gang = view.gangs.get(key)
    return [m for m in gang.members.values() if m.node and m.priority < priority] if gang is not None else []


def _stops(view: GangView, key: GangKey, out: Collection[str]) -> bool:
    """True if a gang has fewer members left than its min once these are out."""
    gang = view.gangs.get(key)
    if gang is None:
        return False
    left = sum(1 for m in gang.members.values() if m.node and not m.leaving and m.uid not in out)
    return left < gang.least


def _lost(view: GangView, key: GangKey, wall_s: float) -> int:
    """Return what a gang has done so far, in GPU seconds."""
    gang = view.gangs.get(key)
    members = gang.members.values() if gang is not None else ()
    return sum(m.gpus * max(1, int(wall_s - (unix_s(m.created) or wall_s))) for m in members if m.node)


def _awaited(plan_cache: PlanCache, gang: Gang, rows: Collection[int]) -> bool:
    """True if a gang that does not go behind this one is planned on these hosts: it lands in a moment."""
    for plan in plan_cache.standing_plans():
        other = plan_cache.view.gangs.get(plan.key)
        if other is None or plan.key == gang.key or other.priority < gang.priority:
            continue
        if any(row in rows for row, _ in plan.takes()):
            return True
    return False


def _evictions(gang: Gang, chosen: Iterable[Member]) -> tuple[Evict, ...]:
    why = f"evicted for {gang.key} of priority {gang.priority}"
    return tuple(Evict(m.uid, m.namespace, m.name, why) for m in chosen)


def hold(plan_cache: PlanCache, gang: Gang, nodes: Iterable[str]) -> None:
    """Hold these nodes for a gang, and plan those of a lower priority anew that counted on them."""
    view = plan_cache.view
    rows = {row for node in nodes if (row := view.snapshot.row_of.get(node)) is not None}
    if not plan_cache.held.hold(gang, rows):
        return
    for plan in plan_cache.standing_plans():
        other = view.gangs.get(plan.key)
        if other is not None and other.priority < gang.priority and any(row in rows for row, _ in plan.takes()):
            plan_cache.replan(plan.key)
