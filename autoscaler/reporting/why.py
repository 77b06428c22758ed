"""Explain one decision in numbers: queue, quota, room, gang, decision, and expected start, for `turnout why`.

The explanation also has what a waiting job lacks that neither its scheduler nor the end of other jobs can give it:
members that do not exist, or a place that these nodes do not have even when they are empty. The console writes the
sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import (
    UNKNOWN_NODE,
    Gpus,
    JobState,
    Observation,
    Policy,
    Reason,
    Step,
    gpu_limit,
    largest_gpu_amount,
    remaining_gpus,
    total_gpus,
)
from turnout.autoscaler.reporting.forecast import NEVER, Estimate
from turnout.autoscaler.scaling.free_room import lacking_pods, total_of
from turnout.autoscaler.scaling.resize_cost import balance_s
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import QueueShare
from turnout.kube.objects import Node, NodeSpec
from turnout.kube.pod_shape import PodShape, admits, amount_text
from turnout.kube.reasons import AUTOSCALER, Meaning
from turnout.kube.times import unix_s

MAX_HOLDERS = 5  # jobs that are named as holders of the GPUs of a queue


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds GPUs of the queue."""

    job: str  # KIND/NAMESPACE/NAME
    min_part_gpus: int  # GPUs of its workers up to the min, and of its other roles
    elastic_gpus: int  # GPUs of its workers above the min

    @property
    def gpus(self) -> int:
        """All its GPUs."""
        return self.min_part_gpus + self.elastic_gpus


@dataclass(frozen=True, slots=True)
class QueueSection:
    """The section about the queue of a job. Amounts are in GPUs, None if the queue states none."""

    name: str
    known: bool  # an object describes it
    open: bool  # it takes new pods
    limit: int | None
    deserved: int | None
    used: int  # by pods with a node
    free: int | None  # of the limit, >= 0
    headroom: int  # kept free, 0 for none
    holders: tuple[Holder, ...]  # the largest first, at most MAX_HOLDERS
    others: int  # number of the other holders


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """One resource that a job requests of its queue, in the units of the resource."""

    resource: str
    needs: int  # requested amount
    limit: int | None  # of the queue, None for no limit
    free: int | None  # in the queue, None for no limit


@dataclass(frozen=True, slots=True)
class GangSection:
    """The section about the gang of a job. Counts are in workers."""

    minimum: int  # its min
    maximum: int  # its max
    existing: int  # that exist as pods
    bound: int  # that have a node
    finished: int  # that have succeeded
    missing: int  # that lack a node to the min, >= 0
    other_roles: tuple[tuple[int, int], ...]  # (pods with a node, pods) of each other role
    tier: int | None  # of the widest switch that the gang may span, None for any
    multiple: int  # of the number of its pods on one host


@dataclass(frozen=True, slots=True)
class SizeSection:
    """The section about the size of a running job. Sizes are in workers."""

    size: int  # workers with a node
    requested: int  # workers that its object requests
    larger: int | None  # the next larger size, None if it is above the max
    elastic: int  # workers with a node above the min
    balance_s: float  # seconds that lending has won, minus restarts
    cooldown_s: float  # rest of its cooldown, >= 0
    changed_s: float | None  # when it was last changed, in seconds since 1970; None for never
    # The size that the autoscaler gave last, if the owner then applied the submitted object again; else None.
    reapplied_size: int | None = None
    manual_size: int | None = None  # the size that a person has set by hand, None for none


@dataclass(frozen=True, slots=True)
class Chain:
    """The explanation of one decision on a job: all its facts at one moment, in sections."""

    job: str  # KIND/NAMESPACE/NAME
    state: str  # waiting, running or suspended
    since_s: float | None  # since when it is so, in seconds since 1970; None if unknown
    now_s: float  # time of the decision, in seconds since 1970
    queue: QueueSection
    quota: tuple[ResourceNeed, ...]  # requests of its queue; empty if no object describes the queue
    room: RoomSection
    gang: GangSection
    size: SizeSection | None  # None for a waiting job
    reason: Reason
    workers: int  # after the decision
    workers_before: int
    detail: str  # numbers of the reason, "" for none
    explanation: str  # the meaning of the reason, as sentences
    advice: str  # what its owner can do, as sentences; "" for nothing
    shrinking_jobs: tuple[tuple[str, int, int], ...]  # jobs that shrink for it: (job, size before, size after)
    beneficiary: str  # the job for which it shrinks, "" for none
    start: Estimate | None  # expected start of a waiting job, None if nobody has estimated it


