"""Plan a gang as if pods of a lower priority left, at the least loss for other gangs.

For pods of one shape, `preemption.py` chooses the hosts first. Where no plan exists on these hosts, the gang has
groups, slices or several shapes. Then it is planned as if all such pods left, and the other gangs are spared one by
one, as long as the plan stays in a domain of the same tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.batches import Work
from turnout.scheduler_ext.planner.place_gang import place
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.planner.preemption import cheap_hosts, gang_loss
from turnout.scheduler_ext.planner.request import GangPlan, GangRequest, PodsOnRows, RoomOf, limit_per_host
from turnout.scheduler_ext.planner.victims import run_time_s
from turnout.topology.fabric import Fabric

_MAX_PLANS = 200  # plans that are made for one question to spare other gangs
LossAndPods = tuple[int, PodsOnRows]  # the loss in GPU seconds if a gang stops, and its pods


def plan_with_preemption(plans: Plans, gang: Gang, member: GangMember, wall_s: float) -> GangPlan:
    """Return the plan that the gang would get if pods of a lower priority than `member` left. The plan is not stored.

    If all waiting members have one shape, of the domains of the lowest tier that could hold the gang the domain with
    the least loss for other gangs is chosen. For other gangs, and where that gives no plan, as few gangs as possible
    stop (`spare_gangs`). The plan has a refusal if the gang does not fit even then. wall_s: seconds since 1970.
    """
    view, work = plans.view, Work()

    def room_of(shape: PodShape, present_pods: PodsOnRows) -> Rows:
        work.spend(len(view.snapshot.charges) // 2)
        return view.snapshot.room_after_preemption(shape, member.priority, present_pods)

    request = plans.request_of(gang)
    request = replace(request, absent=replace(request.absent, growth=0), rejected_rows={})
    if {waiting_member.shape for waiting_member in request.waiting} == {member.shape} and member.shape.requests:
        placed_hosts, need = [host for _, host in request.placed_members], len(request.waiting) + request.absent.missing
        room = room_of(member.shape, ())
        for mask in (request.excluded_rows, request.rows_outside_level.get(None)):
            room = room if mask is None else np.where(mask, 0, room)
        limits = cheap_hosts(view, member, need, room, placed_hosts, gang.tier, wall_s, gang.multiple)
        if limits is not None:
            cheap = place(
                view.fabric, replace(request, nominated_hosts={}), limit_per_host(room_of, member.shape, limits), work
            )
            if cheap.refusal is None:
                return cheap
    plan = place(view.fabric, request, room_of, work)
    if plan.refusal is not None:
        return plan
    lower_gangs = _lower_gangs(view, member.priority, wall_s)
    return spare_gangs(view.fabric, replace(request, nominated_hosts={}), room_of, plan, lower_gangs, work)


def spare_gangs(
    fabric: Fabric, request: GangRequest, room_of: RoomOf, plan: GangPlan, others: Sequence[LossAndPods], work: Work
) -> GangPlan:
    """Return a plan that uses the room of as few other gangs as possible.

    The result does not say which gangs stop. room_of: the room as if all other gangs had left. plan: made in this room;
    returned if nothing better is found. others: (loss in GPU seconds, pods) of the gangs to spare, the most important
    first. work: the steps that may be spent.

    A gang is spared if a plan in a domain of no higher tier exists beside it. Then, for each gang that would stop, it
    is tried to spare this gang and to stop a spared gang instead that is less important and has a smaller loss. The
    best plan so far is returned when `work` is spent or _MAX_PLANS plans were made.
    """
    plan_count = 0

    def plan_beside(running_gangs: Sequence[int]) -> GangPlan | None:
        """Return a plan beside some of the other gangs, in a domain of no higher tier; None if there is none, or the
        work is spent.

        running_gangs: indexes of `others`.
        """
        nonlocal plan_count
        if work.steps_left <= 0 or plan_count >= _MAX_PLANS:
            return None
        plan_count += 1
        pods = [pod for at in running_gangs for pod in others[at][1]]
        found = place(fabric, request, lambda shape, present_pods: room_of(shape, [*present_pods, *pods]), work)
        return found if found.refusal is None and found.tier <= plan.tier else None

    best, running_gangs = plan, list[int]()
    for at in range(len(others)):
        if (found := plan_beside([*running_gangs, at])) is not None:
            best, running_gangs = found, [*running_gangs, at]
    for stopped in [at for at in range(len(others)) if at not in running_gangs]:
        less = [at for at in running_gangs if at > stopped and others[at][0] < others[stopped][0]]
        for other in reversed(less):
            exchanged = [*(at for at in running_gangs if at != other), stopped]
            if (found := plan_beside(exchanged)) is not None:
                best, running_gangs = found, exchanged
                break
    return best


def _lower_gangs(view: ClusterView, priority: int, wall_s: float) -> list[LossAndPods]:
    """Return (loss in GPU seconds, pods) of the gangs with pods below a priority: highest priority first, then greatest
    loss.

    A pod without a gang is a gang of one. Pods that are being deleted are left out: they cost nothing. wall_s: seconds
    since 1970.
    """
    pods: dict[GangKey, list[tuple[int, PodShape]]] = {}
    keys: dict[GangKey, tuple[int, int]] = {}
    for uid, charge in sorted(view.snapshot.charges.items()):
        row, pod = view.snapshot.row_of.get(charge.node), view.pods.get(uid)
        if row is None or pod is None or charge.priority >= priority or pod.terminating:
            continue
        key = pod.membership.key
        is_single = key not in view.gangs
        key = GangKey(pod.namespace, uid, Dialect.ALONE.value) if is_single else key
        pods.setdefault(key, []).append((row, charge.shape))
        if key not in keys:
            loss = pod.gpus * run_time_s(pod, wall_s) if is_single else gang_loss(view, key, wall_s).lost_gpu_s
            keys[key] = charge.priority, loss
    return [(keys[key][1], pods[key]) for key in sorted(pods, key=lambda key: (-keys[key][0], -keys[key][1], key))]
