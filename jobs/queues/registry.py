"""The shares of all queues of all dialects, and the queues whose order is strict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from turnout.jobs.fields import lenient_part
from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.accounting import room
from turnout.jobs.queues.model import NAMESPACE, Amounts, Demand, Object, QueueDialect, QueueShare, QueueSpec
from turnout.kube import labels

NO_NEEDS: Mapping[str, Amounts] = {}  # of each queue, its use counts as its need


def shares(queues: Iterable[QueueSpec], demand: Demand) -> dict[str, QueueShare]:
    """Return the share of each queue by name, and of each cohort or pool that limits several queues.

    queues: of any dialect. If two dialects have a queue of the same name, the share is that of the later dialect, in
    the order Volcano, koordinator, Kueue, namespace, and gets a fault. A share also has the faults of all its
    ancestors.
    """
    by_dialect: dict[QueueDialect, list[QueueSpec]] = {dialect: [] for dialect in QueueDialect}
    for queue in queues:
        by_dialect[queue.dialect].append(queue)
    by_name: dict[str, QueueShare] = {}
    for dialect, shares_of_dialect in (
        (QueueDialect.VOLCANO, volcano.shares),
        (QueueDialect.KOORDINATOR, koordinator.shares),
        (QueueDialect.KUEUE, kueue.shares),
        (QueueDialect.NAMESPACE, namespace.shares),
    ):
        dialect_shares = _drop_foreign_parents(shares_of_dialect(by_dialect[dialect], demand))
        duplicates = by_name.keys() & dialect_shares.keys()
        by_name |= dialect_shares
        for name in duplicates:
            fault = f"two queues have the name {name}: that of dialect {dialect.value} counts"
            by_name[name] = replace(by_name[name], faults=(*by_name[name].faults, fault))
    return _with_ancestor_faults(by_name) if any(share.faults for share in by_name.values()) else by_name


def _drop_foreign_parents(by_name: dict[str, QueueShare]) -> dict[str, QueueShare]:
    """Return all shares; a parent that is not among them becomes "". by_name: the shares of one dialect."""
    return {
        name: replace(share, parent="") if share.parent and share.parent not in by_name else share
        for name, share in by_name.items()
    }


def _with_ancestor_faults(by_name: dict[str, QueueShare]) -> dict[str, QueueShare]:
    """Return the shares with the faults of all ancestors, because an unreadable limit affects the whole subtree.

    by_name: the shares of all queues by name.
    """
    complete: dict[str, QueueShare] = {}
    for name, share in by_name.items():
        faults, ancestor, visited = list(share.faults), share.parent, {name}
        while ancestor in by_name and ancestor not in visited:
            visited.add(ancestor)
            faults += [f"{ancestor}: {why}" for why in by_name[ancestor].faults]
            ancestor = by_name[ancestor].parent
        complete[name] = replace(share, faults=tuple(faults))
    return complete


def limits(
    queues: Iterable[QueueSpec],
    used: Mapping[str, Amounts],
    total: Amounts,
    needed: Mapping[str, Amounts] = NO_NEEDS,
) -> dict[str, dict[str, int]]:
    """Return the amounts that each queue's pods may use together, by queue and resource: use plus remaining room.

    queues: of any dialect. Only resources with a limit are present. used: the use of each queue. total: the amounts of
    all nodes. needed: the need of each queue; for a queue that is absent its use counts as its need.
    """
    queues = list(queues)
    by_name = shares(queues, Demand(used, needed, total))
    return {
        name: {
            resource: by_name[name].used.get(resource, 0) + (room(by_name, name, resource) or 0)
            for resource in by_name[name].limit
        }
        for name in (queue.name for queue in queues)
    }


LOCAL_QUEUES = "/apis/kueue.x-k8s.io/v1beta2/localqueues"
MAX_NAMESPACES = 1_000  # of one quota; further ones are ignored


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """The pods that wait in a queue, and whether its order is strict: no gang starts before an older one."""

    queue: str  # its unique name, as in volcano/NAME
    names: tuple[str, ...] = ()  # the names that pods use for it
    namespaces: tuple[str, ...] = ()  # namespaces whose pods wait in it if they name no queue
    grants: frozenset[str] | None = None  # namespaces whose pods may name it; None for all
    is_strict: bool = True  # False for a queue that only states its grants: they count if an admin named the queue

    def admits(self, namespace_name: str) -> bool:
        """Return True if pods of this namespace may name the queue."""
        return self.grants is None or namespace_name in self.grants


def _has_strict_annotation(raw: Object) -> bool:
    """Return True if our annotation on a queue's object asks for strict order."""
    return lenient_part(raw).part("metadata").part("annotations").text(labels.STRICT_ORDER) == "true"


def _read_volcano(raw: Object) -> QueueOrder:
    """Return the order of a Volcano Queue, which is not strict without the strict annotation."""
    return _queue_order(volcano.read(raw), is_strict=_has_strict_annotation(raw))


def _read_koordinator(raw: Object) -> QueueOrder:
    """Return the order of koordinator's ElasticQuota, which is not strict without the strict annotation."""
    return _queue_order(koordinator.read(raw), is_strict=_has_strict_annotation(raw))


