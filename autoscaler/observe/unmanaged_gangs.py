"""Gangs of unknown kinds that wait: pods without a node, and PodGroups without pods.

They are never resized. While they wait for GPUs, room is made for them as for any job. Source:
docs/facts/autoscaling.md 6 (act on PodGroups that are Pending or Inqueue); XD-03.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnout.autoscaler.model import JobState, Worker
from turnout.autoscaler.observe.job_pods import SCHEDULERS, unbindable
from turnout.jobs.annotations import spread
from turnout.jobs.gang import POD_GROUP_VERSIONS, Dialect, GangKey, membership
from turnout.jobs.kinds.scrape_target import scrape_key
from turnout.jobs.model import Bounds, Job, JobKey, Object, Order
from turnout.jobs.wishes import kai
from turnout.jobs.wishes.merge import native_min
from turnout.kube.errors import KubeError
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape, amount

_WAITING = ("", "Pending", "Inqueue", "PreScheduling", "Scheduling")
_OVER = ("Succeeded", "Failed")
_MOST_MEMBERS = 100_000
_MOST_BEGAN = 10_000
MAX_SCRAPED_JOBS = 2_000  # owners of such pods that the metrics name
PROMISE_S = 300.0  # how long the room of a terminating pod counts as free: a finalizer may keep it


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A PodGroup of any dialect."""

    key: GangKey
    uid: str
    owners: tuple[str, ...]  # uids
    created: str
    queue: str
    priority_class: str
    is_waiting: bool
    least: int | None  # of its members, None if it does not say
    shape: PodShape | None  # of one member by minResources, None if it does not say
    taken_up: bool = False  # a controller creates its pods, and its scheduler has given it a phase


