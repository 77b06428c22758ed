"""The state that a scheduler knows: nodes in order, what is requested on each, and pods as it reads them.

scheduler.py judges the nodes. Room is charged at the decision, before any watch has shown the binding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from turnout.kube.objects import Container, Node, Pod, Resources
from turnout.kube.pod_shape import PodShape, admits, amount, pod_requests, shape_of

ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
_MAX_SHAPES = 64  # shapes for which the fitting nodes are cached
_SCORED_CPU_MILLI = 100  # assumed by scoring for a container without a CPU request, so that such pods spread
_SCORED_MEMORY_BYTES = 200 * 2**20


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod as a scheduler reads it."""

    uid: str
    namespace: str
    shape: PodShape  # its requests and constraints
    scored_requests: tuple[int, int]  # (milli-CPU, bytes) with defaults for unset requests, for scoring
    priority: int = 0  # a higher one goes first
    nominated: str = ""  # name of the node that it is nominated to, "" for none
    labels: tuple[tuple[str, str], ...] = ()  # (key, value), sorted
    # labels by which its Service, ReplicaSet or StatefulSet selects; None when none selects it
    spread: tuple[tuple[str, str], ...] | None = None
    owner: str = ""  # uid of its first owner, "" for none

    def requested_amount(self, resource: str) -> int:
        """Return how much the pod requests of a resource, in the unit of pod_shape.amount; 0 if it requests none."""
        return next((amount for name, amount in self.shape.requests if name == resource), 0)


def pod_info_of(pod: Pod, spread: tuple[tuple[str, str], ...] | None = None) -> PodInfo:
    """Return a pod as a scheduler reads it.

    spread: the labels by which its Service or set selects pods; None or () if nothing selects it. Raises BadQuantity or
    TooComplex if its requests or affinity cannot be read.
    """
    filled = msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(
            pod.spec,
            containers=[_with_scored_requests(c) for c in pod.spec.containers],
            init_containers=[_with_scored_requests(c) for c in pod.spec.init_containers or ()],
        ),
    )
    requests = dict(pod_requests(filled))
    owners = pod.metadata.owner_references or ()
    return PodInfo(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        shape=shape_of(pod),
        scored_requests=(requests.get("cpu", 0), requests.get("memory", 0)),
        priority=pod.spec.priority or 0,
        nominated=pod.status.nominated_node_name,
        labels=tuple(sorted((pod.metadata.labels or {}).items())),
        spread=spread or None,
        owner=owners[0].uid if owners else "",
    )


def _with_scored_requests(container: Container) -> Container:
    """Return a container with the requests that scoring assumes: CPU and memory have defaults.

    A limit is the default of an absent request.
    """
    given = container.resources or Resources()
    requests: dict[str, str | int | float] = {**(given.limits or {}), **(given.requests or {})}
    requests.setdefault("cpu", f"{_SCORED_CPU_MILLI}m")
    requests.setdefault("memory", _SCORED_MEMORY_BYTES)
    return msgspec.structs.replace(container, resources=Resources(requests=requests))


@dataclass(slots=True)
class NodeInfo:
    """One node with the pods on it."""

    node: Node
    allocatable: dict[str, int]  # resource -> amount that the node offers to pods
    name: str = field(init=False)
    requested: dict[str, int] = field(default_factory=dict)  # resource -> amount that its pods request
    scored_requests: list[int] = field(default_factory=lambda: [0, 0])  # sum of PodInfo.scored_requests of its pods
    pods: dict[str, PodInfo] = field(default_factory=dict)  # by uid

    def __post_init__(self) -> None:
        """Keep the node's name in a field, since it is read very often."""
        self.name = self.node.metadata.name

    def label(self, key: str) -> str | None:
        """Return the value of a node label, None without it."""
        return (self.node.metadata.labels or {}).get(key)

    def charge(self, pod_info: PodInfo) -> None:
        """Charge a pod to this node, and list it in `pods`. It must not be charged already."""
        self._change_sums(pod_info, 1)
        self.pods[pod_info.uid] = pod_info

    def release(self, pod_info: PodInfo) -> None:
        """Release the room of a charged pod. Raises KeyError, after the sums are changed, if it was not charged."""
        self._change_sums(pod_info, -1)
        del self.pods[pod_info.uid]

    def _change_sums(self, pod_info: PodInfo, sign: int) -> None:
        """Add a pod's requests to the sums of this node, or subtract them. sign: 1 or -1."""
        for resource, quantity in pod_info.shape.requests:
            self.requested[resource] = self.requested.get(resource, 0) + sign * quantity
        for at in (0, 1):
            self.scored_requests[at] += sign * pod_info.scored_requests[at]

    def has_room(self, pod_info: PodInfo, nominated: tuple[PodInfo, ...] = ()) -> bool:
        """Return True if kube-scheduler's filters let the pod run on this node: node labels, taints, readiness,
        resources and host ports.

        nominated: pods that count as if they ran here. In a real cluster the node controller expresses readiness by
        taints.
        """
        if not admits(self.node, pod_info.shape):
            return False
        for resource, quantity in pod_info.shape.requests:
            used = self.requested.get(resource, 0) + sum(other.requested_amount(resource) for other in nominated)
            if quantity > self.allocatable.get(resource, 0) - used:
                return False
        ports = {port for other in (*self.pods.values(), *nominated) for port in other.shape.host_ports}
        return ports.isdisjoint(pod_info.shape.host_ports)


