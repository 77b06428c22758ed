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
from turnout.autoscaler.observe.job_pods import SCHEDULERS, unbindable_reason
from turnout.jobs.annotations import spread
from turnout.jobs.gang import POD_GROUP_VERSIONS, Dialect, GangKey, membership
from turnout.jobs.kinds.scrape_target import scrape_key
from turnout.jobs.model import Bounds, Job, JobKey, Object, Order
from turnout.jobs.wishes import kai
from turnout.jobs.wishes.merge import native_min
from turnout.kube.errors import KubeError
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape, amount

_WAITING = ("", "Pending", "Inqueue", "PreScheduling", "Scheduling")  # phases of PodGroups that wait
_OVER = ("Succeeded", "Failed")  # phases of pods that have ended
_MAX_MEMBERS = 100_000  # a larger stated minimum of a PodGroup counts as unreadable
_MAX_STARTED = 10_000  # gangs that are remembered because a member has had a node
MAX_SCRAPED_JOBS = 2_000  # owners of pods without a job that the metrics name
PROMISE_S = 300.0  # how long the room of a terminating pod counts as free: a finalizer may keep the pod longer


@dataclass(frozen=True, slots=True)
class PodGroupState:
    """The state of a PodGroup of any dialect, whether it waits or not."""

    key: GangKey
    uid: str
    owners: tuple[str, ...]  # uids of its owner references
    created: str  # RFC 3339, "" if missing
    queue: str  # as its spec names it, "" for none
    priority_class: str  # name of its PriorityClass, "" for none
    is_waiting: bool  # by its phase, which is "" before a scheduler has seen it
    minimum: int | None  # members that start together, >= 1; None if it does not say
    shape: PodShape | None  # shape of one member by minResources, None if it does not say
    is_owned: bool = False  # it has an owner that creates its pods, and a scheduler has given it a phase