def read(dialect: Dialect, raw: Object) -> WaitingGroup:
    """Return a PodGroup of one dialect. Unreadable fields count as missing."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    least = _stated_min(dialect, spec)
    return WaitingGroup(
        GangKey(meta.get("namespace", ""), meta["name"], dialect.value),
        meta.get("uid", ""),
        tuple(each.get("uid", "") for each in meta.get("ownerReferences") or ()),
        meta.get("creationTimestamp") or "",
        str(spec.get("queue") or ""),
        str(spec.get("priorityClassName") or ""),
        (status.get("phase") or "") in _WAITING,
        least,
        None if least is None else _member_share(spec.get("minResources"), least),
        bool(meta.get("ownerReferences")) and bool(status.get("phase")),
    )


def _stated_min(dialect: Dialect, spec: Object) -> int | None:
    """Return how many members start together, as the PodGroup states it; None if no readable number is stated."""
    least: Any = spec.get("minMember")
    if dialect is Dialect.NATIVE:
        least = native_min(spec.get("schedulingPolicy"))
    elif dialect is Dialect.KAI:
        least = kai.read_pod_group(least, None, spec.get("subGroups"), None).least
    return least if type(least) is int and 0 < least <= _MOST_MEMBERS else None


def _member_share(min_resources: Any, members: int) -> PodShape | None:
    """Return the shape of one member, by its share of minResources; None if that cannot be read."""
    if not isinstance(min_resources, dict) or not min_resources:
        return None
    if not all(isinstance(text, str | int | float) for text in min_resources.values()):
        return None
    try:
        shares = {what: -(-amount(what, text) // members) for what, text in min_resources.items() if what != "pods"}
    except KubeError:
        return None
    return PodShape(requests=tuple(sorted({**{what: one for what, one in shares.items() if one}, "pods": 1}.items())))


class TerminatingPods:
    """Terminating pods by uid. Their room counts as free soon, for a limited time."""

    def __init__(self) -> None:
        self._since: dict[str, float | None] = {}  # None until a look has seen it

    def put(self, uid: str, going: bool) -> None:
        """Store a pod. going: it is on a node and terminates."""
        if going:
            self._since.setdefault(uid, None)
        else:
            self._since.pop(uid, None)

    def at(self, steady_s: float) -> Iterator[str]:
        """Yield the uids of those whose room still counts. steady_s: of a clock that never jumps."""
        for uid, since_s in sorted(self._since.items()):
            if since_s is None:
                self._since[uid] = steady_s
            elif steady_s - since_s > PROMISE_S:
                continue
            yield uid


class _Lookups(NamedTuple):
    """Lookups by name: the row of a node, the queue of a gang, the value of a PriorityClass."""

    row: Callable[[str], int | None]
    queue: Callable[[Pod | None, WaitingGroup | None], str]
    value: Callable[[str], int]


class UnmanagedGangs:
    """Pods and PodGroups without a job.

    gpus: True for a shape that requests what is lent. schedulers: those that run in this cluster.
    """

    def __init__(self, gpus: Callable[[PodShape], bool], schedulers: Collection[str] = SCHEDULERS) -> None:
        self._gpus, self._schedulers = gpus, schedulers
        self._gangs: dict[GangKey, dict[str, tuple[Pod, PodShape]]] = {}
        self._of: dict[str, GangKey] = {}
        self._scraped: dict[JobKey, dict[str, Pod]] = {}  # by the job that Prometheus attaches to their series
        self._waiting: Counter[GangKey] = Counter()
        self._groups: dict[GangKey, WaitingGroup] = {}
        self._began: dict[tuple[str, str], None] = {}  # gangs of which a member has had a node, by namespace and name
        self.about: dict[JobKey, tuple[str, str, str]] = {}  # of the last look: kind, API version and uid, for Events

    def put_pod(self, pod: Pod, shape: PodShape) -> None:
        """Store a pod that no job of a known kind owns."""
        uid = pod.metadata.uid
        self.drop_pod(uid)
        if pod.status.phase in _OVER or pod.metadata.deletion_timestamp or not self._gpus(shape):
            return
        key = membership(pod).key
        self._of[uid] = key
        self._gangs.setdefault(key, {})[uid] = pod, shape
        self._scraped.setdefault(scrape_key(pod), {})[uid] = pod
        self._waiting[key] += not pod.spec.node_name
        if pod.spec.node_name:
            self._began.pop((key.namespace, key.name), None)
            self._began[key.namespace, key.name] = None
            if len(self._began) > _MOST_BEGAN:
                del self._began[next(iter(self._began))]

    def drop_pod(self, uid: str) -> None:
        """Drop a pod that was deleted, or that belongs to a job."""
        key = self._of.pop(uid, None)
        if key is None:
            return
        pod, _ = self._gangs[key].pop(uid)
        self._waiting[key] -= not pod.spec.node_name
        target = scrape_key(pod)
        del self._scraped[target][uid]
        if not self._scraped[target]:
            del self._scraped[target]
        if not self._gangs[key]:
            del self._gangs[key], self._waiting[key]

    def put_group(self, group: WaitingGroup) -> None:
        """Store a PodGroup."""
        self._groups[group.key] = group

    def drop_group(self, key: GangKey) -> None:
        """Drop a deleted PodGroup."""
        self._groups.pop(key, None)

    def waiting(
        self,
        known: Collection[str],
        row: Callable[[str], int | None],
        queue: Callable[[Pod | None, WaitingGroup | None], str],
        value: Callable[[str], int],
    ) -> Iterator[JobState]:
        """Yield the gangs that wait.

        known: uids of jobs, whose gangs are left out. row: returns the row of a node by its name. queue: returns the
        queue of a pod and its PodGroup. value: returns the priority of a PriorityClass.
        """
        self.about, lookups = {}, _Lookups(row, queue, value)
        keys = {key for key, count in self._waiting.items() if count}
        keys |= {key for key, group in self._groups.items() if group.is_waiting and group.shape is not None}
        for key in sorted(keys):
            group, members = self._groups.get(key), list(self._gangs.get(key, {}).values())
            if not _owners(group, members).isdisjoint(known):
                continue
            if (state := self._job_state(key, group, members, lookups)) is not None:
                yield state

    def scraped_jobs(self) -> Iterator[tuple[JobKey, Pod]]:
        """Yield the owners that Prometheus attaches to the series of these pods, with one pod each, in order.

        At most MAX_SCRAPED_JOBS, since a tenant creates as many owners as it likes.
        """
        for key in sorted(self._scraped)[:MAX_SCRAPED_JOBS]:
            yield key, next(iter(self._scraped[key].values()))

    def started(self, key: JobKey) -> bool:
        """Return True if any member of a gang has had a node, also a member that was deleted since."""
        return (key.namespace, key.name) in self._began

    def all(self) -> Iterator[tuple[JobKey, WaitingGroup | None, list[tuple[Pod, PodShape]]]]:
        """Return every gang, running or waiting: its name, its PodGroup and its members, in order."""
        for key in sorted(self._gangs):
            group = self._groups.get(key)
            name = JobKey("Pod" if group is None else "PodGroup", key.namespace, key.name)
            yield name, group, list(self._gangs[key].values())

    def _job_state(
        self, key: GangKey, group: WaitingGroup | None, members: list[tuple[Pod, PodShape]], lookups: _Lookups
    ) -> JobState | None:
        """Return a gang as a job of one size that lacks workers; None for a gang that has its min."""
        members.sort(key=lambda each: (membership(each[0]).rank or 0, each[0].metadata.name))
        bound = [pod for pod, _ in members if pod.spec.node_name]
        free = [(pod, shape) for pod, shape in members if not pod.spec.node_name]
        least = _least(group, members)
        lacking = least - len(bound)
        shapes = _lacking_shapes(group, free, lacking)
        if not shapes:
            return None
        job_key = self._job_key(key, group, free[0][0] if free else None)
        job = _job(job_key, group, free, len(bound), shapes, lookups)
        workers = tuple(Worker(at, lookups.row(pod.spec.node_name)) for at, pod in enumerate(bound))
        why = self._unbindable(group, [pod for pod, _ in free], lacking, max(0, least - len(members)))
        return JobState(job, workers, (0,) * len(job.other_roles), unbindable=why)

    def _unbindable(self, group: WaitingGroup | None, free: list[Pod], lacking: int, to_come: int) -> str:
        """Return why no scheduler binds what a gang lacks, "" if one can. to_come: members that do not exist yet."""
        if not free:
            return "" if group is not None and group.taken_up else "no pod of it is there, and nobody has taken it up"
        reasons = [unbindable(pod, self._schedulers) for pod in free]
        return next(filter(None, reasons), "") if reasons.count("") + to_come < lacking else ""

    def _job_key(self, key: GangKey, group: WaitingGroup | None, first: Pod | None) -> JobKey:
        """Return the name of a gang: that of its PodGroup, else of its pods. Events on it go to `first` then."""
        if group is not None:
            name = JobKey("PodGroup", key.namespace, key.name)
            self.about[name] = "PodGroup", POD_GROUP_VERSIONS[Dialect(key.dialect)], group.uid
        else:
            name = JobKey("Pod", key.namespace, key.name)
            if first is not None:
                self.about[name] = "Pod", "v1", first.metadata.uid
        return name


def _owners(group: WaitingGroup | None, members: list[tuple[Pod, PodShape]]) -> set[str]:
    """Return the uids of the owners of a gang's PodGroup and pods."""
    owners = {each.uid for pod, _ in members for each in pod.metadata.owner_references or ()}
    return owners | set(group.owners if group is not None else ())