class Cluster:
    """The nodes in the order in which a scheduler looks at them, and the pods that are placed or nominated."""

    def __init__(self) -> None:
        self.node_infos: dict[str, NodeInfo] = {}
        self._nominated: dict[str, PodInfo] = {}  # by pod uid: waiting pods that name a node
        self._where: dict[str, str] = {}  # uid of a placed pod -> node
        self._order: list[NodeInfo] | None = None
        self._numbers: dict[str, int] = {}  # node -> its place in the order
        self._fits: dict[PodShape, _Fits] = {}

    def put_node(self, node: Node) -> None:
        """Add or update a node; the pods on it stay. Raises BadQuantity, with nothing stored, for an amount that
        cannot be read.
        """
        allocatable = {name: amount(name, q) for name, q in (node.status.allocatable or {}).items()}
        node_info = self.node_infos.get(node.metadata.name)
        if node_info is None:
            self.node_infos[node.metadata.name] = NodeInfo(node, allocatable)
        else:
            node_info.node, node_info.allocatable = node, allocatable
        self._order = None

    def drop_node(self, name: str) -> None:
        """Remove a node and the pods on it. Do nothing for an unknown node."""
        node_info = self.node_infos.pop(name, None)
        for uid in node_info.pods if node_info else ():
            self._where.pop(uid, None)
        self._order = None

    def place(self, pod_info: PodInfo, node: str) -> None:
        """Charge a pod to a node, and forget its nomination; a pod that had another node is moved.

        For an unknown node the pod is charged to no node. Do nothing if the pod is charged to this node already.
        """
        if self._where.get(pod_info.uid) == node:
            return
        self.remove(pod_info.uid)
        if node in self.node_infos:
            self.node_infos[node].charge(pod_info)
            self._where[pod_info.uid] = node
            self._mark_changed(node)

    def remove(self, uid: str) -> None:
        """Release the room and the nomination of a pod. Do nothing for an unknown pod. uid: of the pod."""
        self._nominated.pop(uid, None)
        node = self._where.pop(uid, None)
        if node is not None:
            node_info = self.node_infos[node]
            node_info.release(node_info.pods[uid])
            self._mark_changed(node)

    def nominate(self, pod_info: PodInfo) -> None:
        """Record the node that a waiting pod is nominated to, or that it is nominated to none any more. The node may
        be unknown.
        """
        if pod_info.nominated:
            self._nominated[pod_info.uid] = pod_info
        else:
            self._nominated.pop(pod_info.uid, None)

    @property
    def has_nominated(self) -> bool:
        """True if any waiting pod names a node."""
        return bool(self._nominated)

    def nominated_pods(self, node: str, pod_info: PodInfo) -> tuple[PodInfo, ...]:
        """Return the pods that are nominated to a node, and for which `pod_info` must leave room: those of its priority
        or above.

        node: its name. `pod_info` itself is left out.
        """
        return tuple(
            other
            for other in self._nominated.values()
            if other.nominated == node and other.uid != pod_info.uid and other.priority >= pod_info.priority
        )

    def order(self) -> list[NodeInfo]:
        """Return the nodes in the order in which kube-scheduler looks at them: one node of each zone in turn.

        Within a zone the node that was added first comes first. The list is cached until a node changes: do not change
        it.
        """
        if self._order is None:
            zones: dict[tuple[str | None, str | None], list[NodeInfo]] = {}
            for node_info in self.node_infos.values():
                key = (node_info.label("topology.kubernetes.io/region"), node_info.label(ZONE))
                zones.setdefault(key, []).append(node_info)
            longest = max(map(len, zones.values()), default=0)
            self._order = [zone[i] for i in range(longest) for zone in zones.values() if i < len(zone)]
            self._numbers = {node_info.name: number for number, node_info in enumerate(self._order)}
            self._fits.clear()
        return self._order

    def fits(self, pod_info: PodInfo) -> Sequence[bool]:
        """Return for every node, in the order of order(), True if the filters let the pod in.

        Nominated pods are ignored. The list is cached by shape and computed again only for nodes that have changed,
        because a cluster has few shapes: do not change it.
        """
        order = self.order()
        known = self._fits.get(pod_info.shape)
        if known is None:
            if len(self._fits) >= _MAX_SHAPES:
                del self._fits[next(iter(self._fits))]
            known = self._fits[pod_info.shape] = _Fits([False] * len(order), set(range(len(order))))
        for number in known.stale:
            known.fit[number] = order[number].has_room(pod_info)
        known.stale.clear()
        return known.fit

    def _mark_changed(self, node: str) -> None:
        """Mark a node whose room has changed, so that every known pod shape checks it again. Do nothing for an
        unknown node.
        """
        number = self._numbers.get(node)
        if self._order is not None and number is not None:
            for known in self._fits.values():
                known.stale.add(number)


@dataclass(slots=True)
class _Fits:
    """The nodes that hold a shape, and the nodes that have changed since."""

    fit: list[bool]  # by the place of the node in the order
    stale: set[int]  # places of nodes that have changed
