"""Plan nominations: which waiting pod is to be nominated for which node, and which nominations of ours are cleared.

Only the decision is made here; server/nomination_writer.py writes it. Nominations of other programs are never touched.
Source: docs/facts/extender.md 1.9
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.jobs.gang import Dialect, GangKey
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.placing.model import judged
from turnout.scheduler_ext.planner.plan_cache import PlanCache


class Why(Enum):
    """A reason why a nomination is written or cleared. Log and metric use the same word."""

    PLANNED = "Planned"
    REPLANNED = "Replanned"
    REFUSED = "Refused"  # the gang has no plan any more
    EXPIRED = "Expired"  # the scheduler did not take the pod there in time
    NOT_OURS_TO_PLACE = "NotOursToPlace"  # the pod came to ask for something that we do not judge
    CLEARED = "Cleared"  # a person asked for it


@dataclass(frozen=True, slots=True)
class Nomination:
    """One patch of a pod."""

    uid: str
    namespace: str
    name: str
    node: str  # "" clears the nomination
    why: Why


@dataclass(frozen=True, slots=True)
class Nominating:
    """The choices that decide on nominations."""

    rules: Rules
    schedulers: frozenset[str]  # the names of the schedulers whose pods are nominated
    # how long a nomination may stay without a binding; then the pod is left to the scheduler for as long again
    expire_s: float = 60.0


def nominate(
    plan_cache: PlanCache, keys: Iterable[GangKey], choices: Nominating, since_s: Mapping[str, float], now_s: float
) -> list[Nomination]:
    """Decide what to write for the pods of some gangs, in the order in which the scheduler will ask. Never raises.

    since_s: uid -> when a nomination of ours was first seen on the pod, or last expired.
    """
    view = plan_cache.view
    found: list[tuple[int, str, Nomination]] = []
    view.settle(now_s)
    for key in keys:
        gang = view.gangs.get(key)
        if gang is None:
            continue
        # Who lifts our gate nominates before: scheduler_ext/gates.
        mine = [m for m in gang.members.values() if m.waits and not (m.held and view.lifts_gates)]
        hosts = _hosts(plan_cache, gang, choices, now_s) if mine else {}
        for member in mine:
            if member.scheduler in choices.schedulers:
                wish = _wish(plan_cache, gang, member, hosts.get(member.uid, ""), choices, since_s, now_s)
                if wish is not None:
                    found.append((-member.priority, member.created, wish))
    found.sort(key=lambda each: each[:2])  # stable: pods of one second keep the order in which they were seen
    return [wish for _, _, wish in found]


def clear_all(members: Iterable[Member]) -> list[Nomination]:
    """Return the patches that clear every nomination of ours."""
    return [_change(m, "", Why.CLEARED) for m in members if m.ours and m.waits]


def _hosts(plan_cache: PlanCache, gang: Gang, choices: Nominating, now_s: float) -> dict[str, str]:
    """Return uid -> node for the waiting members of a gang; empty when it has no plan."""
    names = plan_cache.view.fabric.hosts
    if not plan_cache.view.fabric.mapped_count:
        return {}
    if gang.key.dialect == Dialect.ALONE.value:
        return _host_alone(plan_cache, gang, choices, now_s)
    if choices.rules.hold_incomplete and len(gang.living()) < gang.least:
        return {}
    plan = plan_cache.plan_of(gang.key, now_s)
    if plan is None:
        return {}
    hosts = {uid: names[host] for uid, host in plan.hosts.items()}
    for member in gang.members.values():  # believed to be on their way: stay where they were sent
        if member.waits and member.uid not in hosts and (node := plan_cache.view.assumed_pods.node_of(member.uid)):
            hosts[member.uid] = node
    return hosts


def _host_alone(plan_cache: PlanCache, gang: Gang, choices: Nominating, now_s: float) -> dict[str, str]:
    """Return uid -> node for a pod without a gang, and assume the place at once.

    So the next such pod finds that room taken.
    """
    plan_cache.sync_room()
    (member,) = gang.members.values() if len(gang.members) == 1 else (None,)
    if member is None or not member.waits or not judged(member, gang) or member.scheduler not in choices.schedulers:
        return {}
    node = plan_cache.view.place_of(member)
    if not node:
        host = plan_cache.try_place(plan_cache.request_of(gang)).hosts.get(member.uid)
        if host is None:
            return {}
        node = plan_cache.view.fabric.hosts[host]
        if not (member.pinned or member.gated):
            plan_cache.view.assume(member, node, now_s)
    return {member.uid: node}


def _wish(
    plan_cache: PlanCache,
    gang: Gang,
    member: Member,
    node: str,
    choices: Nominating,
    since_s: Mapping[str, float],
    now_s: float,
) -> Nomination | None:
    if member.nominated and not member.ours:
        return None
    since = since_s.get(member.uid)
    if member.pinned or member.gated or not judged(member, gang):
        return _change(member, "", Why.NOT_OURS_TO_PLACE) if member.ours else None
    if not node:
        return _change(member, "", Why.REFUSED) if member.ours else None
    if since is not None and now_s - since > choices.expire_s:
        return _change(member, "", Why.EXPIRED) if member.ours else None
    if since is not None and not member.ours:
        return None  # expired before: left to the scheduler for a while
    if member.nominated == node:
        return None
    return _change(member, node, Why.REPLANNED if member.nominated else Why.PLANNED)


def _change(member: Member, node: str, why: Why) -> Nomination:
    return Nomination(member.uid, member.namespace, member.name, node, why)
