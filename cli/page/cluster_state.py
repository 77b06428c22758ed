"""The state of the cluster that the page shows, as plain values, and the part that one viewer may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from turnout.autoscaler.model import Gpus, JobState, Observation, Reason, Step
from turnout.autoscaler.reporting.why import UnmanagedGang
from turnout.cli.page.messages import DecisionItem, JobItem, QueueItem, Start
from turnout.cli.verb_support.autoscaler_view import GpuPod
from turnout.cli.views.queues import QueueRow
from turnout.cli.views.top import closed
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.objects import Node
from turnout.kube.pod_shape import amount
from turnout.kube.reasons import AUTOSCALER
from turnout.kube.times import unix_s
from turnout.topology.fabric import EMPTY, Fabric
from turnout.topology.switch_paths import natural_key

# Upper bounds of the shown GPUs of a pod, a node and a sum. Tenants write these numbers: larger ones are cut, so that
# JSON and the picture stay small.
MAX_POD_GPUS, MAX_NODE_GPUS, MAX_SUM_GPUS = 1_000_000, 1_024, 10**12


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod that asks for GPUs and has a node."""

    name: str  # "" if the viewer may not see its namespace, as are the next two
    job: str  # KIND/NAMESPACE/NAME
    queue: str
    node: str
    gpus: int  # at most MAX_POD_GPUS
    elastic: bool  # a worker above its job's min
    rank: int | None  # the worker's index, None for another role and for a pod that is no job's


@dataclass(frozen=True, slots=True)
class HostState:
    """One host of the map, or a node with GPUs that the map does not name."""

    node: str  # the host's name in the map if it has no node
    path: tuple[str, ...]  # its switches from the root down; empty for a node that the map does not name
    gpus: int
    state: str  # one of messages.STATES
    evidence: str  # what its object says of the state, "" for a ready node
    host: int | None = None  # its id in the fabric; None if the map does not name it


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything that the views show, at one moment."""

    observed_at_s: float = 0.0  # since 1970
    version: int = 0  # rises with each observation
    map_at_s: float = 0.0  # the observation since which the map and its hosts have been as they are
    map_version: int = 0  # and its version
    hosts: tuple[HostState, ...] = ()  # in the order of the map, nodes that it does not name last
    pods: tuple[PlacedPod, ...] = ()
    jobs: tuple[JobItem, ...] = ()  # those that wait first
    queues: tuple[QueueItem, ...] = ()  # by name
    queue_namespaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the jobs in each queue
    fabric: Fabric = EMPTY
    map_fault: str = ""  # why there is no map, "" if there is one
    decisions: tuple[DecisionItem, ...] = ()  # the newest first


@dataclass(frozen=True, slots=True)
class Rights:
    """What a viewer may see. Without `nodes`, no hosts and no fabric.

    Of namespaces outside `namespaces`, no jobs and no decisions, and pods without names; of a queue that has jobs only
    there, its name.
    """

    all_namespaces: bool = False  # the viewer may list pods everywhere
    namespaces: frozenset[str] = frozenset()  # where the viewer may list pods
    nodes: bool = False  # the viewer may list nodes
    unknown_namespaces: int = field(default=0, compare=False)  # those with jobs for which there is no answer yet

    def sees(self, namespace: str) -> bool:
        """Return True if the viewer may see the jobs of this namespace."""
        return self.all_namespaces or namespace in self.namespaces


EVERYTHING = Rights(True, frozenset(), True)


def namespace_of(job: str) -> str:
    """Return the namespace of KIND/NAMESPACE/NAME; "" for another text. The kind may have a group, but no slash."""
    return job.split("/")[1] if job.count("/") >= 2 else ""


def visible_state(state: ClusterState, rights: Rights) -> ClusterState:
    """Return the state without what the viewer may not see; `state` itself if the viewer may see all of it.

    Without the right to list nodes there are no hosts and no fabric. Pods in hidden namespaces keep node and GPUs, and
    lose name, job, queue and rank. Jobs and decisions of hidden namespaces are left out, and queues that have only such
    jobs keep nothing but their name.
    """
    if rights.all_namespaces and rights.nodes:
        return state
    sees = {namespace: rights.sees(namespace) for namespace in {namespace_of(pod.job) for pod in state.pods}}
    return replace(
        state,
        hosts=state.hosts if rights.nodes else (),
        fabric=state.fabric if rights.nodes else EMPTY,
        pods=tuple(
            pod if sees[namespace_of(pod.job)] else replace(pod, name="", job="", queue="", rank=None)
            for pod in state.pods
        ),
        jobs=tuple(job for job in state.jobs if rights.sees(job.namespace)),
        queues=tuple(
            queue
            if rights.all_namespaces or any(map(rights.sees, state.queue_namespaces.get(queue.queue, ())))
            else QueueItem(queue.queue, hidden=True)
            for queue in state.queues
        ),
        decisions=tuple(each for each in state.decisions if rights.sees(each.namespace)),
    )


def map_shape(state: ClusterState) -> object:
    """Return what the answer with the map is made of. It is equal for two states with the same map and nodes."""
    return state.map_fault, [(each.node, each.path, each.gpus) for each in state.hosts]


def hosts_of(nodes: Iterable[Node], fabric: Fabric, gpus: Gpus) -> tuple[HostState, ...]:
    """Return the hosts of the map in its order, then by name the nodes with GPUs that the map does not contain.

    A host without a node is included as "missing", and a host whose node has no GPUs, too. gpus: names of GPU
    resources.
    """
    mapped: dict[int, HostState] = {}
    unmapped: list[HostState] = []
    for node in nodes:
        host = _host_id(node, fabric)
        one = _host(node, gpus, () if host is None else fabric.paths[fabric.hosts[host]], host)
        if host is not None:
            mapped[host] = one
        elif one.gpus:
            unmapped.append(one)
    for host in range(fabric.mapped_count):
        if host not in mapped:
            name = fabric.hosts[host]
            mapped[host] = HostState(
                name, fabric.paths[name], 0, "missing", "The map names it, and no node has this name.", host
            )
    in_map_order = [mapped[host] for host in sorted(mapped)]
    return (*in_map_order, *sorted(unmapped, key=lambda each: natural_key(each.node)))


def _host_id(node: Node, fabric: Fabric) -> int | None:
    """Return the ID of the node's host in the map, found by its name or an address; None if it is not on the map."""
    for key in (node.metadata.name, *(each.address for each in node.status.addresses or ())):
        host = fabric.id_of_host.get(key)
        if host is not None and host < fabric.mapped_count:
            return host
    return None


