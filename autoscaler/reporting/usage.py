"""Compute who uses which GPUs, who lends to whom, and why GPUs are idle: at one moment, and summed over time.

Everything here is arithmetic on an observation and its decision. The controller's metrics and the decision log show it.
Lent GPUs are split among the lenders in proportion to the unused share of each: a convention, because no scheduler
knows whose GPU a pod runs on. docs/accounting.md states all rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from turnout.autoscaler.model import (
    Gpus,
    JobState,
    Observation,
    Reason,
    Step,
    gpu_limit,
    largest_gpu_amount,
    remaining_gpus,
    total_gpus,
)
from turnout.autoscaler.scaling.free_room import lacking_pods
from turnout.jobs.model import JobKey, JobLifecycle, gain
from turnout.jobs.queues.model import QueueShare, bounds_several
from turnout.kube.pod_shape import PodShape

OTHER = "other"  # stands for a queue: for GPUs that are in no share, and for pairs beyond MAX_PAIRS
MAX_PAIRS = 500  # pairs of a lender and a borrower that are counted by name


class IdleReason(Enum):
    """Why GPUs are idle."""

    NOBODY_WAITS = "nobody_waits"  # no job wants them, or those that do are at the limit of their queue
    FRAGMENTED = "fragmented"  # a job wants no more than is idle, and does not fit on the nodes
    TOO_SMALL = "too_small"  # each job that waits needs more than is idle
    RESERVED = "reserved"  # promised to a job that starts
    HEADROOM = "headroom"  # kept free by the admin or the owner of a queue
    SETTLING = "settling"  # a job may grow into them once its cooldown or the time of idle room is over


Pair = tuple[str, str]  # the queue that lends and the queue that borrows


class UsedBy(NamedTuple):
    """A holder of GPUs: a job, or all pods of a queue that belong to no job."""

    queue: str  # that pays for the pods
    job: str = ""  # KIND/NAMESPACE/NAME; "" for pods without a job
    owner_label: str = ""  # the value of the label that --owner-label names; "" without one


@dataclass(frozen=True, slots=True)
class UsageRates:
    """The GPUs of one moment, by holder, by lender and by reason."""

    held_gpus: Mapping[UsedBy, float] = field(default_factory=dict)  # GPUs of pods with a node, >= 0
    elastic: Mapping[UsedBy, float] = field(default_factory=dict)  # GPUs of workers above the min, >= 0
    # By queue: the speed that elastic workers add, as a number of GPUs at the speed of the min, >= 0.
    gained: Mapping[str, float] = field(default_factory=dict)
    lent: Mapping[Pair, float] = field(default_factory=dict)  # GPUs, >= 0
    idle: Mapping[tuple[str, str], float] = field(default_factory=dict)  # GPUs by queue and IdleReason, >= 0


def usage_rates(
    observation: Observation,
    steps: Iterable[Step],
    free_gpus: int,
    gpus: Gpus,
    policy_headroom: Mapping[str, int] | None = None,
    owner_label_of: Callable[[JobKey], str] = lambda _: "",
) -> UsageRates:
    """Return who uses, lends and leaves idle which GPUs now.

    steps: one for each job. free_gpus: GPUs on ready nodes that no pod uses. gpus: the resources that count as a GPU.
    policy_headroom: `Policy.headroom`, by resource; None for none. owner_label_of: returns the value of a job's label
    that `--owner-label` names, "" without one.
    """
    held_gpus: dict[UsedBy, float] = {}
    elastic: dict[UsedBy, float] = {}
    gained: dict[str, float] = defaultdict(float)
    in_jobs: dict[str, float] = defaultdict(float)
    for each in observation.jobs:
        if not (amount := _held_gpus(each, gpus)):
            continue
        job, holder = each.job, UsedBy(each.job.queue, str(each.job.key), owner_label_of(each.job.key))
        held_gpus[holder] = amount
        in_jobs[job.queue] += amount
        if each.evictable_rows:
            worker_gpus, minimum = gpus_of(job.shape, gpus), job.bounds.minimum
            elastic[holder] = len(each.evictable_rows) * worker_gpus
            gained[job.queue] += (
                gain(job.curve, minimum, minimum, max(minimum, each.bound_workers)).share * minimum * worker_gpus
            )
    for name, queue in leaf_queues(observation.queues):
        if (rest := total_gpus(queue.used, gpus) - in_jobs[name]) > 0:
            held_gpus[UsedBy(name)] = rest
    lent_pairs = lending(elastic_gpus(observation.jobs, gpus), observation.queues, gpus)
    idle = idle_gpus(observation, steps, free_gpus, gpus, policy_headroom or {})
    return UsageRates(held_gpus, elastic, gained, lent_pairs, idle)


@lru_cache(maxsize=4096)
def gpus_of(shape: PodShape, gpus: Gpus) -> int:
    """Return the GPUs that one pod of a shape requests."""
    return shape.gpus(gpus)


def elastic_gpus(jobs: Iterable[JobState], gpus: Gpus) -> Mapping[str, int]:
    """Return queue -> GPUs of workers above the min that have a node. A queue without any is left out. jobs: all."""
    elastic: dict[str, int] = defaultdict(int)
    for each in jobs:
        if each.evictable_rows:
            elastic[each.job.queue] += len(each.evictable_rows) * gpus_of(each.job.shape, gpus)
    return elastic


def _held_gpus(state: JobState, gpus: Gpus) -> int:
    """Return the GPUs of a job's pods with a node, terminating workers included."""
    workers = sum(worker.row is not None for worker in state.workers) * gpus_of(state.job.shape, gpus)
    roles = zip(state.other_pods, state.job.other_roles, strict=False)
    return workers + sum(pods * gpus_of(shape, gpus) for pods, (shape, _) in roles)


