"""Decide what is written on pods ahead: nominations of waiting pods, and switch paths of bound pods.

`writers/nomination_writer.py` and `writers/switch_path_writer.py` write them. Nominations of other programs stay. With
the switch path a launcher orders ranks by the fabric. A pod on a host that the map does not know keeps its path.
Source: docs/facts/extender.md 1.9
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from turnout.jobs.gang import Dialect, GangKey
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.planner.request import is_planned
from turnout.topology.fabric import Fabric
from turnout.topology.switch_paths import Path, path_text


class NominationReason(Enum):
    """A reason to write or clear a nomination. Log and metric use the same word."""

    PLANNED = "Planned"
    REPLANNED = "Replanned"
    REFUSED = "Refused"  # the gang has no plan any more
    EXPIRED = "Expired"  # the scheduler did not take the pod there in time
    NOT_OURS_TO_PLACE = "NotOursToPlace"  # the pod now requests something that we do not judge
    CLEARED = "Cleared"  # a person cleared all nominations


@dataclass(frozen=True, slots=True)
class Nomination:
    """One patch of a pod."""

    uid: str
    namespace: str
    name: str
    node: str  # "" clears the nomination
    reason: NominationReason


@dataclass(frozen=True, slots=True)
class NominationChoices:
    """The choices that decide on nominations."""

    rules: Rules
    schedulers: frozenset[str]  # the names of the schedulers whose pods are nominated
    # how long a nomination may stay without a binding; then the pod is left to the scheduler for as long again
    expire_s: float = 60.0


def nominate(
    plans: Plans, keys: Iterable[GangKey], choices: NominationChoices, since_s: Mapping[str, float], now_s: float
) -> list[Nomination]:
    """Decide the nominations to write for the pods of some gangs, in the order of the scheduler's questions.

    keys: gangs to look at; unknown ones are skipped. since_s: uid -> when our nomination was first shown on the pod, or
    last expired, by the clock of `now_s` (monotonic). choices: which schedulers' pods are nominated, and for how long.
    The view is settled, and newly chosen nodes of pods without a gang are assumed in it.
    """
    view = plans.view
    nominations: list[tuple[int, str, Nomination]] = []
    view.settle(now_s)
    for key in keys:
        gang = view.gangs.get(key)
        if gang is None:
            continue
        # Pods behind our gate are nominated by scheduler_ext/gates before the gate is removed.
        waiting = [m for m in gang.members.values() if m.is_waiting and not (m.has_only_our_gate and view.lifts_gates)]
        hosts = _nodes_of_gang(plans, gang, choices, now_s) if waiting else {}
        for member in waiting:
            if member.scheduler in choices.schedulers:
                nomination = _decide_nomination(plans, gang, member, hosts.get(member.uid, ""), choices, since_s, now_s)
                if nomination is not None:
                    nominations.append((-member.priority, member.created, nomination))
    nominations.sort(key=lambda entry: entry[:2])  # stable: pods of one second keep the order in which they came
    return [nomination for _, _, nomination in nominations]


def clear_all(members: Iterable[GangMember]) -> list[Nomination]:
    """Return a patch that clears our nomination for each of the members that waits and has one, in their order."""
    return [_nomination(m, "", NominationReason.CLEARED) for m in members if m.nominated_by_us and m.is_waiting]


def _nodes_of_gang(plans: Plans, gang: Gang, choices: NominationChoices, now_s: float) -> dict[str, str]:
    """Return uid -> node for the waiting members of a gang; a member without a place is absent.

    {} without a map or a plan, and for a gang below its min if incomplete gangs are held. A pod without a gang reserves
    its node at once, so that the next pod cannot use the same room. now_s: by the monotonic clock.
    """
    names = plans.view.fabric.hosts
    if not plans.view.fabric.mapped_count:
        return {}
    if gang.key.dialect == Dialect.ALONE.value:
        return _nodes_of_single_pod(plans, gang, choices, now_s)
    if choices.rules.hold_incomplete and len(gang.living()) < gang.min_pods:
        return {}
    plan = plans.plan_of(gang.key, now_s)
    if plan is None:
        return {}
    hosts = {uid: names[host] for uid, host in plan.hosts.items()}
    for member in gang.members.values():  # an assumed pod keeps the node that it was sent to
        if member.is_waiting and member.uid not in hosts and (node := plans.view.assumed_pods.node_of(member.uid)):
            hosts[member.uid] = node
    return hosts


def _nodes_of_single_pod(plans: Plans, gang: Gang, choices: NominationChoices, now_s: float) -> dict[str, str]:
    """Return {uid: node} for a pod without a gang; {} if it does not wait, is not ours to place, or finds no room.

    A newly chosen place is assumed at once, so that the next pod finds the room taken; not for a gated pod, or a pod
    with a nomination obstacle. now_s: by the monotonic clock.
    """
    plans.sync_room()
    (member,) = gang.members.values() if len(gang.members) == 1 else (None,)
    if (
        member is None
        or not member.is_waiting
        or not is_planned(member, gang)
        or member.scheduler not in choices.schedulers
    ):
        return {}
    node = plans.view.node_of(member)
    if not node:
        host = plans.try_place(plans.request_of(gang)).hosts.get(member.uid)
        if host is None:
            return {}
        node = plans.view.fabric.hosts[host]
        if not (member.nomination_obstacle or member.gated):
            plans.view.assume(member, node, now_s)
    return {member.uid: node}


def _decide_nomination(
    plans: Plans,
    gang: Gang,
    member: GangMember,
    node: str,
    choices: NominationChoices,
    since_s: Mapping[str, float],
    now_s: float,
) -> Nomination | None:
    """Return the change of one pod's nomination; None for no change, and if another program nominated the pod.

    node: the planned node, "" for none. choices: when a nomination expires. since_s: uid -> when our nomination was
    first shown, or last expired. A pod that is not nominated but has an entry there is left to the scheduler for a
    while. now_s: by the same clock as `since_s`.
    """
    if member.nominated and not member.nominated_by_us:
        return None
    since = since_s.get(member.uid)
    reason = None
    if member.nomination_obstacle or member.gated or not is_planned(member, gang):
        reason = NominationReason.NOT_OURS_TO_PLACE
    elif not node:
        reason = NominationReason.REFUSED
    elif since is not None and now_s - since > choices.expire_s:
        reason = NominationReason.EXPIRED
    if member.nominated_by_us:
        if reason is not None:
            return _nomination(member, "", reason)
        return _nomination(member, node, NominationReason.REPLANNED) if member.nominated != node else None
    # A pod whose nomination expired is left to the scheduler for a while.
    return _nomination(member, node, NominationReason.PLANNED) if reason is None and since is None else None


def _nomination(member: GangMember, node: str, why: NominationReason) -> Nomination:
    return Nomination(member.uid, member.namespace, member.name, node, why)


@dataclass(frozen=True, slots=True)
class PathAnnotation:
    """One annotation to write on a pod."""

    uid: str
    namespace: str
    name: str
    path: str  # root/.../leaf


def plan_annotations(
    view: ClusterView, current_paths: Mapping[str, str], uids: Iterable[str], now_s: float
) -> list[PathAnnotation]:
    """Decide which switch paths to write on some pods, in the order of `uids`.

    Pods that need no path or have it are left out.

    current_paths: uid -> the path that the pod carries now, "" for none. now_s: by the monotonic clock.
    """
    view.settle(now_s)
    annotations = []
    for uid in uids:
        member = view.pods.get(uid)
        if member is None or not _needs_path(member):
            continue
        path = switch_path_of(view.fabric, member.node)
        if path and path != current_paths.get(uid, ""):
            annotations.append(PathAnnotation(uid, member.namespace, member.name, path))
    return annotations


def switch_path_of(fabric: Fabric, node: str) -> str:
    """Return the switches above a node as root/.../leaf; "" if the map does not know the node."""
    host = fabric.id_of_host.get(node)
    if host is None or not fabric.mapped[host]:
        return ""
    return _leaf_path_text(fabric.names[1][fabric.switch_of[1][host]])


def _needs_path(member: GangMember) -> bool:
    """Return True if the pod is bound, belongs to a gang and may request GPUs. Pods of a database do not count."""
    is_single = member.membership.key.dialect == Dialect.ALONE.value
    return bool(member.node) and not (member.terminating or is_single or member.no_opinion_reason == "NoGpu")


@lru_cache(maxsize=4_096)
def _leaf_path_text(leaf: Path) -> str:
    """Return the path of a leaf as text. Hosts beside switches have a nameless leaf of their own, which is left out."""
    return path_text(leaf if leaf[-1] else leaf[:-1])