def chain(
    key: JobKey,
    observation: Observation,
    steps: Sequence[Step],
    policy: Policy,
    now_s: float,
    nodes: Iterable[Node],
    gpus: Gpus,
    start: Estimate | None = None,
    cluster: ClusterContext | None = None,
) -> Chain | None:
    """Return the explanation of one decision; None if the observation does not name the job.

    steps: one for each job of the observation, in its order. now_s: time of the decision, in seconds since 1970. nodes:
    all of the observation. gpus: the resources that count as a GPU. start: of the forecast; None if it has none. A
    cause of which the decision knows nothing, such as another gang, may replace `start`. cluster: None if nothing is
    known of other gangs.
    """
    cluster = cluster or ClusterContext()
    job_and_step = next((each for each in zip(observation.jobs, steps, strict=True) if each[0].job.key == key), None)
    if job_and_step is None:
        return None
    job, step = job_and_step
    meaning, start_by_cause = cause(job, step, observation, cluster) or (AUTOSCALER[step.reason.value], None)
    return Chain(
        str(key),
        _state(job, step),
        _since_s(job),
        now_s,
        _queue_section(job.job.queue, observation, policy, gpus, cluster),
        _resource_needs(job, observation.queues.get(job.job.queue)),
        room_section(job, observation, list(nodes), worker_text(job.job.shape, gpus)),
        _gang_section(job, members(job, cluster)),
        None if job.is_waiting else _size_section(job, policy, now_s),
        step.reason,
        step.target,
        step.current,
        step.detail,
        meaning.means,
        meaning.next,
        tuple((str(each.key), each.current, each.target) for each in steps if each.beneficiary == key),
        "" if step.beneficiary is None else str(step.beneficiary),
        start_by_cause or start,
    )


def _state(state: JobState, step: Step) -> str:
    """Return the state of a job as the explanation names it: waiting, suspended or running."""
    return "waiting" if state.is_waiting else "suspended" if step.reason is Reason.SUSPENDED else "running"


def _since_s(state: JobState) -> float | None:
    """Return since when a job waits or runs, in seconds since 1970; None if unknown.

    A waiting job, and one without workers, counts from its creation; any other from the start of its first worker.
    """
    if state.is_waiting or not state.workers:
        return unix_s(state.job.created)
    return min(worker.since_s for worker in state.workers) or None


def _queue_section(
    name: str, observation: Observation, policy: Policy, gpus: Gpus, cluster: ClusterContext
) -> QueueSection:
    """Return the section about a queue: its limit, its use, and the jobs that hold its GPUs. name: of the queue."""
    holders = _holders(name, observation, gpus, cluster)
    queue = observation.queues.get(name)
    described = queue or QueueShare()
    used = total_gpus(described.used, gpus) if queue else sum(each.gpus for each in holders)
    return QueueSection(
        name,
        queue is not None,
        described.open,
        gpu_limit(described.limit, gpus),
        gpu_limit(described.deserved, gpus),
        used,
        remaining_gpus(described.limit, described.used, gpus),
        max(largest_gpu_amount(policy.headroom, gpus), largest_gpu_amount(described.headroom, gpus)),
        tuple(holders[:MAX_HOLDERS]),
        max(0, len(holders) - MAX_HOLDERS),
    )


def _holders(name: str, observation: Observation, gpus: Gpus, cluster: ClusterContext) -> list[Holder]:
    """Return the jobs and unmanaged gangs that hold GPUs of a queue, the largest first. name: of the queue."""
    jobs = [each for each in observation.jobs if each.job.queue == name and each.bound_workers]
    job_keys = {each.job.key for each in jobs}
    gangs = [gang for gang in cluster.gangs.values() if gang.queue == name and gang.key not in job_keys]
    holders = [*(_holder(each, gpus) for each in jobs), *(_gang_holder(gang, gpus) for gang in gangs)]
    return sorted((each for each in holders if each.gpus), key=lambda each: (-each.gpus, each.job))


