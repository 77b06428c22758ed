"""The chain from a queue to a decision, in numbers: queue, quota, room, gang, decision, and when it may start.

These are facts; the words for them are the console's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnout.autoscaler.gpu_sums import Gpus, bound, free, largest, total
from turnout.autoscaler.model import JobState, Observation, Policy, Queue, Reason, Step
from turnout.autoscaler.reporting.forecast import Estimate
from turnout.autoscaler.reporting.never import BareGang, Beside, cause, members
from turnout.autoscaler.reporting.node_rejections import RoomLink, room_link
from turnout.autoscaler.scaling.cost_model import balance_s
from turnout.autoscaler.scaling.quota import least_of, total_of
from turnout.jobs.model import JobKey
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
class Lack:
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
    there: int
    has: int
    done: int
    lacks: int
    beside: tuple[tuple[int, int], ...]
    tier: int | None
    multiple: int


@dataclass(frozen=True, slots=True)
class SizeLink:
    """The part of an explanation about a running job's size."""

    size: int
    wanted: int
    larger: int | None  # the next size, None when this is the last
    elastic: int
    balance_s: float  # what lending has won it, restarts taken off
    cooldown_s: float  # how long its size will not grow yet
    changed_s: float | None  # when it was last changed, None for never
    put_back: int | None = None  # the size last given, where its object was applied again as submitted; else None
    wish: int | None = None  # the size that a person has set by hand, None for none


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
    quota: tuple[Lack, ...]
    room: RoomLink
    gang: GangLink
    size: SizeLink | None
    reason: Reason
    workers: int
    was: int
    detail: str
    means: str
    next: str
    helped_by: tuple[tuple[str, int, int], ...]
    helps: str
    start: Estimate | None


def chain(
    key: JobKey,
    seen: Observation,
    steps: Sequence[Step],
    policy: Policy,
    now_s: float,
    nodes: Iterable[Node],
    gpus: Gpus,
    start: Estimate | None = None,
    beside: Beside | None = None,
) -> Chain | None:
    """The chain of one job, None for one that was not seen. gpus: the resources that count as a GPU."""
    beside = beside or Beside()
    found = next((each for each in zip(seen.jobs, steps, strict=True) if each[0].job.key == key), None)
    if found is None:
        return None
    job, step = found
    meaning, better = AUTOSCALER[step.reason.value], cause(job, step, seen, beside)
    return Chain(
        str(key),
        _state(job, step),
        _since(job),
        now_s,
        _queue(job.job.queue, seen, policy, gpus, beside),
        _quota(job, seen.queues.get(job.job.queue)),
        room_link(job, seen, list(nodes), worker_of(job.job.shape, gpus)),
        _gang(job, members(job, beside)),
        None if job.waits else _size(job, policy, now_s),
        step.reason,
        step.target,
        step.current,
        step.detail,
        better.means if better else meaning.means,
        (better and better.next) or meaning.next,
        tuple((str(each.key), each.current, each.target) for each in steps if each.beneficiary == key),
        "" if step.beneficiary is None else str(step.beneficiary),
        (better and better.start) or start,
    )


def _state(seen: JobState, step: Step) -> str:
    return "waits" if seen.waits else "suspended" if step.reason is Reason.SUSPENDED else "runs"


def _since(seen: JobState) -> float | None:
    """When it was made, or when the oldest of its workers was."""
    if seen.waits or not seen.workers:
        return unix_s(seen.job.created)
    return min(worker.since_s for worker in seen.workers) or None


def _queue(name: str, seen: Observation, policy: Policy, gpus: Gpus, beside: Beside) -> QueueLink:
    mine = [each for each in seen.jobs if each.job.queue == name and each.placed]
    told_of = {each.job.key for each in mine}
    bare = [gang for gang in beside.gangs.values() if gang.queue == name and gang.key not in told_of]
    holders = sorted(
        [*(_holder(each, gpus) for each in mine), *(_bare(gang, gpus) for gang in bare)],
        key=lambda each: (-each.least_gpus - each.elastic_gpus, each.job),
    )
    holders = [each for each in holders if each.least_gpus or each.elastic_gpus]
    queue = seen.queues.get(name)
    told = queue or Queue(name)
    used = total(told.used, gpus) if queue else sum(each.least_gpus + each.elastic_gpus for each in holders)
    return QueueLink(
        name,
        queue is not None,
        told.open,
        bound(told.limit, gpus),
        bound(told.deserved, gpus),
        used,
        free(told.limit, told.used, gpus),
        max(largest(policy.headroom, gpus), largest(told.headroom, gpus)),
        tuple(holders[:MOST_HOLDERS]),
        max(0, len(holders) - MOST_HOLDERS),
    )


def _holder(seen: JobState, gpus: Gpus) -> Holder:
    each, least = seen.job.shape.gpus(gpus), seen.job.bounds.least
    beside = sum(there * shape.gpus(gpus) for there, (shape, _) in zip(seen.beside, seen.job.other_roles, strict=False))
    return Holder(str(seen.job.key), min(seen.placed, least) * each + beside, max(0, seen.placed - least) * each)


def _bare(gang: BareGang, gpus: Gpus) -> Holder:
    return Holder(str(gang.key), sum(shape.gpus(gpus) for _, shape in gang.placed), 0)


def _quota(seen: JobState, queue: Queue | None) -> tuple[Lack, ...]:
    """List what a job asks of its queue: its min while it waits, else its next step of growth."""
    larger = seen.job.sizes.larger(seen.job.replicas)
    pods = least_of(seen) if seen.waits else [(seen.job.shape, larger - seen.job.replicas)]
    told = queue or Queue("")
    return tuple(
        Lack(what, needs, most := told.limit.get(what), None if most is None else max(0, most - told.used.get(what, 0)))
        for what, needs in total_of(pods)
        if queue is not None
    )


def worker_of(shape: PodShape, gpus: Gpus) -> str:
    """Say what one worker asks for, GPUs first."""
    asked = sorted(shape.requests, key=lambda each: (each[0] not in gpus, each[0]))
    return ", ".join(amount_text(what, amount) for what, amount in asked if what != "pods") or "nothing"


def _gang(seen: JobState, there: int) -> GangLink:
    job = seen.job
    beside = zip(seen.beside or (0,) * len(job.other_roles), (wanted for _, wanted in job.other_roles), strict=False)
    lacks = max(0, job.bounds.least - seen.placed - seen.done)
    return GangLink(
        job.bounds.least,
        job.most,
        there,
        seen.placed,
        seen.done,
        lacks,
        tuple(beside),
        job.spread.tier,
        job.spread.multiple,
    )


def _size(seen: JobState, policy: Policy, now_s: float) -> SizeLink:
    job = seen.job
    larger, changed_s = job.sizes.larger(job.replicas), job.bank.resized_s or None
    pause_s = policy.cooldown_s if job.cooldown_s is None else job.cooldown_s
    return SizeLink(
        seen.placed,
        job.replicas,
        larger if larger <= job.most else None,
        max(0, seen.placed - job.bounds.least),
        balance_s(job, policy, now_s),
        0.0 if changed_s is None else max(0.0, changed_s + pause_s - now_s),
        changed_s,
        job.reapplied_size,
        job.wish,
    )
