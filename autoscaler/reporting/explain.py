"""The chain from a queue to a decision, in numbers: queue, quota, room, gang, decision, and expected start.

The console writes the sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnout.autoscaler.gpu_sums import Gpus, bound, free, largest, total
from turnout.autoscaler.model import JobState, Observation, Policy, Reason, Step
from turnout.autoscaler.reporting.forecast import Estimate
from turnout.autoscaler.reporting.never import ClusterContext, UnmanagedGang, cause, members
from turnout.autoscaler.reporting.node_rejections import RoomLink, room_link
from turnout.autoscaler.scaling.cost_model import balance_s
from turnout.autoscaler.scaling.quota import least_of, total_of
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import Queue
from turnout.kube.objects import Node
from turnout.kube.pod_shape import PodShape, amount_text
from turnout.kube.reasons import AUTOSCALER
from turnout.kube.times import unix_s

MOST_HOLDERS = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """A job that holds GPUs of the queue: up to its min, and above it."""

    job: str
    least_gpus: int
    elastic_gpus: int


@dataclass(frozen=True, slots=True)
class QueueLink:
    """known: somebody describes it. Amounts in GPUs, None where nothing is said. others: holders beyond those shown."""

    name: str
    known: bool
    open: bool
    limit: int | None
    deserved: int | None
    used: int
    free: int | None
    headroom: int
    holders: tuple[Holder, ...]
    others: int


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """One resource that is asked for. limit, free: of the queue, None for no bound."""

    resource: str
    needs: int
    limit: int | None
    free: int | None


@dataclass(frozen=True, slots=True)
class GangLink:
    """In workers. there: that exist; has: with a node. beside: pods of other roles (there, wanted).

    tier: the widest switch that it may span.
    """

    least: int
    most: int
    existing: int
    bound: int
    finished: int
    missing: int
    other_roles: tuple[tuple[int, int], ...]
    tier: int | None
    multiple: int


@dataclass(frozen=True, slots=True)
class SizeLink:
    """The part of an explanation about a running job's size."""

    size: int
    requested: int
    larger: int | None  # the next size, None when this is the last
    elastic: int
    balance_s: float  # what lending has won it, restarts taken off
    cooldown_s: float  # how long its size will not grow yet
    changed_s: float | None  # when it was last changed, None for never
    reapplied_size: int | None = None  # the size last given, where its object was applied again as submitted; else None
    manual_size: int | None = None  # the size that a person has set by hand, None for none


@dataclass(frozen=True, slots=True)
class Chain:
    """Everything about one job at one moment. state: waits, runs or suspended. since_s: since when, None if unknown.

    helped_by: the jobs that shrink for it, (job, size before, size after). helps: the job that it shrinks for.
    """

    job: str
    state: str
    since_s: float | None
    now_s: float
    queue: QueueLink
    quota: tuple[ResourceNeed, ...]
    room: RoomLink
    gang: GangLink
    size: SizeLink | None
    reason: Reason
    workers: int
    workers_before: int
    detail: str
    explanation: str
    advice: str
    shrinking_jobs: tuple[tuple[str, int, int], ...]
    beneficiary: str
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
    jobs = [each for each in observation.jobs if each.job.queue == name and each.bound_workers]
    job_keys = {each.job.key for each in jobs}
    gangs = [gang for gang in cluster.gangs.values() if gang.queue == name and gang.key not in job_keys]
    holders = sorted(
        [*(_holder(each, gpus) for each in jobs), *(_gang_holder(gang, gpus) for gang in gangs)],
        key=lambda each: (-each.least_gpus - each.elastic_gpus, each.job),
    )
    holders = [each for each in holders if each.least_gpus or each.elastic_gpus]
    queue = observation.queues.get(name)
    described = queue or Queue()
    used = total(described.used, gpus) if queue else sum(each.least_gpus + each.elastic_gpus for each in holders)
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


def _holder(state: JobState, gpus: Gpus) -> Holder:
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
    pods = least_of(state) if state.is_waiting else [(state.job.shape, larger - state.job.replicas)]
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
    job = state.job
    larger, changed_s = job.sizes.larger(job.replicas), job.bank.resized_s or None
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
