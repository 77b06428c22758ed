"""The shares of all queues of all dialects, and the queues whose order is strict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from turnout.jobs.fields import ObjectPart
from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.accounting import room
from turnout.jobs.queues.model import NAMESPACE, Amounts, Demand, Object, Queue, QueueDialect, QueueSpec
from turnout.kube import labels

NO_NEEDS: Mapping[str, Amounts] = {}


def shares(queues: Iterable[QueueSpec], demand: Demand) -> dict[str, Queue]:
    """Return the share of each queue by name, and of limits on several queues. Duplicate names are a fault of both."""
    by_dialect: dict[QueueDialect, list[QueueSpec]] = {dialect: [] for dialect in QueueDialect}
    for queue in queues:
        by_dialect[queue.dialect].append(queue)
    found: dict[str, Queue] = {}
    for dialect, dialect_queues in (
        (volcano, by_dialect[QueueDialect.VOLCANO]),
        (koordinator, by_dialect[QueueDialect.KOORDINATOR]),
        (kueue, by_dialect[QueueDialect.KUEUE]),
        (namespace, by_dialect[QueueDialect.NAMESPACE]),
    ):
        dialect_shares = _drop_foreign_parents(dialect.shares(dialect_queues, demand))
        duplicates = found.keys() & dialect_shares.keys()
        found |= dialect_shares
        for name in duplicates:
            found[name] = replace(found[name], faults=(*found[name].faults, f"two queues are called {name}"))
    return _with_faults_above(found) if any(share.faults for share in found.values()) else found


def _drop_foreign_parents(found: dict[str, Queue]) -> dict[str, Queue]:
    """Return the shares without parents of another dialect: a name refers to its own dialect."""
    return {
        name: replace(share, parent="") if share.parent and share.parent not in found else share
        for name, share in found.items()
    }


def _with_faults_above(found: dict[str, Queue]) -> dict[str, Queue]:
    """Return the shares with the faults of all ancestors, because an unreadable limit affects the whole subtree."""
    complete: dict[str, Queue] = {}
    for name, share in found.items():
        faults, at, visited = list(share.faults), share.parent, {name}
        while at in found and at not in visited:
            visited.add(at)
            faults += [f"{at}: {why}" for why in found[at].faults]
            at = found[at].parent
        complete[name] = replace(share, faults=tuple(faults))
    return complete


def limits(
    queues: Iterable[QueueSpec],
    used: Mapping[str, Amounts],
    total: Amounts,
    needed: Mapping[str, Amounts] = NO_NEEDS,
) -> dict[str, dict[str, int]]:
    """Return what each queue's pods may use together, by resource: their use and the remaining room."""
    queues = list(queues)
    found = shares(queues, Demand(used, needed, total))
    return {
        name: {what: found[name].used.get(what, 0) + (room(found, name, what) or 0) for what in found[name].limit}
        for name in (queue.name for queue in queues)
    }


LOCAL_QUEUES = "/apis/kueue.x-k8s.io/v1beta2/localqueues"
MAX_NAMESPACES = 1_000  # of one quota


@dataclass(frozen=True, slots=True)
class StrictQueue:
    """A queue with strict order."""

    queue: str
    names: tuple[str, ...] = ()  # the names that pods use for it
    namespaces: tuple[str, ...] = ()  # whose pods wait in it if they name no queue
    grants: frozenset[str] | None = None  # whose pods may name it; None for all

    def admits(self, namespace_name: str) -> bool:
        """Return True if pods of this namespace may name the queue."""
        return self.grants is None or namespace_name in self.grants


def _has_strict_annotation(raw: Object) -> bool:
    return ObjectPart.lenient(raw).part("metadata").part("annotations").text(labels.STRICT_ORDER) == "true"


def _volcano(raw: Object) -> StrictQueue | None:
    return _strict_queue(volcano.read(raw)) if _has_strict_annotation(raw) else None


def _koordinator(raw: Object) -> StrictQueue | None:
    return _strict_queue(koordinator.read(raw)) if _has_strict_annotation(raw) else None


