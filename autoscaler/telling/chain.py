"""The chain from a queue to a decision, in numbers: queue, quota, room, gang, decision, and when it may start.

These are facts; the words for them are the console's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.lending.quota import least_of, total_of
from autoscaler.lending.worth import balance_s
from autoscaler.model import ELSEWHERE, Observation, Policy, Queue, Reason, Seen, Step
from autoscaler.room import Room
from autoscaler.telling.forecast import Estimate
from autoscaler.telling.nodes import refusals
from autoscaler.telling.reasons import MEANINGS
from jobs.model import JobKey
from kube.objects import Node
from kube.shape import PodShape
from kube.times import since_1970

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
class RoomLink:
    """worker: what one asks for. nodes: all; admits: those that would take it; with_room: those that can now.

    fits: whole workers on all of them together; ever: if every job were gone. refusals: (why, nodes), most first.
    """

    worker: str
    nodes: int
    admits: int
    with_room: int
    fits: int
    ever: int
    refusals: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class GangLink:
    """In workers. beside: pods of other roles (there, wanted). tier: the widest switch that it may span."""

    least: int
    most: int
    has: int
    done: int
    lacks: int
    beside: tuple[tuple[int, int], ...]
    tier: int | None
    multiple: int


@dataclass(frozen=True, slots=True)
class SizeLink:
    """Of a running job. larger: its next size, None when that is its last. balance_s: what lending has won it.

    cooldown_s: how long its size will not grow yet. changed_s: when it was last changed, None for never.
    """

    size: int
    wanted: int
    larger: int | None
    elastic: int
    balance_s: float
    cooldown_s: float
    changed_s: float | None


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
    gpu: str,
    start: Estimate | None = None,
) -> Chain | None:
    """The chain of one job, None for one that was not seen. gpu: the resource that counts as a GPU."""
    found = next((each for each in zip(seen.jobs, steps, strict=True) if each[0].job.key == key), None)
    if found is None:
        return None
    job, step = found
    meaning = MEANINGS[step.reason]
    return Chain(
        str(key),
        _state(job, step),
        _since(job),
        now_s,
        _queue(job.job.queue, seen, policy, gpu),
        _quota(job, seen.queues.get(job.job.queue)),
        _room(job, seen, list(nodes), gpu),
        _gang(job),
        None if job.waits else _size(job, policy, now_s),
        step.reason,
        step.workers,
        step.was,
        step.detail,
        meaning.means,
        meaning.next,
        tuple((str(each.key), each.was, each.workers) for each in steps if each.for_ == key),
        "" if step.for_ is None else str(step.for_),
        start,
    )


def _state(seen: Seen, step: Step) -> str:
    return "waits" if seen.waits else "suspended" if step.reason is Reason.SUSPENDED else "runs"


def _since(seen: Seen) -> float | None:
    """When it was made, or when the oldest of its workers was."""
    if seen.waits or not seen.workers:
        return since_1970(seen.job.created)
    return min(worker.since_s for worker in seen.workers) or None


def _queue(name: str, seen: Observation, policy: Policy, gpu: str) -> QueueLink:
    mine = [each for each in seen.jobs if each.job.queue == name and each.placed]
    holders = sorted(
        (_holder(each, gpu) for each in mine), key=lambda each: (-each.least_gpus - each.elastic_gpus, each.job)
    )
    holders = [each for each in holders if each.least_gpus or each.elastic_gpus]
    queue = seen.queues.get(name)
    told = queue or Queue(name)
    used = told.used.get(gpu, 0) if queue else sum(each.least_gpus + each.elastic_gpus for each in holders)
    limit = told.limit.get(gpu)
    return QueueLink(
        name,
        queue is not None,
        told.open,
        limit,
        told.deserved.get(gpu),
        used,
        None if limit is None else max(0, limit - used),
        max(policy.headroom.get(gpu, 0), told.headroom.get(gpu, 0)),
        tuple(holders[:MOST_HOLDERS]),
        max(0, len(holders) - MOST_HOLDERS),
    )


def _holder(seen: Seen, gpu: str) -> Holder:
    each, least = _of(seen.job.shape, gpu), seen.job.bounds.least
    beside = sum(there * _of(shape, gpu) for there, (shape, _) in zip(seen.beside, seen.job.beside, strict=False))
    return Holder(str(seen.job.key), min(seen.placed, least) * each + beside, max(0, seen.placed - least) * each)


def _of(shape: PodShape, resource: str) -> int:
    return next((amount for name, amount in shape.requests if name == resource), 0)


def _quota(seen: Seen, queue: Queue | None) -> tuple[Lack, ...]:
    """What it asks of its queue: its min while it waits, its next step of growth else."""
    larger = seen.job.sizes.larger(seen.job.replicas)
    pods = least_of(seen) if seen.waits else [(seen.job.shape, larger - seen.job.replicas)]
    told = queue or Queue("")
    return tuple(
        Lack(what, needs, most := told.limit.get(what), None if most is None else max(0, most - told.used.get(what, 0)))
        for what, needs in total_of(pods)
        if queue is not None
    )


def _room(seen: Seen, world: Observation, nodes: list[Node], gpu: str) -> RoomLink:
    shape = seen.job.shape
    fits = world.room.fits(shape)
    why = refusals(nodes, shape)
    return RoomLink(
        worker_of(shape, gpu),
        len(nodes),
        len(nodes) - why.total(),
        int(np.count_nonzero(fits)),
        int(fits.sum()),
        _emptied(world).total(shape),
        tuple(sorted(why.items(), key=lambda each: (-each[1], each[0]))),
    )


def _emptied(world: Observation) -> Room:
    """The room if every job were gone."""
    rows: dict[PodShape, list[int]] = {}
    for each in world.jobs:
        there = [worker.row for worker in each.workers if worker.row is not None and worker.row != ELSEWHERE]
        rows.setdefault(each.job.shape, []).extend(there)
    return world.room.given(rows)


def worker_of(shape: PodShape, gpu: str) -> str:
    """What one worker asks for, GPUs first."""
    asked = sorted(shape.requests, key=lambda each: (each[0] != gpu, each[0]))
    return ", ".join(amount_of(what, amount) for what, amount in asked if what != "pods") or "nothing"


def amount_of(what: str, amount: int) -> str:
    """An amount of kube.shape as a person writes it: 500m CPUs, 64Gi memory."""
    if what == "cpu":
        return f"{amount // 1000} cpu" if amount % 1000 == 0 else f"{amount}m cpu"
    for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        if amount >= size and amount % size == 0:
            return f"{amount // size}{unit} {what}"
    return f"{amount} {what}"


def _gang(seen: Seen) -> GangLink:
    job = seen.job
    beside = zip(seen.beside or (0,) * len(job.beside), (wanted for _, wanted in job.beside), strict=False)
    lacks = max(0, job.bounds.least - seen.placed - seen.done)
    return GangLink(
        job.bounds.least, job.most, seen.placed, seen.done, lacks, tuple(beside), job.spread.tier, job.spread.multiple
    )


def _size(seen: Seen, policy: Policy, now_s: float) -> SizeLink:
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
    )