def _holder(state: JobState, gpus: Gpus) -> Holder:
    """Return the GPUs that a job holds: up to its min with all other roles, and above the min."""
    worker_gpus, minimum = state.job.shape.gpus(gpus), state.job.bounds.minimum
    other_gpus = sum(
        count * shape.gpus(gpus) for count, (shape, _) in zip(state.other_pods, state.job.other_roles, strict=False)
    )
    return Holder(
        str(state.job.key),
        min(state.bound_workers, minimum) * worker_gpus + other_gpus,
        max(0, state.bound_workers - minimum) * worker_gpus,
    )


def _gang_holder(gang: UnmanagedGang, gpus: Gpus) -> Holder:
    """Return the GPUs that an unmanaged gang holds; none of its pods are elastic."""
    return Holder(str(gang.key), sum(shape.gpus(gpus) for _, shape in gang.bound_pods), 0)


def _resource_needs(state: JobState, queue: QueueShare | None) -> tuple[ResourceNeed, ...]:
    """Return what a job requests of its queue, by resource: its min while it waits, else its next larger size.

    While it waits, only the pods that it lacks count. queue: None if no object describes it; then () is returned.
    """
    larger = state.job.sizes.larger(state.job.replicas)
    pods = lacking_pods(state) if state.is_waiting else [(state.job.shape, larger - state.job.replicas)]
    described = queue or QueueShare()
    return tuple(
        ResourceNeed(
            resource,
            needs,
            limit := described.limit.get(resource),
            None if limit is None else max(0, limit - described.used.get(resource, 0)),
        )
        for resource, needs in total_of(pods)
        if queue is not None
    )


def worker_text(shape: PodShape, gpus: Gpus) -> str:
    """Return the requests of one worker as text, GPUs first; "nothing" without any."""
    requests = sorted(shape.requests, key=lambda each: (each[0] not in gpus, each[0]))
    return ", ".join(amount_text(resource, amount) for resource, amount in requests if resource != "pods") or "nothing"


def _gang_section(state: JobState, existing: int) -> GangSection:
    """Return the section about a job's gang. existing: pods of its resized role that exist, with or without a node."""
    job = state.job
    other_roles = zip(
        state.other_pods or (0,) * len(job.other_roles), (replicas for _, replicas in job.other_roles), strict=False
    )
    missing = max(0, job.bounds.minimum - state.bound_workers - state.finished)
    return GangSection(
        job.bounds.minimum,
        job.maximum,
        existing,
        state.bound_workers,
        state.finished,
        missing,
        tuple(other_roles),
        job.spread.tier,
        job.spread.multiple,
    )


def _size_section(state: JobState, policy: Policy, now_s: float) -> SizeSection:
    """Return the section about a running job's size. now_s: seconds since 1970."""
    job = state.job
    larger, changed_s = job.sizes.larger(job.replicas), job.resize_budget.resized_s or None
    pause_s = policy.cooldown_s if job.cooldown_s is None else job.cooldown_s
    return SizeSection(
        state.bound_workers,
        job.replicas,
        larger if larger <= job.maximum else None,
        max(0, state.bound_workers - job.bounds.minimum),
        balance_s(job, policy, now_s),
        0.0 if changed_s is None else max(0.0, changed_s + pause_s - now_s),
        changed_s,
        job.reapplied_size,
        job.wanted_workers,
    )


BoundPod = tuple[int, PodShape]  # row of a node, and the shape of a pod there


@dataclass(frozen=True, slots=True)
class UnmanagedGang:
    """A gang of pods that belong to no job of a known kind."""

    key: JobKey
    queue: str  # that pays for it
    existing: int  # pods that exist, with or without a node
    bound_pods: tuple[BoundPod, ...] = ()  # pods with a node


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """The part of the cluster that an observation does not show."""

    gangs: Mapping[JobKey, UnmanagedGang] = field(default_factory=dict)  # by the key of the gang
    map_read: bool = True  # the map of switches could be read, or it was found not to exist


# Meaning and start that replace those of the decision; None keeps its start.
Cause = tuple[Meaning, Estimate | None]


