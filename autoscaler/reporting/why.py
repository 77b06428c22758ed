"""Explains one decision in numbers: queue, quota, room, gang, decision, and expected start.

It also finds what a waiting job lacks that neither its scheduler nor the end of other jobs can give it: members that do
not exist, or a place that these nodes do not have even when they are empty. The console writes the sentences.
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
    bound,
    free,
    largest,
    total,
)
from turnout.autoscaler.reporting.forecast import NEVER, Estimate
from turnout.autoscaler.scaling.free_room import lacking_pods, total_of
from turnout.autoscaler.scaling.resize_cost import balance_s
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import Queue
from turnout.kube.objects import Node, NodeSpec
from turnout.kube.pod_shape import PodShape, admits, amount_text
from turnout.kube.reasons import AUTOSCALER, Meaning
from turnout.kube.times import unix_s

MOST_HOLDERS = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds GPUs of the queue: up to its min, and above it."""

    job: str
    least_gpus: int
    elastic_gpus: int

    @property
    def gpus(self) -> int:
        """Return all its GPUs."""
        return self.least_gpus + self.elastic_gpus


@dataclass(frozen=True, slots=True)
class QueueLink:
    """The queue of a job. Amounts are in GPUs, None if nothing is specified."""

    name: str
    known: bool  # an object describes it
    open: bool
    limit: int | None
    deserved: int | None
    used: int
    free: int | None
    headroom: int
    holders: tuple[Holder, ...]  # the largest first, at most MOST_HOLDERS
    others: int  # holders beyond those


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """One requested resource."""

    resource: str
    needs: int
    limit: int | None  # of the queue, None for no limit
    free: int | None  # in the queue, None for no limit


@dataclass(frozen=True, slots=True)
class GangLink:
    """The gang of a job, in workers."""

    least: int
    most: int
    existing: int
    bound: int  # with a node
    finished: int
    missing: int  # to the min
    other_roles: tuple[tuple[int, int], ...]  # (pods with a node, pods) of each other role
    tier: int | None  # of the widest switch that the gang may span, None for any
    multiple: int


@dataclass(frozen=True, slots=True)
class SizeLink:
    """The part of an explanation about a running job's size."""

    size: int  # workers with a node
    requested: int  # workers that its object requests
    larger: int | None  # the next size, None when this is the last
    elastic: int
    balance_s: float  # seconds that lending has won, minus restarts
    cooldown_s: float  # how long its size will not grow yet
    changed_s: float | None  # when it was last changed, None for never
    reapplied_size: int | None = None  # the size last given, where its object was applied again as submitted; else None
    manual_size: int | None = None  # the size that a person has set by hand, None for none


@dataclass(frozen=True, slots=True)
class Chain:
    """All facts about one job at one moment."""

    job: str
    state: str  # waiting, running or suspended
    since_s: float | None  # since 1970, None if unknown
    now_s: float
    queue: QueueLink
    quota: tuple[ResourceNeed, ...]
    room: RoomLink
    gang: GangLink
    size: SizeLink | None
    reason: Reason
    workers: int  # after the decision
    workers_before: int
    detail: str
    explanation: str
    advice: str
    shrinking_jobs: tuple[tuple[str, int, int], ...]  # those that shrink for it: (job, size before, size after)
    beneficiary: str  # the job for which it shrinks, "" for none
    start: Estimate | None


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
    """Return the chain of one job, None for an unknown job. gpus: the resources that count as a GPU."""
    cluster = cluster or ClusterContext()
    found = next((each for each in zip(observation.jobs, steps, strict=True) if each[0].job.key == key), None)
    if found is None:
        return None
    job, step = found
    meaning, better_start = cause(job, step, observation, cluster) or (AUTOSCALER[step.reason.value], None)
    return Chain(
        str(key),
        _state(job, step),
        _since(job),
        now_s,
        _queue(job.job.queue, observation, policy, gpus, cluster),
        _quota(job, observation.queues.get(job.job.queue)),
        room_link(job, observation, list(nodes), worker_of(job.job.shape, gpus)),
        _gang(job, members(job, cluster)),
        None if job.is_waiting else _size(job, policy, now_s),
        step.reason,
        step.target,
        step.current,
        step.detail,
        meaning.means,
        meaning.next,
        tuple((str(each.key), each.current, each.target) for each in steps if each.beneficiary == key),
        "" if step.beneficiary is None else str(step.beneficiary),
        better_start or start,
    )


