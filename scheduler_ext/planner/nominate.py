"""The plan ahead: which waiting pod should be nominated for which node, and whose nomination of ours must go.

Only what is to be written is decided here; server/nomination_writer.py writes it. Nominations that are not ours are
never touched. Source: docs/facts/extender.md 1.9
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.jobs.gang import Dialect, GangKey
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.place_gang import judged
from turnout.scheduler_ext.planner.plan_cache import PlanCache


class Why(Enum):
    """Why a nomination is written or cleared: the same word in log and metric."""

    PLANNED = "Planned"
    REPLANNED = "Replanned"
    REFUSED = "Refused"  # the gang has no plan any more
    EXPIRED = "Expired"  # the scheduler did not take the pod there in time
    NOT_OURS_TO_PLACE = "NotOursToPlace"  # the pod came to ask for something that we do not judge
    CLEARED = "Cleared"  # a person asked for it


@dataclass(frozen=True, slots=True)
class Nomination:
    """One patch. node: "" clears."""

    uid: str
    namespace: str
    name: str
    node: str
    why: Why


@dataclass(frozen=True, slots=True)
class Nominating:
    """schedulers: whose pods are nominated. expire_s: how long a nomination may stay without a binding; after that
    the pod is left to the scheduler for as long again."""

    rules: Rules
    schedulers: frozenset[str]
    expire_s: float = 60.0


def nominate(
    book: PlanCache, keys: Iterable[GangKey], choices: Nominating, since_s: Mapping[str, float], now_s: float
) -> list[Nomination]:
    """Say what to write for the pods of some gangs, in the order in which the scheduler will ask.

    since_s: uid -> when a nomination of ours was first seen on the pod, or last expired. Never raises.
    """
    view = book.view
    found: list[tuple[int, str, Nomination]] = []
    view.settle(now_s)
    for key in keys:
        gang = view.gangs.get(key)
        if gang is None:
            continue
        hosts = _hosts(book, gang, choices, now_s)
        for member in gang.members.values():
            if member.waits and member.scheduler in choices.schedulers:
                wish = _wish(book, gang, member, hosts.get(member.uid, ""), choices, since_s, now_s)
                if wish is not None:
                    found.append((-member.priority, member.created, wish))
    found.sort(key=lambda each: each[:2])  # stable: pods of one second keep the order in which they were seen
    return [wish for _, _, wish in found]


def clear_all(members: Iterable[Member]) -> list[Nomination]:
    """Everything of ours, gone."""
    return [_change(m, "", Why.CLEARED) for m in members if m.ours and m.waits]


def _hosts(book: PlanCache, gang: Gang, choices: Nominating, now_s: float) -> dict[str, str]:
    """uid -> node for the waiting members of a gang; empty when it has no plan."""
    names = book.view.fabric.hosts
    if not book.view.fabric.mapped_count:
        return {}
    if gang.key.dialect == Dialect.ALONE.value:
        return _host_alone(book, gang, choices, now_s)
    if choices.rules.hold_incomplete and len(gang.living()) < gang.least:
        return {}
    plan = book.plan_of(gang.key, now_s)
    if plan is None:
        return {}
    hosts = {uid: names[host] for uid, host in plan.hosts.items()}
    for member in gang.members.values():  # believed to be on their way: stay where they were sent
        if member.waits and member.uid not in hosts and (node := book.view.ledger.node_of(member.uid)):
            hosts[member.uid] = node
    return hosts


def _host_alone(book: PlanCache, gang: Gang, choices: Nominating, now_s: float) -> dict[str, str]:
    """The next pod by itself must find the room of this one taken, so the place is assumed at once."""
    book.sync_room()
    (member,) = gang.members.values() if len(gang.members) == 1 else (None,)
    if member is None or not member.waits or not judged(member, gang) or member.scheduler not in choices.schedulers:
        return {}
    node = book.view.place_of(member)
    if not node:
        host = book.try_place(book.request_of(gang)).hosts.get(member.uid)
        if host is None:
            return {}
        node = book.view.fabric.hosts[host]
        if not (member.pinned or member.gated):
            book.view.assume(member, node, now_s)
    return {member.uid: node}


def _wish(
    book: PlanCache,
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