def _host(node: Node, gpus: Gpus, path: tuple[str, ...], host: int | None) -> HostState:
    """Return a node as a host. path: its switches, from the root down.

    host: its ID in the map, None if it is not there.
    """
    offered = node.status.allocatable or {}
    count = min(sum(amount(each, offered[each]) for each in gpus if each in offered), MAX_NODE_GPUS)
    state, evidence = closed(node) or "ready", ""
    if state == "not ready":
        ready = next((each for each in node.status.conditions or () if each.type == "Ready"), None)
        evidence = f"Its condition Ready is {ready.status}." if ready is not None else ""
    elif state == "faulty":
        taint = next(each for each in node.spec.taints or () if each.key == labels.FAULTY)
        evidence = f"It has the taint {taint.key}{f'={taint.value}' if taint.value else ''}."
    elif state == "cordoned":
        evidence = "An admin has closed it for new pods."
    return HostState(node.metadata.name, path, count, state, evidence, host)


def placed_pods(pods: Iterable[GpuPod], observation: Observation) -> tuple[PlacedPod, ...]:
    """Return the pods that have a node, with job, queue and rank, sorted by job and rank.

    The `job` of a pod is KIND/NAMESPACE/NAME of its owner, also if that is no known job. A pod that is no worker of an
    observed job has no rank, and is not elastic.
    """
    ranks: dict[tuple[str, str], tuple[int, bool]] = {}
    for state in observation.jobs:
        for place, worker in enumerate(state.living):
            ranks[state.job.key.namespace, worker.name] = worker.index, place >= state.job.bounds.minimum
    found = []
    for pod in pods:
        if pod.node:
            rank, elastic = ranks.get((pod.owner.namespace, pod.name), (None, False))
            gpus = min(pod.gpus, MAX_POD_GPUS)
            found.append(PlacedPod(pod.name, str(pod.owner), pod.queue, pod.node, gpus, elastic, rank))
    return tuple(sorted(found, key=lambda each: (each.job, each.rank is None, each.rank or 0, each.name)))


