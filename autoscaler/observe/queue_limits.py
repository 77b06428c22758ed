"""Works out what each queue may use now, in every dialect, as a decision is charged against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from turnout.autoscaler.model import JobState
from turnout.jobs.queues import koordinator
from turnout.jobs.queues.model import Amounts, Demand, Dialect, Queue, QueueSpec
from turnout.jobs.queues.registry import shares

_Ask = tuple[tuple[tuple[str, int], ...], bool]  # a job's min by resource, and whether it waits for that
STOPPED = "stopped/"  # what a LocalQueue that takes nothing is called by


class Shares:
    """The queues as their owners describe them, by object, and the mins that jobs request of them."""

    def __init__(self) -> None:
        self._specs: dict[str, QueueSpec] = {}
        self._mins: dict[str, Counter[_Ask]] = {}
        self._named: dict[str, dict[str, QueueSpec]] = {}  # by name, by object
        self._stopped: dict[str, str] = {}  # a LocalQueue that takes nothing -> its ClusterQueue
        self.of_namespace: Mapping[str, str] = {}  # of pods that name none, but for the namespace's own

    def put(self, queue: QueueSpec, at: str) -> bool:
        """Store a queue. True if names or namespaces may lead to another queue now. at: its object."""
        before = self._specs.get(at)
        renamed = before is not None and before.name != queue.name and self.drop(at)
        self._specs[at] = queue
        self._named.setdefault(queue.name, {})[at] = queue
        granted = before is None or before.grants != queue.grants
        return (queue.dialect is Dialect.KOORDINATOR and self._update_namespaces()) or granted or renamed

    def drop(self, at: str) -> bool:
        """Drop a queue whose object was deleted. True if names or namespaces may lead to another queue now."""
        queue = self._specs.pop(at, None)
        if queue is None:
            return False
        del self._named[queue.name][at]
        if not self._named[queue.name]:
            del self._named[queue.name]
        if queue.dialect is Dialect.KOORDINATOR:
            self._update_namespaces()
        return True

    def exists(self, queue: str) -> bool:
        """True if an object bears this name."""
        return queue in self._named

    def is_cluster_queue(self, queue: str) -> bool:
        """True if LocalQueues may lead there: to a ClusterQueue, or to the queue that stands for a stopped LocalQueue.

        The admin of a namespace writes its LocalQueues, so they may name anything.
        """
        objects = self._named.get(self._stopped.get(queue, queue))
        return objects is not None and all(each.dialect is Dialect.KUEUE for each in objects.values())

    def grants(self, queue: str, namespace: str) -> bool:
        """True if pods and jobs of a namespace may name a queue: each object of its name grants it to them."""
        objects = self._named.get(queue)
        return objects is not None and all(each.grants is None or namespace in each.grants for each in objects.values())

    def stop(self, local_queue: str, cluster_queue: str) -> str:
        """Close a LocalQueue: return the name of a closed queue of its own, below its ClusterQueue."""
        name = f"{STOPPED}{local_queue}"
        self._stopped[name] = cluster_queue
        return name

    def resume(self, local_queue: str, cluster_queue: str) -> str:
        """Open a LocalQueue again, or forget a deleted one. Return its ClusterQueue, "" for none."""
        self._stopped.pop(f"{STOPPED}{local_queue}", None)
        return cluster_queue

    def count_min(self, state: JobState, times: int) -> None:
        """Count a job's min in the demand of its queue. times: -1 to take it back."""
        job, mins = state.job, self._mins.setdefault(state.job.queue, Counter())
        least = Counter[str]()
        for shape, pods in ((job.shape, job.bounds.least), *job.other_roles):
            for what, amount in shape.requests:
                least[what] += amount * pods
        ask = tuple(sorted(least.items())), state.is_waiting
        mins[ask] += times
        if not mins[ask]:
            del mins[ask]

    def _demand(self, total: Amounts) -> dict[str, Counter[str]]:
        """Sum up the mins of each queue's jobs. In Volcano a job that its queue can never hold requests nothing.

        Volcano admits such a job to no queue, so its pods are not created. Source: docs/facts/schedulers.md 3.1,
        Enqueue
        """
        most = {spec.name: spec.capability for spec in self._specs.values() if spec.dialect is Dialect.VOLCANO}
        found: dict[str, Counter[str]] = {}
        for queue, mins in self._mins.items():
            sums = found.setdefault(queue, Counter())
            limit = most.get(queue)
            for (least, is_waiting), times in mins.items():
                if limit is not None and is_waiting and not _is_within(least, limit, total):
                    continue
                for what, amount in least:
                    sums[what] += amount * times
        return found

    def queues(self, used: Mapping[str, Amounts], bare: Mapping[str, Amounts], total: Amounts) -> dict[str, Queue]:
        """Return every queue. used: by queue, of pods on nodes. bare: of pods without a job. total: of all nodes."""
        used = {**used}
        for name, above in self._stopped.items():
            used[above] = Counter(used.get(above, {})) + Counter(used.get(name, {}))
        demand = self._demand(total)
        for name, amounts in bare.items():
            demand.setdefault(name, Counter()).update(amounts)
        demand = {name: left for name, amounts in demand.items() if (left := +amounts)}
        queues = shares(self._specs.values(), Demand(used, demand, total)) if self._specs else {}
        for name, above in self._stopped.items():
            queues[name] = Queue(used=dict(used.get(name, {})), open=False, parent=above)
        return queues

    def _update_namespaces(self) -> bool:
        before, self.of_namespace = self.of_namespace, koordinator.by_namespace(self._specs.values())
        return before != self.of_namespace


def _is_within(least: Iterable[tuple[str, int]], limit: Amounts, total: Amounts) -> bool:
    return all(amount <= limit.get(what, amount) and amount <= total.get(what, amount) for what, amount in least)


def as_queues_allow(jobs: Iterable[JobState], queues: Mapping[str, Queue]) -> Iterable[JobState]:
    """Return the jobs; those of queues in which no resize is safe get the queue's reason as `refused`."""
    unsafe = {name: queue for name, queue in queues.items() if queue.refused or queue.eviction_risk}
    return _refused(jobs, unsafe) if unsafe else jobs


def _refused(jobs: Iterable[JobState], unsafe: Mapping[str, Queue]) -> Iterator[JobState]:
    for each in jobs:
        queue = unsafe.get(each.job.queue)
        why = "" if queue is None else queue.refused or ("" if each.job.kueue_boosted else queue.eviction_risk)
        yield replace(each, job=replace(each.job, refused=why)) if why and not each.job.refused else each