def cause(state: JobState, step: Step, observation: Observation, cluster: ClusterContext) -> Cause | None:
    """Return what keeps a waiting job from its start, if neither its scheduler nor the end of jobs helps.

    None if the step of the job explains it well: it does not wait for room, or nothing else is missing.
    """
    if not state.is_waiting or step.reason not in (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM, Reason.NEEDS_MORE):
        return None
    minimum, tier = state.job.bounds.minimum - state.finished, state.job.spread.tier
    if tier is not None and not observation.room.switches:
        return _without_map(tier, cluster.map_read)
    max_workers = max_together(state, observation, cluster.gangs.values())
    if max_workers < minimum and step.reason is Reason.NEEDS_MORE:
        return _no_place(minimum, max_workers, tier)
    existing = members(state, cluster)
    if existing < minimum and (existing or state.job.foreign):
        return _incomplete(minimum, existing)
    return None


def members(state: JobState, cluster: ClusterContext) -> int:
    """Return how many pods of a job's resized role exist, with a node or without. Terminating pods of a job do not
    count.
    """
    gang = cluster.gangs.get(state.job.key)
    return gang.existing if gang is not None else len(state.living)


def max_together(state: JobState, observation: Observation, gangs: Collection[UnmanagedGang]) -> int:
    """Return how many workers of a job the nodes would hold together if all pods of jobs and of `gangs` had left.

    If the job requires one switch and there is a map, they must fit under one switch. gangs: the unmanaged gangs. Pods
    of other roles of jobs do not leave.
    """
    removed = [
        *((pod.row, pod.shape) for pod in observation.terminating_pods),
        *(each for gang in gangs for each in gang.bound_pods),
    ]
    gang_keys = {gang.key for gang in gangs}
    for each in (job for job in observation.jobs if job.job.key not in gang_keys):
        removed += [(worker.row, each.job.shape) for worker in each.workers if worker.row is not None]
    fits = _fits_after_removal(observation.room, state.job.shape, removed)
    tier, switches = state.job.spread.tier, observation.room.switches
    if tier is None or not switches:
        return int(fits.sum())
    switch_of_row = switches[min(tier, len(switches)) - 1]
    on_map = switch_of_row >= 0
    return int(np.bincount(switch_of_row[on_map], weights=fits[on_map], minlength=1).max())