Starts = Mapping[JobKey, tuple[float, float, float]]  # (earliest, likely, latest) start, in seconds since 1970


def job_items(
    observation: Observation, steps: Sequence[Step], starts: Starts, pods: Sequence[PlacedPod], gpus: Gpus
) -> tuple[JobItem, ...]:
    """Return the jobs: first the waiting jobs, in the order in which they start; then the running ones, by name.

    steps: the autoscaler's decision for each job of the observation, in the same order. starts: the estimated start of
    waiting jobs; a job without an estimate is missing. pods: those with a node. gpus: names of GPU resources.
    """
    held_gpus, elastic_gpus = Counter[str](), Counter[str]()
    for pod in pods:
        held_gpus[pod.job] += pod.gpus
        elastic_gpus[pod.job] += pod.gpus * pod.elastic
    waiting, running = list[JobItem](), list[JobItem]()
    before_jobs, before_gpus = Counter[str](), Counter[str]()
    for state, step in zip(observation.jobs, steps, strict=True):
        name, queue = str(state.job.key), state.job.queue
        item = _job_item(state, step, held_gpus[name], elastic_gpus[name], starts.get(state.job.key), gpus)
        if not state.is_waiting:
            running.append(item)
            continue
        waiting.append(_before(item, before_jobs[queue], before_gpus[queue]))
        before_jobs[queue] += 1
        lacking = max(0, state.job.bounds.minimum - state.bound_workers - state.finished)
        before_gpus[queue] = min(before_gpus[queue] + lacking * item.gpus_per_worker, MAX_SUM_GPUS)
    return (*waiting, *sorted(running, key=lambda each: each.job))


def _before(item: JobItem, jobs: int, gpus: int) -> JobItem:
    """Return a copy of the item with the numbers of jobs and GPUs that are ahead of it in its queue."""
    return msgspec.structs.replace(item, before_jobs=jobs, before_gpus=gpus)


def _job_item(
    state: JobState, step: Step, held_gpus: int, elastic_gpus: int, start: tuple[float, float, float] | None, gpus: Gpus
) -> JobItem:
    """Return one job as an item, except for its place in its queue.

    step: of the autoscaler for this job. held_gpus: of its pods with a node. elastic_gpus: of them, above its min.
    start: its estimated start as in Starts; None if unknown. Only waiting jobs show it.
    """
    job, meaning = state.job, AUTOSCALER[step.reason.value]
    since_s = unix_s(job.created) if state.is_waiting and job.created else min(_worker_starts(state), default=None)
    return JobItem(
        job=str(job.key),
        kind=job.key.kind,
        namespace=job.key.namespace,
        name=job.key.name,
        queue=job.queue,
        state="waiting" if state.is_waiting else "suspended" if step.reason is Reason.SUSPENDED else "running",
        workers=state.bound_workers,
        min_workers=job.bounds.minimum,
        max_workers=job.bounds.maximum,
        gpus_per_worker=min(job.shape.gpus(gpus), MAX_POD_GPUS),
        gpus=held_gpus,
        elastic_gpus=elastic_gpus,
        since_at_s=since_s,
        reason=step.reason.value,
        evidence=f"{meaning.means}{f' ({step.detail})' if step.detail else ''}",
        next_step=meaning.next,
        start=None if start is None or not state.is_waiting else Start(*start),
    )