def leaf_queues(queues: Mapping[str, QueueShare]) -> Iterator[tuple[str, QueueShare]]:
    """Yield the queues whose use is their own, by name: no parents, and no quotas that bound several queues."""
    parents = {queue.parent for queue in queues.values()}
    return ((name, queue) for name, queue in queues.items() if name not in parents and not bounds_several(name))


def unused_shares(queues: Mapping[str, QueueShare], gpus: Gpus) -> Mapping[str, int]:
    """Return queue -> GPUs of its share that it does not use. Queues that use all of it, or have no share, are left
    out.

    The share is the deserved share of the queue, else its limit. Only leaf queues count.
    """
    unused_of_queue = {}
    for name, queue in leaf_queues(queues):
        unused = remaining_gpus(queue.deserved, queue.used, gpus)
        if unused is None:
            unused = remaining_gpus(queue.limit, queue.used, gpus)
        if unused:
            unused_of_queue[name] = unused
    return unused_of_queue


def borrowed_gpus(elastic: Mapping[str, int], queues: Mapping[str, QueueShare], gpus: Gpus) -> Mapping[str, int]:
    """Return queue -> GPUs that it borrows: of its elastic workers, what is beyond its deserved share. Zeros are left
    out.

    elastic: queue -> GPUs of workers above the min. All of them are borrowed if no share is stated (VE-29).
    """
    borrowed_of_queue = {}
    for name, amount in elastic.items():
        queue = queues.get(name)
        deserved = None if queue is None else gpu_limit(queue.deserved, gpus)
        beyond_share = amount if queue is None or deserved is None else max(0, total_gpus(queue.used, gpus) - deserved)
        if borrowed := min(amount, beyond_share):
            borrowed_of_queue[name] = borrowed
    return borrowed_of_queue


def lending(elastic: Mapping[str, int], queues: Mapping[str, QueueShare], gpus: Gpus) -> Mapping[Pair, float]:
    """Return (lender, borrower) -> GPUs that are lent now. OTHER lends the GPUs that are in no share. Zeros are left
    out.

    elastic: queue -> GPUs of workers above the min. The GPUs of a borrower are split in proportion to the unused shares
    of the other queues, and no queue lends more than its unused share in all.
    """
    borrowed, unused = borrowed_gpus(elastic, queues, gpus), unused_shares(queues, gpus)
    all_borrowed = sum(borrowed.values())
    return {
        (source, borrower): part
        for borrower, amount in borrowed.items()
        for source, part in split(amount, _without(unused, borrower), all_borrowed).items()
    }


def split_return(
    borrower: str, returned_gpus: float, queues: Mapping[str, QueueShare], gpus: Gpus
) -> Mapping[str, float]:
    """Return lender -> its part of the GPUs that a queue gives back, in proportion to the unused shares of other queues
    now.

    No lender gets more than its unused share; OTHER gets the rest. borrower: the queue that gives back. returned_gpus:
    how many.
    """
    return split(returned_gpus, _without(unused_shares(queues, gpus), borrower))


def split(amount: float, weights: Mapping[str, int], all_amounts: float = 0.0) -> Mapping[str, float]:
    """Return the parts of an amount, in proportion to the weights. The parts sum up to the amount; zeros are left out.

    No queue gets more than its weight; OTHER gets the rest. all_amounts: the sum of all amounts that are split by the
    same weights, 0 for this amount only.
    """
    divisor = max(sum(weights.values()), all_amounts, amount)
    parts = {name: amount * weight / divisor for name, weight in weights.items() if amount and weight}
    rest = amount - sum(parts.values())
    return {**parts, OTHER: rest} if rest > 1e-9 * amount else parts