def _fits_after_removal(room: Capacity, shape: PodShape, removed: Sequence[BoundPod]) -> NDArray[np.int64]:
    """Return how many pods of a shape fit on each node, int[nodes], after the `removed` pods have left.

    Host ports are not checked. removed: (node row, shape) of each pod; an unknown node is ignored. 1,000,000 on each
    node that admits a shape that requests nothing.
    """
    free = room.free.copy()
    for row, removed_shape in removed:
        if row != UNKNOWN_NODE:
            requests = dict(removed_shape.requests)
            free[row] += [requests.get(name, 0) for name in room.names]
    pod_requests = room.pod_requests[shape]
    requested = pod_requests > 0
    if not requested.any():
        return np.where(room.admitting_nodes[shape], 1_000_000, 0)
    fits = np.maximum((free[:, requested] // pod_requests[requested]).min(axis=1), 0)
    return np.where(room.admitting_nodes[shape], fits, 0)


def _without_map(tier: int, map_missing: bool) -> Cause:
    """Return the cause of a job that needs one switch of a tier while no map is known.

    map_missing: True if there is no map, False if it cannot be read.
    """
    if not map_missing:
        why = "the map of switches cannot be read, so nobody can say here whether it fits"
        advice = "Ask somebody who may read it."
    else:
        why, advice = "there is no map of the switches", "The admin writes the map, or its owner asks for no tier."
    means = f"It must stay under one switch of tier {tier}, and {why}."
    return Meaning(means, advice), Estimate(NEVER, NEVER, NEVER, f"nobody can say: {why}")


def _no_place(minimum: int, max_workers: int, tier: int | None) -> Cause:
    """Return the cause of a job that cannot start even on empty nodes. tier: of the switch that must hold it; None for
    any place.

    Without a tier it has no start, so that the decision's own stays. minimum: workers that it needs together.
    max_workers: workers that the best place holds.
    """
    where = "these nodes hold" if tier is None else f"a switch of tier {tier} holds"
    needs = f"it needs {minimum} workers together, and {where} {max_workers} at most"
    never = f"It can never start as it is: {needs}, even if all else were gone."
    if tier is None:
        help_ = "Lower its min, make its workers smaller, or add nodes: that other jobs end does not help."
        return Meaning(f"{AUTOSCALER[Reason.NEEDS_MORE.value].means} {never}", help_), None
    advice = "Raise turnout.dev/topology-tier, lower its min, or make its workers smaller: waiting does not help."
    return (
        Meaning(never, advice),
        Estimate(NEVER, NEVER, NEVER, f"never: {where} {max_workers} of its {minimum} workers at most"),
    )


def _incomplete(minimum: int, existing: int) -> Cause:
    """Return the cause of a job with fewer pods than its gang needs.

    minimum: pods that it needs. existing: pods that exist, fewer.
    """
    missing_text = f"{minimum - existing} more member{'' if minimum - existing == 1 else 's'}"
    existing_text = f"{existing} of the {minimum} that must start together exist"
    meaning = f"It waits for {missing_text}: {existing_text}, so its scheduler holds them."
    advice = "Look at who creates its pods: its controller's Events, a ResourceQuota; or lower its min."
    because = f"not before {missing_text} {'exists' if minimum - existing == 1 else 'exist'}"
    return Meaning(meaning, advice), Estimate(NEVER, NEVER, NEVER, because)


def count_refusals(nodes: Iterable[Node], shape: PodShape) -> Counter[str]:
    """Return how many nodes do not admit a pod of this shape, by the first reason of each node (refusal())."""
    return Counter(why for node in nodes if (why := refusal(node, shape)))


def refusal(node: Node, shape: PodShape) -> str:
    """Return the first reason why a node does not admit a pod of this shape, "" if it admits it."""
    if admits(node, shape):
        return ""
    if any(each.status != "True" for each in node.status.conditions or () if each.type == "Ready"):
        return "not ready"
    bare = msgspec.structs.replace(node, spec=NodeSpec())
    if admits(bare, shape):
        return _untolerated_taint(node, bare, shape)
    if admits(bare, replace(shape, terms=None)):
        return "outside its node affinity"
    node_labels = node.metadata.labels or {}
    missing = next((f"{key}={value}" for key, value in shape.selector if node_labels.get(key) != value), "")
    return f"without label {missing}" if missing else "outside its node affinity"


def _untolerated_taint(node: Node, bare: Node, shape: PodShape) -> str:
    """Return the first taint of a node that a pod does not tolerate, as "taint KEY", or "cordoned".

    bare: the node without taints and without a cordon. shape: of the pod.
    """
    for taint in node.spec.taints or ():
        if not admits(msgspec.structs.replace(bare, spec=NodeSpec(taints=[taint])), shape):
            return (
                "cordoned" if node.spec.unschedulable and taint.key.endswith("/unschedulable") else f"taint {taint.key}"
            )
    return "cordoned"


@dataclass(frozen=True, slots=True)
class RoomSection:
    """The section about the room for more workers of one job."""

    worker: str  # requests of one worker, as text
    nodes: int  # number of all nodes
    admits: int  # nodes that admit such a worker
    with_room: int  # nodes that have room for one now
    fits: int  # whole workers on all nodes together
    fits_when_empty: int  # the same without any worker of any job
    refusals: tuple[tuple[str, int], ...]  # (reason, nodes), the most frequent first


def room_section(state: JobState, observation: Observation, nodes: list[Node], worker: str) -> RoomSection:
    """Return the section about the room for workers of a job, now and without any worker of any job.

    nodes: all of the observation. worker: requests of one worker, as text.
    """
    shape = state.job.shape
    fits = observation.room.fits(shape)
    why = count_refusals(nodes, shape)
    return RoomSection(
        worker,
        len(nodes),
        len(nodes) - why.total(),
        int(np.count_nonzero(fits)),
        int(fits.sum()),
        _without_jobs(observation).total(shape),
        tuple(sorted(why.items(), key=lambda each: (-each[1], each[0]))),
    )


def _without_jobs(observation: Observation) -> Capacity:
    """Return the room as it would be without any worker of any job. It answers only whether pods fit."""
    rows: dict[PodShape, list[int]] = {}
    for each in observation.jobs:
        rows_of_job = [worker.row for worker in each.workers if worker.row is not None and worker.row != UNKNOWN_NODE]
        rows.setdefault(each.job.shape, []).extend(rows_of_job)
    return observation.room.with_pods_removed(rows)