def read_pod_group(dialect: Dialect, raw: Object) -> PodGroupState:
    """Return the state of a PodGroup of one dialect. Unreadable fields count as missing. raw: its object."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    minimum = _stated_min(dialect, spec)
    return PodGroupState(
        GangKey(meta.get("namespace", ""), meta["name"], dialect.value),
        meta.get("uid", ""),
        tuple(each.get("uid", "") for each in meta.get("ownerReferences") or ()),
        meta.get("creationTimestamp") or "",
        str(spec.get("queue") or ""),
        str(spec.get("priorityClassName") or ""),
        (status.get("phase") or "") in _WAITING,
        minimum,
        None if minimum is None else _member_share(spec.get("minResources"), minimum),
        bool(meta.get("ownerReferences")) and bool(status.get("phase")),
    )


def _stated_min(dialect: Dialect, spec: Object) -> int | None:
    """Return how many members start together as the PodGroup states it, >= 1; None if it states no such number.

    dialect: of the PodGroup. spec: its spec. A number above _MAX_MEMBERS counts as none.
    """
    minimum: Any = spec.get("minMember")
    if dialect is Dialect.NATIVE:
        minimum = native_min(spec.get("schedulingPolicy"))
    elif dialect is Dialect.KAI:
        minimum = kai.read_pod_group(minimum, None, spec.get("subGroups"), None).min_pods
    return minimum if type(minimum) is int and 0 < minimum <= _MAX_MEMBERS else None


def _member_share(min_resources: Any, members: int) -> PodShape | None:
    """Return the shape of one of `members` members, by its share of minResources, rounded up; None if that cannot be
    read.

    min_resources: resource -> quantity of all members together, as the PodGroup states it. The resource "pods" is
    always 1.
    """
    if not isinstance(min_resources, dict) or not min_resources:
        return None
    if not all(isinstance(text, str | int | float) for text in min_resources.values()):
        return None
    try:
        shares = {
            resource: -(-amount(resource, text) // members)
            for resource, text in min_resources.items()
            if resource != "pods"
        }
    except KubeError:
        return None
    return PodShape(
        requests=tuple(sorted({**{resource: share for resource, share in shares.items() if share}, "pods": 1}.items()))
    )


class TerminatingPods:
    """Terminating pods on nodes, by uid. Their room counts as free for PROMISE_S."""

    def __init__(self) -> None:
        # uid -> first call of `uids_with_promised_room` since then, None before
        self._since: dict[str, float | None] = {}

    def put(self, uid: str, is_terminating: bool) -> None:
        """Store whether a pod is on a node and terminates. False forgets the pod."""
        if is_terminating:
            self._since.setdefault(uid, None)
        else:
            self._since.pop(uid, None)

    def uids_with_promised_room(self, monotonic_s: float) -> Iterator[str]:
        """Yield, sorted, the uids of terminating pods whose room counts as free: for at most PROMISE_S.

        The time of a pod begins with the first call after its `put`. monotonic_s: now by the monotonic clock.
        """
        for uid, since_s in sorted(self._since.items()):
            if since_s is None:
                self._since[uid] = monotonic_s
            elif monotonic_s - since_s > PROMISE_S:
                continue
            yield uid


class _Lookups(NamedTuple):
    """Lookups by name: the row of a node, the queue of a gang, the value of a PriorityClass."""

    row: Callable[[str], int | None]  # of a node by its name
    queue: Callable[[Pod | None, PodGroupState | None], str]  # of a gang by a pod and its PodGroup, None for none
    value: Callable[[str], int]  # of a PriorityClass by its name


class UnmanagedGangs:
    """Pods with GPUs, and PodGroups, of no job of a known kind.

    has_gpus: returns True for a shape that requests GPUs. schedulers: those that run in this cluster.
    """

    def __init__(self, has_gpus: Callable[[PodShape], bool], schedulers: Collection[str] = SCHEDULERS) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._has_gpus, self._schedulers = has_gpus, schedulers
        self._gangs: dict[GangKey, dict[str, tuple[Pod, PodShape]]] = {}  # members by uid
        self._gang_of_pod: dict[str, GangKey] = {}  # by the pod's uid
        self._scraped: dict[JobKey, dict[str, Pod]] = {}  # by the job that Prometheus attaches to their series
        self._waiting: Counter[GangKey] = Counter()  # members without a node
        self._groups: dict[GangKey, PodGroupState] = {}
        self._started: dict[tuple[str, str], None] = {}  # namespace and name of gangs with a member that had a node
        # Kind, API version and uid of each gang of the last `waiting_gangs`, for Events.
        self.about: dict[JobKey, tuple[str, str, str]] = {}

    def put_pod(self, pod: Pod, shape: PodShape) -> None:
        """Store a pod that no job of a known kind owns, in place of its earlier version.

        A pod without GPUs, an ended pod and a terminating pod are dropped instead.
        """
        uid = pod.metadata.uid
        self.drop_pod(uid)
        if pod.status.phase in _OVER or pod.metadata.deletion_timestamp or not self._has_gpus(shape):
            return
        key = membership(pod).key
        self._gang_of_pod[uid] = key
        self._gangs.setdefault(key, {})[uid] = pod, shape
        self._scraped.setdefault(scrape_key(pod), {})[uid] = pod
        self._waiting[key] += not pod.spec.node_name
        if pod.spec.node_name:
            self._started.pop((key.namespace, key.name), None)
            self._started[key.namespace, key.name] = None
            if len(self._started) > _MAX_STARTED:
                del self._started[next(iter(self._started))]

    def drop_pod(self, uid: str) -> None:
        """Drop a pod that was deleted, or that belongs to a job, by its uid. An unknown pod is ignored."""
        key = self._gang_of_pod.pop(uid, None)
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

    def put_group(self, group: PodGroupState) -> None:
        """Store a PodGroup in place of its earlier version."""
        self._groups[group.key] = group

    def drop_group(self, key: GangKey) -> None:
        """Drop a deleted PodGroup. An unknown one is ignored."""
        self._groups.pop(key, None)

    def waiting_gangs(
        self,
        known: Collection[str],
        row: Callable[[str], int | None],
        queue: Callable[[Pod | None, PodGroupState | None], str],
        value: Callable[[str], int],
    ) -> Iterator[JobState]:
        """Yield the gangs that wait, as jobs of one size, by key. Also replaces `about`.

        known: uids of jobs, whose gangs are left out. row: returns the row of a node by its name. queue: returns the
        queue of a gang by one of its pods and its PodGroup, None if it has none. value: returns the value of a
        PriorityClass by its name.
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
        """Yield (owner that Prometheus attaches to the series of these pods, one of its pods), by owner.

        Only the first MAX_SCRAPED_JOBS, since a tenant creates as many owners as it likes.
        """
        for key in sorted(self._scraped)[:MAX_SCRAPED_JOBS]:
            yield key, next(iter(self._scraped[key].values()))

    def has_started(self, key: JobKey) -> bool:
        """Return True if any member of a gang has had a node, also a member that was deleted since.

        Only the last _MAX_STARTED such gangs are remembered.
        """
        return (key.namespace, key.name) in self._started

    def all_gangs(self) -> Iterator[tuple[JobKey, PodGroupState | None, list[tuple[Pod, PodShape]]]]:
        """Yield (name, PodGroup or None, (pod, shape) of each member) of every gang with pods, running or waiting, by
        key.
        """
        for key in sorted(self._gangs):
            group = self._groups.get(key)
            name = JobKey("Pod" if group is None else "PodGroup", key.namespace, key.name)
            yield name, group, list(self._gangs[key].values())

    def _job_state(
        self, key: GangKey, group: PodGroupState | None, members: list[tuple[Pod, PodShape]], lookups: _Lookups
    ) -> JobState | None:
        """Return a gang as a job of one size that lacks workers; None if it lacks no member to its min, or no shape is
        known.

        members: (pod, shape) of each; the list is sorted by rank. Its entry in `about` is set. group: None for none.
        """
        members.sort(key=lambda each: (membership(each[0]).rank or 0, each[0].metadata.name))
        bound = [pod for pod, _ in members if pod.spec.node_name]
        unbound = [(pod, shape) for pod, shape in members if not pod.spec.node_name]
        minimum = _min_members(group, members)
        lacking = minimum - len(bound)
        shapes = _needed_shapes(group, unbound, lacking)
        if not shapes:
            return None
        job_key = self._job_key(key, group, unbound[0][0] if unbound else None)
        job = _job(job_key, group, unbound, len(bound), shapes, lookups)
        workers = tuple(Worker(index, lookups.row(pod.spec.node_name)) for index, pod in enumerate(bound))
        why = self._unbindable(group, [pod for pod, _ in unbound], lacking, max(0, minimum - len(members)))
        return JobState(job, workers, (0,) * len(job.other_roles), unbindable=why)

    def _unbindable(self, group: PodGroupState | None, unbound: list[Pod], lacking: int, to_come: int) -> str:
        """Return why no scheduler binds what a gang lacks to its min, "" if one can.

        unbound: members without a node. lacking: how many more members need a node. to_come: members that do not exist
        yet. group: None for none.
        """
        if not unbound:
            return (
                ""
                if group is not None and group.is_owned
                else "it has no pods, and no controller or scheduler has begun to handle it"
            )
        reasons = [unbindable_reason(pod, self._schedulers) for pod in unbound]
        return next(filter(None, reasons), "") if reasons.count("") + to_come < lacking else ""

    def _job_key(self, key: GangKey, group: PodGroupState | None, first: Pod | None) -> JobKey:
        """Return the name of a gang: that of its PodGroup, else that of its pods. Also set its entry in `about`.

        first: a pod without a node, to which Events go if there is no PodGroup; None for none: then `about` has no
        entry.
        """
        if group is not None:
            name = JobKey("PodGroup", key.namespace, key.name)
            self.about[name] = "PodGroup", POD_GROUP_VERSIONS[Dialect(key.dialect)], group.uid
        else:
            name = JobKey("Pod", key.namespace, key.name)
            if first is not None:
                self.about[name] = "Pod", "v1", first.metadata.uid
        return name