def _lacking_shapes(group: WaitingGroup | None, free: list[tuple[Pod, PodShape]], lacking: int) -> list[PodShape]:
    """Return the shapes of the pods that a gang lacks to its min; empty if it lacks none, or no shape is known.

    Pods that do not exist yet have the shape of the first one, else the PodGroup's.
    """
    shapes = [shape for _, shape in free[:lacking]] if lacking > 0 else []
    main = shapes[0] if shapes else group.shape if group is not None else None
    return [] if main is None else [*shapes, *[main] * (lacking - len(shapes))]


def _job(
    key: JobKey,
    group: WaitingGroup | None,
    free: list[tuple[Pod, PodShape]],
    bound: int,
    shapes: list[PodShape],
    lookups: _Lookups,
) -> Job:
    """Return the job that stands for a gang. free: members without a node. bound: members with a node."""
    first = free[0][0] if free else None
    others = Counter(shape for shape in shapes if shape != shapes[0])
    size = bound + len(shapes) - others.total()
    if first is not None:
        uid, priority, notes = first.metadata.uid, first.spec.priority or 0, first.metadata.annotations or {}
    else:
        uid, priority, notes = "", lookups.value(group.priority_class if group is not None else ""), {}
    return Job(
        key,
        uid if group is None else group.uid,
        "",
        queue=lookups.queue(first, group),
        replicas=size,
        bounds=Bounds(size, size),
        shape=shapes[0],
        order=Order(priority),
        created=_waiting_since(group, free),
        other_roles=tuple(others.items()),
        spread=spread(notes),
        foreign=True,
    )


def _least(group: WaitingGroup | None, members: list[tuple[Pod, PodShape]]) -> int:
    """Return how many members of a gang have to run: as its PodGroup states, else its pods, else all that exist."""
    if group is not None and group.least is not None:
        return group.least
    memberships = [membership(pod) for pod, _ in members]
    counts = [each.min_members or each.total for each in memberships]
    return max([count for count in counts if count] or [len(members)])


def _waiting_since(group: WaitingGroup | None, waiting: list[tuple[Pod, PodShape]]) -> str:
    """Return the time since when a gang waits."""
    times = [pod.metadata.creation_timestamp or "" for pod, _ in waiting] + ([group.created] if group else [])
    return min(filter(None, times), default="")
