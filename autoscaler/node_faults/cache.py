"""Keeps what the watches have shown of nodes and of pods' reports on them. A node without a report costs one bit.

A pod that has reported may be deleted at once, as the pods of a failed worker are. Its report is kept until it is
stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

from turnout.autoscaler.model import Gpus
from turnout.autoscaler.node_faults.model import (
    BadNodeRecord,
    FaultClaim,
    NodeEntry,
    NodeObservation,
    NodeStep,
    Record,
    read,
)
from turnout.kube import labels, node_health
from turnout.kube.errors import KubeError
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import amount

MAX_DELETED_PODS = 1_000  # deleted pods whose claim is kept


class FaultReportCache:
    """Changed by the watches. news: called when there may be something to decide.

    faults: records that cannot be read, by node.
    """

    def __init__(self, key: str, gpus: Gpus, news: Callable[[], None] = lambda: None) -> None:
        self._key, self._gpus, self._news = key, gpus, news
        self._nodes: dict[str, NodeEntry] = {}
        self._notable: set[str] = set()
        self._gpu_nodes = 0
        self._claims: dict[str, tuple[str, FaultClaim]] = {}  # by the pod's uid, with the text that it was read from
        self._deleted_pods: dict[str, None] = {}
        self.faults: dict[str, str] = {}

    def put_node(self, node: Node) -> None:
        """Store a node."""
        name, before = node.metadata.name, self._nodes.get(node.metadata.name)
        tainted = any(taint.key == self._key for taint in node.spec.taints or ())
        entry = NodeEntry(node.metadata.uid, self._has_gpus(node), tainted, self._record(node))
        self._count(before, -1)
        self._count(entry, 1)
        self._nodes[name] = entry
        notable = tainted or entry.record is not None
        (self._notable.add if notable else self._notable.discard)(name)
        if notable and entry != before:
            self._news()

    def drop_node(self, name: str) -> None:
        """Drop a deleted node and the reports on it."""
        self._count(self._nodes.pop(name, None), -1)
        self._notable.discard(name)
        self.faults.pop(name, None)
        for uid in [uid for uid, (_, claim) in self._claims.items() if claim.node == name]:
            self._forget(uid)

    def put_pod(self, pod: Pod) -> None:
        """Store the report of a pod, if it has one."""
        text = (pod.metadata.annotations or {}).get(labels.NODE_VERDICT)
        had = self._claims.get(pod.metadata.uid)
        if text is None or (had is not None and had[0] == text and had[1].node == pod.spec.node_name):
            return
        claim = _claim(pod, text)
        self._claims[pod.metadata.uid] = text, claim
        fine = claim.verdict is not None and claim.verdict.kind is node_health.CheckResult.FINE
        if not fine or claim.node in self._notable:  # thousands that are fine are no news
            self._news()

    def drop_pod(self, uid: str) -> None:
        """Note that a pod was deleted. Its report is kept for a while."""
        if uid in self._claims:
            self._deleted_pods[uid] = None
            while len(self._deleted_pods) > MAX_DELETED_PODS:
                self._forget(next(iter(self._deleted_pods)))

    def forget(self, before_s: float) -> None:
        """Drop the reports from before this time, which are stale."""
        for uid in [uid for uid, (_, claim) in self._claims.items() if claim.verdict and claim.verdict.at_s < before_s]:
            self._forget(uid)

    def state(self, wrote: Mapping[str, NodeStep]) -> NodeObservation:
        """Return nodes and claims. wrote: what was written on nodes and may not have been shown yet."""
        claims = tuple(claim for _, claim in self._claims.values())
        names = self._notable | {claim.node for claim in claims} | wrote.keys()
        nodes = {name: self._nodes[name] for name in sorted(names) if name in self._nodes}
        for name in nodes.keys() & wrote.keys():
            nodes[name] = replace(nodes[name], record=wrote[name].record, tainted=wrote[name].taints)
        return NodeObservation(nodes, claims, self._gpu_nodes, sum(each.tainted for each in nodes.values()))

    def is_shown(self, step: NodeStep) -> bool:
        """Return True if the watch shows the node as this step has written it, or the node was deleted."""
        entry = self._nodes.get(step.node)
        return entry is None or (entry.record, entry.tainted) == (step.record, step.taints)

    def _record(self, node: Node) -> Record | None:
        """Return the record on a node. One that cannot be read is noted as a fault and counts as none."""
        name, text = node.metadata.name, (node.metadata.annotations or {}).get(labels.NODE_RECORD)
        self.faults.pop(name, None)
        if text is None:
            return None
        try:
            return read(text)
        except BadNodeRecord as error:
            self.faults[name] = str(error)
            return None

    def _has_gpus(self, node: Node) -> bool:
        """Return True if a node has, or had, GPUs by its allocatable or capacity."""
        for offered, gpu in product((node.status.allocatable, node.status.capacity), self._gpus):
            try:
                if amount(gpu, (offered or {}).get(gpu, 0)) > 0:
                    return True
            except KubeError:
                continue  # an invalid amount counts as none
        return False

    def _count(self, entry: NodeEntry | None, sign: int) -> None:
        if entry is not None and entry.gpus:
            self._gpu_nodes += sign

    def _forget(self, uid: str) -> None:
        self._claims.pop(uid, None)
        self._deleted_pods.pop(uid, None)


def _claim(pod: Pod, text: str) -> FaultClaim:
    """Read a pod's report on its node. A report that cannot be read becomes a claim with a fault and no verdict."""
    meta = pod.metadata
    owners = meta.owner_references or ()
    owner = next((each.uid for each in owners if each.controller), meta.uid)
    name = f"{meta.namespace}/{meta.name}"
    try:
        return FaultClaim(name, meta.uid, owner, pod.spec.node_name, node_health.decode_report(text))
    except node_health.BadNodeReport as error:
        return FaultClaim(name, meta.uid, owner, pod.spec.node_name, None, str(error))