def _read_elastic(raw: Object) -> QueueOrder | None:
    """Return the order of an ElasticQuota of scheduler-plugins: all pods of its namespace that name no queue.

    None if it has no strict annotation.
    """
    if not _has_strict_annotation(raw):
        return None
    name = namespace.read_elastic(raw).name
    return QueueOrder(name, (), (name.removeprefix(NAMESPACE),))


def _read_kueue(raw: Object) -> QueueOrder | None:
    """Return the order of a ClusterQueue; None if it neither is StrictFIFO nor has the strict annotation.

    No pod names a ClusterQueue: LocalQueues lead to it.
    """
    spec = kueue.read(raw)
    return QueueOrder(f"{QueueDialect.KUEUE.value}/{spec.name}") if spec.strict or _has_strict_annotation(raw) else None


def _queue_order(spec: QueueSpec, *, is_strict: bool) -> QueueOrder:
    """Return the order of a queue under its unique name."""
    grants = None if spec.access.grants is None else frozenset(spec.access.grants[:MAX_NAMESPACES])
    namespaces = spec.access.namespaces[:MAX_NAMESPACES] if is_strict else ()
    return QueueOrder(f"{spec.dialect.value}/{spec.name}", (spec.name,), namespaces, grants, is_strict)


# For each path that lists queues, the function that reads one object. It returns None for a queue that is not strict
# and that no pod names.
QUEUE_ORDER_READERS: dict[str, Callable[[Object], QueueOrder | None]] = {
    "/apis/kueue.x-k8s.io/v1beta2/clusterqueues": _read_kueue,
    "/apis/scheduling.volcano.sh/v1beta1/queues": _read_volcano,
    "/apis/scheduling.sigs.k8s.io/v1alpha1/elasticquotas": _read_koordinator,
    "/apis/scheduling.x-k8s.io/v1alpha1/elasticquotas": _read_elastic,
}


class StrictQueues:
    """The queues with strict order: those that an admin named, and those whose object sets it."""

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        """Make an empty table. named: the names that an admin listed, each QUEUE or NAMESPACE/QUEUE."""
        self._named = named
        self._by_path: dict[str, QueueOrder] = {}  # by the path of the object
        self._local: dict[str, str] = {}  # namespace/name of a LocalQueue -> unique name of its ClusterQueue
        self._strict: frozenset[str] = frozenset()  # unique names
        self._by_name: dict[str, list[QueueOrder]] = {}  # by the name that pods use
        self._by_namespace: dict[str, str] = {}  # unique names, by the namespace of pods that name no queue

    def put(self, object_path: str, queue_order: QueueOrder | None) -> bool:
        """Add or replace the queue of one object; None removes it. Return True if the table has changed.

        object_path: the URL path of the object, by which a later call replaces or removes the queue. A queue that is
        not strict and that no admin named is not stored: its changes must not make plans invalid.
        """
        if queue_order is not None and not queue_order.is_strict and self._named.isdisjoint(queue_order.names):
            queue_order = None
        if self._by_path.get(object_path) == queue_order:
            return False
        if queue_order is None:
            del self._by_path[object_path]
        else:
            self._by_path[object_path] = queue_order
        queues = [self._by_path[path] for path in sorted(self._by_path)]
        self._strict = frozenset(each.queue for each in queues if each.is_strict)
        self._by_name = {}
        for each in queues:
            for name in each.names:
                self._by_name.setdefault(name, []).append(each)
        self._by_namespace = {name: each.queue for each in queues for name in each.namespaces}
        return True

    def set_cluster_queue(self, local_queue: str, cluster_queue: str) -> bool:
        """Set the ClusterQueue to which a LocalQueue leads, and return True if it changed.

        local_queue: namespace/name. cluster_queue: the name of the ClusterQueue, which need not be strict; "" removes
        the LocalQueue.
        """
        queue = f"{QueueDialect.KUEUE.value}/{cluster_queue}" if cluster_queue else ""
        if self._local.get(local_queue, "") == queue:
            return False
        if queue:
            self._local[local_queue] = queue
        else:
            del self._local[local_queue]
        return True

    def of(self, namespace_name: str, queue: str) -> str:
        """Return the strict queue in which a gang of a namespace waits: as the admin wrote it, else by its unique name,
        as in volcano/NAME; "" if it waits in none.

        queue: the name on its pods. If it is "", the result is the strict queue that pays for the namespace. A
        LocalQueue stands for its ClusterQueue if that is strict. Else a strict queue of another dialect with the same
        name counts, so that no tenant can leave a strict order by a LocalQueue of that name. A queue whose object does
        not admit the namespace does not count, also if an admin named QUEUE, so that no tenant can block another
        tenant's queue. Of several objects of one name, one that admits the namespace is enough: otherwise an object of
        one tenant could take the queue from others. NAMESPACE/QUEUE of an admin always counts. A QUEUE of an admin that
        no object has is open to every namespace.
        """
        if not queue:
            return self._by_namespace.get(namespace_name, "")
        if f"{namespace_name}/{queue}" in self._named:
            return f"{namespace_name}/{queue}"
        objects = self._by_name.get(queue, [])
        granting = [each for each in objects if each.admits(namespace_name)]
        if queue in self._named and (granting or not objects):
            return queue
        leads_to = self._local.get(f"{namespace_name}/{queue}", "")
        if leads_to in self._strict:
            return leads_to
        return next((each.queue for each in granting if each.is_strict), "")