def _elastic(raw: Object) -> StrictQueue | None:
    """Return the strict queue that an ElasticQuota makes; None if it has no strict annotation."""
    if not _has_strict_annotation(raw):
        return None
    name = namespace.read_elastic(raw).name
    return StrictQueue(name, (), (name.removeprefix(NAMESPACE),))


def _kueue(raw: Object) -> StrictQueue | None:
    """Return the strict queue that a ClusterQueue makes.

    None if it is neither StrictFIFO nor has the strict annotation.
    """
    spec = kueue.read(raw)
    return (
        StrictQueue(f"{QueueDialect.KUEUE.value}/{spec.name}") if spec.strict or _has_strict_annotation(raw) else None
    )


def _strict_queue(spec: QueueSpec) -> StrictQueue:
    grants = None if spec.grants is None else frozenset(spec.grants[:MAX_NAMESPACES])
    return StrictQueue(f"{spec.dialect.value}/{spec.name}", (spec.name,), spec.namespaces[:MAX_NAMESPACES], grants)


# Where the queues are, and how one is read; None for a queue whose order is not strict.
STRICT_QUEUE_READERS: dict[str, Callable[[Object], StrictQueue | None]] = {
    "/apis/kueue.x-k8s.io/v1beta2/clusterqueues": _kueue,
    "/apis/scheduling.volcano.sh/v1beta1/queues": _volcano,
    "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas": _koordinator,
    "/apis/scheduling.x-k8s.io/v1alpha1/elasticquotas": _elastic,
}


class StrictQueues:
    """The queues with strict order: those that an admin named, and those whose object sets it."""

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        """Make a table of queues. named: the queues or namespace/queue names of the admin."""
        self._named = named
        self._by_place: dict[str, StrictQueue] = {}  # by the place of the object
        self._local: dict[str, str] = {}  # namespace/name of a LocalQueue -> its ClusterQueue
        self._strict: frozenset[str] = frozenset()
        self._by_name: dict[str, StrictQueue] = {}
        self._by_namespace: dict[str, str] = {}

    def put(self, place: str, ordered: StrictQueue | None) -> bool:
        """Add or replace the queue of one object; None removes it. Return True if the order may have changed."""
        if self._by_place.get(place) == ordered:
            return False
        if ordered is None:
            del self._by_place[place]
        else:
            self._by_place[place] = ordered
        ordered_queues = [self._by_place[place] for place in sorted(self._by_place)]
        self._strict = frozenset(each.queue for each in ordered_queues)
        self._by_name = {name: each for each in ordered_queues for name in each.names}
        self._by_namespace = {name: each.queue for each in ordered_queues for name in each.namespaces}
        return True

    def set_cluster_queue(self, local_queue: str, cluster_queue: str) -> bool:
        """Set the ClusterQueue of a LocalQueue (namespace/name); "" removes it. Return True if it changed."""
        queue = f"{QueueDialect.KUEUE.value}/{cluster_queue}" if cluster_queue else ""
        if self._local.get(local_queue, "") == queue:
            return False
        if queue:
            self._local[local_queue] = queue
        else:
            del self._local[local_queue]
        return True

    def of(self, namespace_name: str, queue: str) -> str:
        """Return the name of the strict queue in which a gang of a namespace waits; "" for none.

        queue: the name on its pods, "" for none. It counts only if the queue's object grants it to the namespace, so
        that no tenant can block another tenant's queue.
        """
        if not queue:
            return self._by_namespace.get(namespace_name, "")
        if f"{namespace_name}/{queue}" in self._named:
            return f"{namespace_name}/{queue}"
        by_name = self._by_name.get(queue)
        granted = by_name is None or by_name.admits(namespace_name)
        if queue in self._named and granted:
            return queue
        leads_to = self._local.get(f"{namespace_name}/{queue}", "")
        if leads_to in self._strict:
            return leads_to
        return by_name.queue if by_name is not None and granted else ""
