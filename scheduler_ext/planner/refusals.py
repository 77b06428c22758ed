"""Why a gang is refused before its pods are placed, or because of the places that were found.

That a gang below its min gets no place at all is decided in batches.py, in `_place_in_turn`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cluster.gang import GangGroup
from turnout.scheduler_ext.planner.request import GangPlan, GangRequest, PodBatch, Seat, counts_for_tier
from turnout.topology.fabric import Fabric
from turnout.topology.model import Refusal, RefusalReason


def refuse_incomplete(request: GangRequest) -> Refusal | None:
    """Refuse a gang whose PodGroup states groups until its min exists: until then the group of a pod is unknown.

    Also refuse a gang that has enough pods in total but too few of one role. None if it may be placed, if a member
    holds a host, if no PodGroup or owner is known, or if fewer pods than the min exist and the PodGroup states no
    groups. Groups that pods state themselves are not waited for: a LeaderWorkerSet may create its workers after its
    leader runs.
    """
    gang, present = request.gang, len(request.gang.living())
    if gang.sizing is None or request.placed_members:
        return None
    if present < gang.min_pods:
        if not gang.sizing.wish.groups:
            return None
        return Refusal(
            RefusalReason.NO_ROOM, f"its groups are formed once all its pods exist: {present} of {gang.min_pods} exist"
        )
    roles = Counter(member.membership.role for member in gang.living())
    for role, min_pods in gang.min_by_role:
        if roles[role] < min_pods:
            detail = f"role {role} has {roles[role]} pods, {min_pods} must start together"
            return Refusal(RefusalReason.NO_ROOM, detail)
    return None


def refuse_after_fault(key: GangKey, error: Exception) -> GangPlan:
    """Return the plan of a gang for which the planner raised `error`: PLAN_REJECTED, with the place of the fault.

    The message of the error is left out, because it may quote a pod.
    """
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
    detail = f"planning failed: {type(error).__name__} at {where}"
    return GangPlan(key, refusal=Refusal(RefusalReason.PLAN_REJECTED, detail))


def refuse_outside_level(request: GangRequest) -> Refusal | None:
    """Refuse a gang of which a member runs on a host that lacks the label of the required level; else return None."""
    mask = request.rows_outside_level.get(None)
    placed_hosts = [host for member, host in request.placed_members if counts_for_tier(member, request.gang)]
    if mask is None or not any(mask[host] for host in placed_hosts):
        return None
    return Refusal(RefusalReason.OFF_MAP, "members run on hosts that have no label of the required level")


def refuse_too_few_groups(
    request: GangRequest, batches: Sequence[PodBatch], full_batches: Counter[GangGroup | None]
) -> Refusal | None:
    """Refuse a gang of which fewer groups find a place than its rules state. None if enough do, if a member holds a
    host, or if no rule states a number.

    full_batches: group -> how many of its batches found room for all pods.
    """
    rules = request.gang.terms.group_rules
    if request.placed_members or not any(rule.min_groups for rule in rules):
        return None
    shapes, pods = Counter(batch.gang_group for batch in batches), Counter(request.gang.groups_by_uid().values())
    for at, rule in enumerate(rules):
        groups = [group for group in shapes if group is not None and group.rule == at]
        complete = sum(full_batches[group] == shapes[group] and pods[group] >= rule.pods for group in groups)
        needed = rule.min_groups if rule.pods else min(rule.min_groups, len(groups))
        if complete < needed:
            return Refusal(
                RefusalReason.NO_ROOM, f"{rule.min_groups} groups {rule.name} must start together, {complete} find room"
            )
    return None


def refuse_places(
    fabric: Fabric,
    request: GangRequest,
    batches: Sequence[PodBatch],
    hosts: Mapping[str, int],
    open_seats: Sequence[Seat],
    ranks: Mapping[str, int],
) -> Refusal | None:
    """Refuse places that split what running members have begun: a run of ranks over switches, or a multiple over hosts.

    None if nothing is split. batches: of the request. hosts: uid -> host of the members that found a place. open_seats:
    places of members that do not exist yet. ranks: uid -> rank of all members.
    """
    return _refuse_cut_runs(fabric, request, hosts, ranks) or _refuse_odd_hosts(request, batches, hosts, open_seats)


def _refuse_cut_runs(
    fabric: Fabric, request: GangRequest, hosts: Mapping[str, int], ranks: Mapping[str, int]
) -> Refusal | None:
    """Refuse places that put a run of ranks under a second switch after running members have begun it under one.

    The packing counts pods and does not know which run a pod is in. If the switch of a begun run has no room for the
    rest of the run, its pods have to wait. hosts: uid -> host of the members that found a place. ranks: uid -> rank.
    None if no run is cut, if running members alone have cut it, or for a gang with groups.
    """
    if request.gang.terms.group_rules:
        return None
    for tier, size in request.gang.layers:
        row = fabric.switch_of[min(tier, fabric.tiers)]
        begun: dict[int, set[int]] = {}
        for member, host in request.placed_members:
            begun.setdefault(ranks[member.uid] // size, set()).add(int(row[host]))
        for uid, host in hosts.items():
            run = ranks[uid] // size
            if len(switches := begun.setdefault(run, {int(row[host])})) == 1 and int(row[host]) not in switches:
                detail = f"the run of ranks {run * size} to {run * size + size - 1} has begun under another switch"
                return Refusal(RefusalReason.NO_ROOM, detail)
    return None


def _refuse_odd_hosts(
    request: GangRequest, batches: Sequence[PodBatch], hosts: Mapping[str, int], open_seats: Sequence[Seat]
) -> Refusal | None:
    """Refuse a placement with too many odd hosts; None for any other. A host is odd if its number of pods is no whole
    multiple.

    One odd host is allowed if the number of all pods is no whole multiple, and always as many as running members alone
    have made. A host on which running members have begun a multiple may have no room for the rest of it, and a
    nominated member may find no room for the pod beside it. batches: of the request. hosts: uid -> host of the members
    that found a place. open_seats: places of members that do not exist yet.
    """
    multiple = request.gang.multiple
    if multiple == 1:
        return None
    group_of = request.gang.groups_by_uid()
    for batch in batches:
        running = Counter(
            host
            for member, host in request.placed_members
            if member.shape == batch.shape and group_of.get(member.uid) == batch.gang_group
        )
        pods = running + Counter(hosts[each.uid] for each in batch.members if each.uid in hosts)
        if batch.missing_pods:
            pods += Counter(seat.host for seat in open_seats)
        odd = sum(count % multiple != 0 for count in pods.values())
        has_rest = (running.total() + batch.pods) % multiple != 0
        allowed = max(has_rest, sum(count % multiple != 0 for count in running.values()))
        if odd > allowed:
            return Refusal(RefusalReason.NO_ROOM, f"no room completes the multiple of {multiple} pods on a host")
    return None


def refuse_too_many_shapes(batches: Sequence[PodBatch], placed_count: int) -> Refusal:
    """Return the refusal of a gang whose pods have too many shapes. placed_count: batches placed before the limit."""
    return Refusal(
        RefusalReason.NO_ROOM,
        f"its pods have {len(batches)} combinations of shape and group: planning stopped after {placed_count} of them, "
        "at its limit of work",
    )