def _owners(group: PodGroupState | None, members: list[tuple[Pod, PodShape]]) -> set[str]:
    """Return the uids of the owners of a gang's PodGroup and pods."""
    owners = {each.uid for pod, _ in members for each in pod.metadata.owner_references or ()}
    return owners | set(group.owners if group is not None else ())


def _needed_shapes(group: PodGroupState | None, unbound: list[tuple[Pod, PodShape]], needed: int) -> list[PodShape]:
    """Return the shapes of the pods that still need a node for a gang's min; [] if there are none, or no shape is
    known.

    Those of the unbound members come first. Pods that do not exist yet get the shape of the first unbound member, else
    of the PodGroup. group: None for none. unbound: members without a node. needed: how many more pods need a node; 0 or
    less for none.
    """
    shapes = [shape for _, shape in unbound[:needed]] if needed > 0 else []
    main = shapes[0] if shapes else group.shape if group is not None else None
    return [] if main is None else [*shapes, *[main] * (needed - len(shapes))]


def _job(
    key: JobKey,
    group: PodGroupState | None,
    unbound: list[tuple[Pod, PodShape]],
    bound: int,
    shapes: list[PodShape],
    lookups: _Lookups,
) -> Job:
    """Return the job that stands for a gang. Its size, min and max are the members with a node and those that it lacks
    of the first shape.

    Members of other shapes are other roles. unbound: members without a node. bound: number of members with a node.
    shapes: of the pods that it lacks, at least one. group: None for none. lookups: of queue and priority.
    """
    first = unbound[0][0] if unbound else None
    other_shapes = Counter(shape for shape in shapes if shape != shapes[0])
    size = bound + len(shapes) - other_shapes.total()
    if first is not None:
        uid, priority, annotations = first.metadata.uid, first.spec.priority or 0, first.metadata.annotations or {}
    else:
        uid, priority, annotations = "", lookups.value(group.priority_class if group is not None else ""), {}
    return Job(
        key,
        uid if group is None else group.uid,
        "",
        queue=lookups.queue(first, group),
        replicas=size,
        bounds=Bounds(size, size),
        shape=shapes[0],
        order=Order(priority),
        created=_waiting_since(group, unbound),
        other_roles=tuple(other_shapes.items()),
        spread=spread(annotations),
        foreign=True,
    )


def _min_members(group: PodGroupState | None, members: list[tuple[Pod, PodShape]]) -> int:
    """Return how many members of a gang have to run: as its PodGroup states, else its pods, else all that exist.

    If its pods state different numbers, the largest counts. group: None for none. members: at least one if `group`
    states no min.
    """
    if group is not None and group.minimum is not None:
        return group.minimum
    memberships = [membership(pod) for pod, _ in members]
    counts = [each.min_members or each.total for each in memberships]
    return max([count for count in counts if count] or [len(members)])


def _waiting_since(group: PodGroupState | None, waiting: list[tuple[Pod, PodShape]]) -> str:
    """Return since when a gang waits, RFC 3339; "" if unknown.

    That is the oldest creation among the waiting pods and the PodGroup. group: None for none.
    """
    times = [pod.metadata.creation_timestamp or "" for pod, _ in waiting] + ([group.created] if group else [])
    return min(filter(None, times), default="")