def _without(weights: Mapping[str, int], queue: str) -> Mapping[str, int]:
    """Return a copy of the weights without that of one queue."""
    return {name: weight for name, weight in weights.items() if name != queue}


# -- idle GPUs


def idle_gpus(
    observation: Observation, steps: Iterable[Step], free_gpus: int, gpus: Gpus, policy_headroom: Mapping[str, int]
) -> Mapping[tuple[str, str], float]:
    """Return (queue, reason) -> idle GPUs. Each reason is split among the queues in proportion to unused shares.

    The queue OTHER gets the part of each reason that is in no unused share. reason: the text of an IdleReason. steps:
    one for each job. free_gpus: GPUs on ready nodes that no pod uses. policy_headroom: `Policy.headroom`, by resource.
    """
    unused = unused_shares(observation.queues, gpus)
    amounts = idle_by_reason(observation, steps, free_gpus, gpus, policy_headroom)
    return {
        (queue, reason.value): part
        for reason, amount in amounts.items()
        for queue, part in split(amount, unused, free_gpus).items()
    }


def idle_by_reason(
    observation: Observation, steps: Iterable[Step], free_gpus: int, gpus: Gpus, policy_headroom: Mapping[str, int]
) -> Mapping[IdleReason, int]:
    """Return reason -> idle GPUs; the amounts sum up to `free_gpus`. Reasons without GPUs are left out.

    GPUs are assigned to the reasons in this order: reserved, headroom, settling. The rest goes to the one reason that
    `_Wants.reason_of_rest` returns. steps: one for each job. policy_headroom: `Policy.headroom`, by resource. A
    negative `free_gpus` counts as 0.
    """
    wants = _Wants.read(observation, steps, gpus)
    headroom_gpus = largest_gpu_amount(policy_headroom, gpus) + sum(
        largest_gpu_amount(queue.headroom, gpus) for queue in observation.queues.values()
    )
    ordered = (
        (IdleReason.RESERVED, wants.reserved),
        (IdleReason.HEADROOM, headroom_gpus if wants.headroom_kept else 0),
        (IdleReason.SETTLING, wants.settling),
    )
    amounts, rest = {}, max(0, free_gpus)
    for reason, amount in ordered:
        if part := min(rest, amount):
            amounts[reason] = part
            rest -= part
    if rest:
        amounts[wants.reason_of_rest(rest)] = rest
    return amounts


@dataclass(slots=True)
class _Wants:
    """The GPUs that jobs want, by what keeps the jobs from them."""

    reserved: int = 0  # for waiting jobs that start, without what workers that still leave will free
    awaited: int = 0  # for waiting jobs for which workers leave
    settling: int = 0  # for jobs that may grow after a time
    headroom_kept: bool = False  # some job would grow if there were no headroom
    unmet: list[int] = field(default_factory=list)  # GPUs of each job without room on the nodes whose queue allows it

    @classmethod
    def read(cls, observation: Observation, steps: Iterable[Step], gpus: Gpus) -> _Wants:
        """Return the GPUs that the jobs of a decision want. steps: one for each job; a job without a step wants
        none.
        """
        wants, leaving = cls(), 0
        step_of_job = {step.key: step for step in steps}
        for each in observation.jobs:
            step, worker_gpus = step_of_job.get(each.job.key), gpus_of(each.job.shape, gpus)
            leaving += len(each.promised) * worker_gpus
            if step is None:
                continue
            if step.target < step.current:
                leaving += (step.current - step.target) * worker_gpus
            wants._add(each, step.reason, observation.queues.get(each.job.queue), gpus)
        wants.reserved += max(0, wants.awaited - leaving) + largest_gpu_amount(observation.reserved, gpus)
        return wants

    def _add(self, each: JobState, reason: Reason, queue: QueueShare | None, gpus: Gpus) -> None:
        """Add what one job wants by the reason of its step. each: the state of the job. queue: of the job, None if
        unknown. Most reasons add nothing.
        """
        worker_gpus = gpus_of(each.job.shape, gpus)
        match reason:
            case Reason.SCHEDULERS_TURN:
                self.reserved += missing_gpus(each, gpus)
            case Reason.WAITS_FOR_ROOM:
                self.awaited += missing_gpus(each, gpus)
            case Reason.ROOM_SETTLES | Reason.COOLDOWN:
                self.settling += max(0, each.job.maximum - each.job.replicas) * worker_gpus
            case Reason.HEADROOM_KEPT:
                self.headroom_kept = True
            case Reason.NEEDS_MORE:
                self._add_unmet(missing_gpus(each, gpus), queue, gpus)
            case Reason.NO_FREE_ROOM:
                self._add_unmet((each.next_size - each.job.replicas) * worker_gpus, queue, gpus)

    def _add_unmet(self, amount: int, queue: QueueShare | None, gpus: Gpus) -> None:
        """Add the GPUs of a job without room, unless the limit of its queue is what stops it, or it needs none.

        amount: GPUs that it needs. queue: of the job, None if unknown.
        """
        free_of_limit = None if queue is None else remaining_gpus(queue.limit, queue.used, gpus)
        if amount and (free_of_limit is None or amount <= free_of_limit):
            self.unmet.append(amount)

    def reason_of_rest(self, rest: int) -> IdleReason:
        """Return why nobody uses the GPUs that are neither reserved nor headroom nor settling. rest: their number,
        > 0.
        """
        if not self.unmet:
            return IdleReason.NOBODY_WAITS
        return IdleReason.FRAGMENTED if min(self.unmet) <= rest else IdleReason.TOO_SMALL


