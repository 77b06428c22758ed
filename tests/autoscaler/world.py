"""A small cluster to decide on: nodes of GPUs, jobs with workers on them, and what a plan makes of it."""

from dataclasses import replace

import numpy as np

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import JobState, Observation, Policy, Worker
from turnout.jobs.model import Bounds, Job, JobKey, Order, ResizeBudget, Sizes
from turnout.jobs.queues.model import QueueShare
from turnout.kube.pod_shape import PodShape

GPU = "nvidia.com/gpu"
NOW_S = 1_000_000.0
POLICY = Policy()


def shape(gpus):
    return PodShape(requests=((GPU, gpus), ("pods", 1)))


def job(name, minimum=1, maximum=4, replicas=None, gpus=1, unit=1, priority=0, resized_s=0.0, gained_s=0.0, **more):
    fields = {"queue": "q", "created": f"2026-01-01T00:00:{len(name):02}Z", **more}
    fields = {
        "sizes": Sizes(unit),
        "order": Order(priority=priority),
        "resize_budget": ResizeBudget(gained_s, resized_s),
        **fields,
    }
    return Job(
        JobKey("Job", "ns", name),
        name,
        "1",
        replicas=replicas or minimum,
        bounds=Bounds(minimum, maximum),
        shape=shape(gpus),
        **fields,
    )


def state_of(job, rows=(), **more):
    """The job with a worker on each of these nodes, by index; None for one without a node."""
    workers = tuple(
        Worker(index, row, since_s=NOW_S - 5, name=f"{job.key.name}-{index}") for index, row in enumerate(rows)
    )
    return JobState(job, workers, **more)


def world(nodes, *jobs, queues=None, leaves=None, **more):
    """An observation: nodes are how many GPUs each offers; what workers take is taken off."""
    shapes = {each.job.shape for each in jobs} | {shape(1)}
    free = np.array([[gpus, 110] for gpus in nodes], dtype=np.int64).reshape(len(nodes), 2)
    takes = {s: np.array([dict(s.requests).get(GPU, 0), 1], dtype=np.int64) for s in shapes}
    for each in jobs:
        for worker in each.workers:
            if worker.row is not None:
                free[worker.row] -= takes[each.job.shape]
    admits = {s: np.ones(len(nodes), dtype=bool) for s in shapes}
    if queues is None:
        queues = {"q": {}}
    queue_states = {}
    for name, queue in queues.items():
        mine = [each for each in jobs if each.job.queue == name]
        used = sum(sum(w.row is not None for w in each.workers) * dict(each.job.shape.requests)[GPU] for each in mine)
        limit, deserved = ({GPU: queue[key]} if key in queue else {} for key in ("limit", "deserved"))
        queue_states[name] = QueueShare(limit, deserved, {GPU: used}, open=queue.get("open", True))
    jobs = sorted(jobs, key=lambda each: each.job.key)
    switches = () if leaves is None else (np.array(leaves, dtype=np.int32),)
    return Observation(tuple(jobs), queue_states, Capacity((GPU, "pods"), free, takes, admits, switches), **more)


def obeyed(before, steps):
    """The cluster after a plan: workers above a new size are gone, those that wait get nodes while there are any.

    A queue's limit is kept there, too.
    """
    sizes = {step.key: step.target for step in steps}
    states = [_resized(each, sizes[each.job.key]) for each in before.jobs]
    nodes = _offers(before)
    queues = {
        name: {"limit": q.limit[GPU]} if GPU in q.limit else {} | ({"deserved": q.deserved[GPU]} if q.deserved else {})
        for name, q in before.queues.items()
    }
    limits = {name: q.limit[GPU] for name, q in before.queues.items() if GPU in q.limit}
    order = sorted(range(len(states)), key=lambda at: (not states[at].is_waiting, states[at].queue_order))
    for at in order:
        for size in (states[at].job.bounds.minimum, states[at].job.replicas):
            before = states[at]
            while states[at].bound_workers < size:
                now = world(nodes, *states, queues=queues)
                fits = np.flatnonzero(now.room.fits(states[at].job.shape))
                if not len(fits) or not _within_limit(limits, states[at], states):
                    break
                index = len(states[at].workers)
                states[at] = replace(
                    states[at], workers=(*states[at].workers, Worker(index, int(fits[0]), since_s=NOW_S))
                )
            if states[at].is_waiting:
                states[at] = before  # a gang starts whole, or holds nothing
    return world(nodes, *states, queues=queues)


def _within_limit(limits, each, jobs):
    gpus = {other.job.key: dict(other.job.shape.requests)[GPU] for other in jobs}
    gpus_total = sum(other.bound_workers * gpus[other.job.key] for other in jobs if other.job.queue == each.job.queue)
    return gpus_total + gpus[each.job.key] <= limits.get(each.job.queue, gpus_total + gpus[each.job.key])


def _resized(each, size):
    bank = replace(each.job.resize_budget, resized_s=NOW_S) if size != each.job.replicas else each.job.resize_budget
    workers = tuple(w for w in each.workers if w.index < size)
    return replace(each, job=replace(each.job, replicas=size, resize_budget=bank), workers=workers)


def _offers(before):
    takes = np.zeros(len(before.room.free), dtype=np.int64)
    for each in before.jobs:
        for worker in each.workers:
            if worker.row is not None:
                takes[worker.row] += dict(each.job.shape.requests)[GPU]
    return [int(gpus) for gpus in before.room.free[:, 0] + takes]