def _state(state: JobState, step: Step) -> str:
    return "waiting" if state.is_waiting else "suspended" if step.reason is Reason.SUSPENDED else "running"


def _since(state: JobState) -> float | None:
    """Return the creation time of the job, or of the oldest of its workers."""
    if state.is_waiting or not state.workers:
        return unix_s(state.job.created)
    return min(worker.since_s for worker in state.workers) or None


def _queue(name: str, observation: Observation, policy: Policy, gpus: Gpus, cluster: ClusterContext) -> QueueLink:
    """Return the link about the queue: its limit, its use, and the jobs that hold its GPUs."""
    holders = _holders(name, observation, gpus, cluster)
    queue = observation.queues.get(name)
    described = queue or Queue()
    used = total(described.used, gpus) if queue else sum(each.gpus for each in holders)
    return QueueLink(
        name,
        queue is not None,
        described.open,
        bound(described.limit, gpus),
        bound(described.deserved, gpus),
        used,
        free(described.limit, described.used, gpus),
        max(largest(policy.headroom, gpus), largest(described.headroom, gpus)),
        tuple(holders[:MOST_HOLDERS]),
        max(0, len(holders) - MOST_HOLDERS),
    )


def _holders(name: str, observation: Observation, gpus: Gpus, cluster: ClusterContext) -> list[Holder]:
    """Return the jobs and gangs that hold GPUs of a queue, the largest first."""
    jobs = [each for each in observation.jobs if each.job.queue == name and each.bound_workers]
    job_keys = {each.job.key for each in jobs}
    gangs = [gang for gang in cluster.gangs.values() if gang.queue == name and gang.key not in job_keys]
    found = [*(_holder(each, gpus) for each in jobs), *(_gang_holder(gang, gpus) for gang in gangs)]
    return sorted((each for each in found if each.gpus), key=lambda each: (-each.gpus, each.job))


def _holder(state: JobState, gpus: Gpus) -> Holder:
    """Return what a job holds, in GPUs: up to its min with all other roles, and above the min."""
    each, least = state.job.shape.gpus(gpus), state.job.bounds.least
    other_gpus = sum(
        count * shape.gpus(gpus) for count, (shape, _) in zip(state.other_pods, state.job.other_roles, strict=False)
    )
    return Holder(
        str(state.job.key),
        min(state.bound_workers, least) * each + other_gpus,
        max(0, state.bound_workers - least) * each,
    )


def _gang_holder(gang: UnmanagedGang, gpus: Gpus) -> Holder:
    return Holder(str(gang.key), sum(shape.gpus(gpus) for _, shape in gang.bound_pods), 0)


def _quota(state: JobState, queue: Queue | None) -> tuple[ResourceNeed, ...]:
    """Return what a job requests of its queue: its min while it waits, else its next step of growth."""
    larger = state.job.sizes.larger(state.job.replicas)
    pods = lacking_pods(state) if state.is_waiting else [(state.job.shape, larger - state.job.replicas)]
    described = queue or Queue()
    return tuple(
        ResourceNeed(
            what,
            needs,
            most := described.limit.get(what),
            None if most is None else max(0, most - described.used.get(what, 0)),
        )
        for what, needs in total_of(pods)
        if queue is not None
    )


def worker_of(shape: PodShape, gpus: Gpus) -> str:
    """Return what one worker requests, GPUs first."""
    requests = sorted(shape.requests, key=lambda each: (each[0] not in gpus, each[0]))
    return ", ".join(amount_text(what, amount) for what, amount in requests if what != "pods") or "nothing"


def _gang(state: JobState, existing: int) -> GangLink:
    """Return the numbers of a job's gang. existing: pods of its resized role."""
    job = state.job
    other_roles = zip(
        state.other_pods or (0,) * len(job.other_roles), (replicas for _, replicas in job.other_roles), strict=False
    )
    missing = max(0, job.bounds.least - state.bound_workers - state.finished)
    return GangLink(
        job.bounds.least,
        job.most,
        existing,
        state.bound_workers,
        state.finished,
        missing,
        tuple(other_roles),
        job.spread.tier,
        job.spread.multiple,
    )