def gang_items(
    observation: Observation, gangs: Mapping[JobKey, UnmanagedGang], pods: Sequence[PlacedPod]
) -> tuple[JobItem, ...]:
    """Return the running gangs and lone pods that no job of a known kind owns, sorted by kind, namespace and name.

    A gang without a pod in `pods` is left out.
    """
    decided_keys = {state.job.key for state in observation.jobs}
    pods_by_job: dict[str, list[PlacedPod]] = {}
    for pod in pods:
        pods_by_job.setdefault(pod.job, []).append(pod)
    items = []
    for key, gang in sorted(gangs.items()):
        own_pods = pods_by_job.get(str(key), [])
        if key in decided_keys or not own_pods:
            continue
        items.append(
            JobItem(
                job=str(key),
                kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                queue=gang.queue,
                state="running",
                workers=len(own_pods),
                min_workers=gang.existing,
                max_workers=max(gang.existing, len(own_pods)),
                gpus_per_worker=own_pods[0].gpus,
                gpus=sum(pod.gpus for pod in own_pods),
                elastic_gpus=0,
                since_at_s=None,
                reason=Reason.RIGID.value,
                evidence="These pods are of no kind of job that is resized.",
                next_step="Nothing is to be done.",
            )
        )
    return tuple(items)


def _worker_starts(state: JobState) -> list[float]:
    return [worker.since_s for worker in state.living if worker.row is not None and worker.since_s]


def queue_items(
    rows: Sequence[QueueRow], pods: Iterable[PlacedPod]
) -> tuple[tuple[QueueItem, ...], dict[str, tuple[str, ...]]]:
    """Return the queues in the order of `rows`, and the namespaces of each queue's jobs.

    A queue's unused quota is divided into lent (used by borrowing queues, an estimate) and idle (used by nobody). pods:
    give the elastic GPUs of each queue.
    """
    elastic = Counter[str]()
    for pod in pods:
        elastic[pod.queue] += pod.gpus * pod.elastic
    rows = [_bounded_row(row) for row in rows]
    borrowed = sum(row.borrowed_gpus for row in rows)
    unused = {row.queue: max(0, (row.share_gpus or 0) - row.used_gpus) for row in rows}
    lent = lent_parts(unused, borrowed)
    items = [
        QueueItem(
            row.queue,
            open=row.open,
            quota_gpus=row.share_gpus,
            limit_gpus=row.limit_gpus,
            used_gpus=row.used_gpus,
            min_gpus=row.used_gpus - elastic[row.queue],
            elastic_gpus=elastic[row.queue],
            lent_gpus=lent[row.queue],
            borrowed_gpus=row.borrowed_gpus,
            idle_gpus=unused[row.queue] - lent[row.queue],
            running_jobs=row.running,
            waiting_jobs=row.waiting,
            waiting_gpus=row.wanted_gpus or 0,
        )
        for row in rows
    ]
    return tuple(items), {row.queue: row.namespaces for row in rows}


def _bounded_row(row: QueueRow) -> QueueRow:
    """Return the row with no amount above MAX_SUM_GPUS."""
    return replace(
        row,
        share_gpus=None if row.share_gpus is None else min(row.share_gpus, MAX_SUM_GPUS),
        limit_gpus=None if row.limit_gpus is None else min(row.limit_gpus, MAX_SUM_GPUS),
        used_gpus=min(row.used_gpus, MAX_SUM_GPUS),
        borrowed_gpus=min(row.borrowed_gpus, MAX_SUM_GPUS),
        wanted_gpus=min(row.wanted_gpus or 0, MAX_SUM_GPUS),
    )


def lent_parts(unused: Mapping[str, int], borrowed: int) -> dict[str, int]:
    """Divide the borrowed GPUs among the queues with unused quota, in proportion to it; return the part of each queue.

    unused: queue -> GPUs of its quota that it does not use. No GPU is marked as lent: the division is a convention. The
    parts are whole numbers, and their sum is the smaller of what is borrowed and what is unused. The largest remainders
    are rounded up, by name where they are equal.
    """
    room = sum(unused.values())
    lent = min(borrowed, room)
    if not lent:
        return dict.fromkeys(unused, 0)
    parts = {queue: part * lent // room for queue, part in unused.items()}
    left = lent - sum(parts.values())
    for queue in sorted(unused, key=lambda each: (-(unused[each] * lent % room), each))[:left]:
        parts[queue] += 1
    return parts