def missing_gpus(state: JobState, gpus: Gpus) -> int:
    """Return the GPUs of the pods that a job lacks to its min, other roles included."""
    return sum(pods * gpus_of(shape, gpus) for shape, pods in lacking_pods(state))


# -- over time


@dataclass(slots=True)
class UsageSums:
    """GPU-seconds since a moment, and GPUs that were given back."""

    seconds: float = 0.0  # the time that was measured
    held_gpu_s: dict[UsedBy, float] = field(default_factory=lambda: defaultdict(float))  # GPU-seconds
    elastic: dict[UsedBy, float] = field(default_factory=lambda: defaultdict(float))  # GPU-seconds
    gained: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # GPU-seconds by queue
    cost: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # GPU-seconds by queue, of restarts
    lent: dict[Pair, float] = field(default_factory=lambda: defaultdict(float))  # GPU-seconds
    returned: dict[Pair, float] = field(default_factory=lambda: defaultdict(float))  # GPUs
    idle: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))  # GPU-seconds

    def add(self, rates: UsageRates, seconds: float) -> None:
        """Add the rates of a span, each as GPU-seconds. seconds: length of the span."""
        self.seconds += seconds
        parts: tuple[tuple[dict[object, float], Mapping[object, float]], ...] = (
            (self.held_gpu_s, rates.held_gpus),  # type: ignore[assignment]
            (self.elastic, rates.elastic),
            (self.gained, rates.gained),
            (self.lent, rates.lent),
            (self.idle, rates.idle),
        )
        for sums, now in parts:
            for key, amount in now.items():
                sums[key] += amount * seconds


def bound_pairs(amounts: Mapping[Pair, float], known: set[Pair], max_pairs: int = MAX_PAIRS) -> Mapping[Pair, float]:
    """Return the amounts of the pairs that are counted by name, and the sum of all others as (OTHER, OTHER).

    known: the pairs that are counted by name so far. It is changed: new pairs are added, in order of name, until it has
    `max_pairs`.
    """
    amounts_by_name: dict[Pair, float] = defaultdict(float)
    for pair in sorted(amounts):
        if pair in known or len(known) < max_pairs:
            known.add(pair)
            amounts_by_name[pair] += amounts[pair]
        else:
            amounts_by_name[OTHER, OTHER] += amounts[pair]
    return amounts_by_name


class Reclaims:
    """The waiting jobs for which workers leave, and since when, to measure how long that takes."""

    def __init__(self) -> None:
        self._since: dict[JobKey, float] = {}  # seconds of a clock that never jumps

    def update(self, jobs: Sequence[JobState], steps: Iterable[Step], now_s: float) -> list[tuple[str, float]]:
        """Store for which jobs workers leave. Return (queue, seconds) of each job that has got its min since the last
        call.

        The seconds count from the first decision that workers leave for it. A job that ends, is suspended or is deleted
        before has no entry. steps: one for each job. now_s: by the monotonic clock.
        """
        for step in steps:
            if step.reason is Reason.WAITS_FOR_ROOM:
                self._since.setdefault(step.key, now_s)
        reclaimed = []
        if self._since:
            waiting = {each.job.key for each in jobs if each.is_waiting}
            for each in jobs:
                since_s = self._since.get(each.job.key)
                if since_s is not None and each.job.key not in waiting and each.job.lifecycle is JobLifecycle.LIVE:
                    reclaimed.append((each.job.queue, now_s - since_s))
            self._since = {key: since_s for key, since_s in self._since.items() if key in waiting}
        return reclaimed