def _size(state: JobState, policy: Policy, now_s: float) -> SizeLink:
    """Return the size of a job, what it may become, and how long its cooldown still lasts."""
    job = state.job
    larger, changed_s = job.sizes.larger(job.replicas), job.resize_budget.resized_s or None
    pause_s = policy.cooldown_s if job.cooldown_s is None else job.cooldown_s
    return SizeLink(
        state.bound_workers,
        job.replicas,
        larger if larger <= job.most else None,
        max(0, state.bound_workers - job.bounds.least),
        balance_s(job, policy, now_s),
        0.0 if changed_s is None else max(0.0, changed_s + pause_s - now_s),
        changed_s,
        job.reapplied_size,
        job.wish,
    )


BoundPod = tuple[int, PodShape]  # row of a node, and the shape of a pod there


@dataclass(frozen=True, slots=True)
class UnmanagedGang:
    """A gang of pods that belong to no job of a known kind."""

    key: JobKey
    queue: str
    existing: int  # pods that exist
    bound_pods: tuple[BoundPod, ...] = ()  # those with a node


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """The part of the cluster that an observation does not show."""

    gangs: Mapping[JobKey, UnmanagedGang] = field(default_factory=dict)
    map_read: bool = True  # the map of switches could be read


Cause = tuple[Meaning, Estimate | None]  # advice "" and start None leave those of the decision


def cause(state: JobState, step: Step, observation: Observation, cluster: ClusterContext) -> Cause | None:
    """Return what a job lacks first; None if its step explains it well."""
    if not state.is_waiting or step.reason not in (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM, Reason.NEEDS_MORE):
        return None
    least, tier = state.job.bounds.least - state.finished, state.job.spread.tier
    if tier is not None and not observation.room.switches:
        return _without_map(tier, cluster.map_read)
    most = max_together(state, observation, cluster.gangs.values())
    if most < least and step.reason is Reason.NEEDS_MORE:
        return _no_place(least, most, tier)
    existing = members(state, cluster)
    if existing < least and (existing or state.job.foreign):
        return _incomplete(least, existing)
    return None


def members(state: JobState, cluster: ClusterContext) -> int:
    """Return the number of pods of a job that exist, with a node or without."""
    gang = cluster.gangs.get(state.job.key)
    return gang.existing if gang is not None else len(state.living)


def max_together(state: JobState, observation: Observation, gangs: Collection[UnmanagedGang]) -> int:
    """Return how many workers empty nodes hold, under one switch if the job requests that."""
    removed = [
        *((pod.row, pod.shape) for pod in observation.leaving),
        *(each for gang in gangs for each in gang.bound_pods),
    ]
    gang_keys = {gang.key for gang in gangs}
    for each in (job for job in observation.jobs if job.job.key not in gang_keys):
        removed += [(worker.row, each.job.shape) for worker in each.workers if worker.row is not None]
    fits = _fits_after_removal(observation.room, state.job.shape, removed)
    tier, switches = state.job.spread.tier, observation.room.switches
    if tier is None or not switches:
        return int(fits.sum())
    of = switches[min(tier, len(switches)) - 1]
    known = of >= 0
    return int(np.bincount(of[known], weights=fits[known], minlength=1).max())


