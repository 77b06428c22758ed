"""Which queues start nobody before an older job: as their objects say, in whatever dialect.

Kueue has a field for it, and pods name a LocalQueue that leads to the ClusterQueue. Volcano and the ElasticQuotas have
none, so there an annotation of ours says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.field_reader import Fields
from turnout.jobs.queues.model import NAMESPACE, Dialect, Object, QueueSpec
from turnout.kube import labels

LOCAL_QUEUES = "/apis/kueue.x-k8s.io/v1beta2/localqueues"
MOST_NAMESPACES = 1_000  # of one quota


@dataclass(frozen=True, slots=True)
class Ordered:
    """A queue of strict order.

    names: by which a pod names it. namespaces: whose pods that name none wait in it. grants: whose pods may name it,
    None for those of every namespace.
    """

    queue: str
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    grants: frozenset[str] | None = None

    def admits(self, where: str) -> bool:
        """True if pods of this namespace may name the queue."""
        return self.grants is None or where in self.grants


def _said(raw: Object) -> bool:
    return Fields(raw).of("metadata").of("annotations").text(labels.STRICT_ORDER) == "true"


def _volcano(raw: Object) -> Ordered | None:
    return _ordered(volcano.read(raw)) if _said(raw) else None


def _koordinator(raw: Object) -> Ordered | None:
    return _ordered(koordinator.read(raw)) if _said(raw) else None


def _elastic(raw: Object) -> Ordered | None:
    if not _said(raw):
        return None
    name = namespace.read_elastic(raw).name
    return Ordered(name, (), (name.removeprefix(NAMESPACE),))


def _kueue(raw: Object) -> Ordered | None:
    spec = kueue.read(raw)
    return Ordered(f"{Dialect.KUEUE.value}/{spec.name}") if spec.strict or _said(raw) else None


def _ordered(spec: QueueSpec) -> Ordered:
    grants = None if spec.grants is None else frozenset(spec.grants[:MOST_NAMESPACES])
    return Ordered(f"{spec.dialect.value}/{spec.name}", (spec.name,), spec.namespaces[:MOST_NAMESPACES], grants)


# Where the queues are, and how one is read; None for a queue whose order is not strict.
QUEUES: dict[str, Callable[[Object], Ordered | None]] = {
    "/apis/kueue.x-k8s.io/v1beta2/clusterqueues": _kueue,
    "/apis/scheduling.volcano.sh/v1beta1/queues": _volcano,
    "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas": _koordinator,
    "/apis/scheduling.x-k8s.io/v1alpha1/elasticquotas": _elastic,
}


class StrictQueues:
    """The queues of strict order: those that an admin has named, and those of which an object says it.

    named: queues, or namespace/queue.
    """

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        self._named = named
        self._said: dict[str, Ordered] = {}  # by the place of the object
        self._local: dict[str, str] = {}  # namespace/name of a LocalQueue -> its ClusterQueue
        self._strict: frozenset[str] = frozenset()
        self._by_name: dict[str, Ordered] = {}
        self._by_namespace: dict[str, str] = {}

    def put(self, place: str, ordered: Ordered | None) -> bool:
        """Take in one object, None for one that is gone or not strict. True if any queue's order may be another now."""
        if self._said.get(place) == ordered:
            return False
        if ordered is None:
            del self._said[place]
        else:
            self._said[place] = ordered
        told = [self._said[place] for place in sorted(self._said)]
        self._strict = frozenset(each.queue for each in told)
        self._by_name = {name: each for each in told for name in each.names}
        self._by_namespace = {name: each.queue for each in told for name in each.namespaces}
        return True

    def lead(self, local_queue: str, cluster_queue: str) -> bool:
        """Let a LocalQueue, namespace/name, lead to a ClusterQueue; "" for one that is gone. True if that is new."""
        queue = f"{Dialect.KUEUE.value}/{cluster_queue}" if cluster_queue else ""
        if self._local.get(local_queue, "") == queue:
            return False
        if queue:
            self._local[local_queue] = queue
        else:
            del self._local[local_queue]
        return True

    def of(self, where: str, queue: str) -> str:
        """Return the name of the strict queue that a gang of a namespace waits in; "" for none.

        queue: as its pods name it, "" where they name none. It counts only where the queue's object grants it to the
        namespace, so that nobody holds up another tenant's queue by naming it.
        """
        if not queue:
            return self._by_namespace.get(where, "")
        if f"{where}/{queue}" in self._named:
            return f"{where}/{queue}"
        by_name = self._by_name.get(queue)
        granted = by_name is None or by_name.admits(where)
        if queue in self._named and granted:
            return queue
        leads_to = self._local.get(f"{where}/{queue}", "")
        if leads_to in self._strict:
            return leads_to
        return by_name.queue if by_name is not None and granted else ""