def _fits_after_removal(room: Capacity, shape: PodShape, removed: Sequence[BoundPod]) -> NDArray[np.int64]:
    """Return how many pods of a shape each node holds after others are removed."""
    free = room.free.copy()
    for row, other in removed:
        if row != UNKNOWN_NODE:
            requests = dict(other.requests)
            free[row] += [requests.get(name, 0) for name in room.names]
    takes = room.takes[shape]
    asks = takes > 0
    if not asks.any():
        return np.where(room.admits[shape], 1_000_000, 0)
    fits = np.maximum((free[:, asks] // takes[asks]).min(axis=1), 0)
    return np.where(room.admits[shape], fits, 0)


def _without_map(tier: int, map_read: bool) -> Cause:
    """Return the cause of a job that needs one switch while no map is known.

    map_read: the map could be read, and there is none.
    """
    if not map_read:
        why = "the map of switches cannot be read, so nobody can say here whether it fits"
        help_ = "Ask somebody who may read it."
    else:
        why, help_ = "there is no map of the switches", "The admin writes the map, or its owner asks for no tier."
    means = f"It must stay under one switch of tier {tier}, and {why}."
    return Meaning(means, help_), Estimate(NEVER, NEVER, NEVER, f"nobody can say: {why}")


def _no_place(least: int, most: int, tier: int | None) -> Cause:
    """Return why a job can never start here, and the estimate.

    most: workers that the best place holds. tier: None for no limit.
    """
    where = "these nodes hold" if tier is None else f"a switch of tier {tier} holds"
    needs = f"it needs {least} workers together, and {where} {most} at most"
    never = f"It can never start as it is: {needs}, even if all else were gone."
    if tier is None:
        help_ = "Lower its min, make its workers smaller, or add nodes: that other jobs end does not help."
        return Meaning(f"{AUTOSCALER[Reason.NEEDS_MORE.value].means} {never}", help_), None
    advice = "Raise turnout.dev/topology-tier, lower its min, or make its workers smaller: waiting does not help."
    return (
        Meaning(never, advice),
        Estimate(NEVER, NEVER, NEVER, f"never: {where} {most} of its {least} workers at most"),
    )


def _incomplete(least: int, existing: int) -> Cause:
    """Return the cause of a job that has fewer members than its gang needs. least: needed. existing: created."""
    more = f"{least - existing} more member{'' if least - existing == 1 else 's'}"
    present = f"{existing} of the {least} that must start together exist"
    meaning = f"It waits for {more}: {present}, so its scheduler holds them."
    advice = "Look at who creates its pods: its controller's Events, a ResourceQuota; or lower its min."
    because = f"not before {more} {'exists' if least - existing == 1 else 'exist'}"
    return Meaning(meaning, advice), Estimate(NEVER, NEVER, NEVER, because)


def refusals(nodes: Iterable[Node], shape: PodShape) -> Counter[str]:
    """Return how many nodes do not admit a pod of this shape, by reason."""
    return Counter(why for node in nodes if (why := refusal(node, shape)))


def refusal(node: Node, shape: PodShape) -> str:
    """Return the first reason why this node does not admit a pod of this shape, "" if it admits it."""
    if admits(node, shape):
        return ""
    if any(each.status != "True" for each in node.status.conditions or () if each.type == "Ready"):
        return "not ready"
    bare = msgspec.structs.replace(node, spec=NodeSpec())
    if admits(bare, shape):
        return _untolerated_taint(node, bare, shape)
    if admits(bare, replace(shape, terms=None)):
        return "outside its node affinity"
    have = node.metadata.labels or {}
    missing = next((f"{key}={value}" for key, value in shape.selector if have.get(key) != value), "")
    return f"without label {missing}" if missing else "outside its node affinity"


def _untolerated_taint(node: Node, bare: Node, shape: PodShape) -> str:
    """Return the taint that the pod does not tolerate, or "cordoned"."""
    for taint in node.spec.taints or ():
        if not admits(msgspec.structs.replace(bare, spec=NodeSpec(taints=[taint])), shape):
            return (
                "cordoned" if node.spec.unschedulable and taint.key.endswith("/unschedulable") else f"taint {taint.key}"
            )
    return "cordoned"


@dataclass(frozen=True, slots=True)
class RoomLink:
    """The room for more workers of one shape."""

    worker: str  # requests of one worker
    nodes: int  # all nodes
    admits: int  # nodes that admit it
    with_room: int  # nodes that have room for it now
    fits: int  # whole workers on all nodes together
    fits_when_empty: int  # the same without any job
    refusals: tuple[tuple[str, int], ...]  # (reason, nodes), the most frequent first


def room_link(state: JobState, observation: Observation, nodes: list[Node], worker: str) -> RoomLink:
    """Return the room for one more worker, now and without any job. worker: what one requests."""
    shape = state.job.shape
    fits = observation.room.fits(shape)
    why = refusals(nodes, shape)
    return RoomLink(
        worker,
        len(nodes),
        len(nodes) - why.total(),
        int(np.count_nonzero(fits)),
        int(fits.sum()),
        _without_jobs(observation).total(shape),
        tuple(sorted(why.items(), key=lambda each: (-each[1], each[0]))),
    )


def _without_jobs(observation: Observation) -> Capacity:
    """Return the room without any job."""
    rows: dict[PodShape, list[int]] = {}
    for each in observation.jobs:
        rows_of_job = [worker.row for worker in each.workers if worker.row is not None and worker.row != UNKNOWN_NODE]
        rows.setdefault(each.job.shape, []).extend(rows_of_job)
    return observation.room.with_pods_removed(rows)
