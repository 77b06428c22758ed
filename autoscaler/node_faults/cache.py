"""Keep what the watches have shown of nodes and of pods' reports on them. A node without a report costs one bit.

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
    NodeEntry,
    NodeObservation,
    NodeStep,
    PodReport,
    Record,
    read_record,
)
from turnout.kube import labels, node_health
from turnout.kube.errors import KubeError
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import amount

MAX_DELETED_PODS = 1_000  # deleted pods whose report is kept


class FaultReportCache:
    """The nodes and the reports of pods on them, as the watches have shown them.

    key: of the taint. gpus: the resources that count as a GPU. news: called when there may be something to decide.
    faults: why the record of a node cannot be read, by node.
    """

    def __init__(self, key: str, gpus: Gpus, news: Callable[[], None] = lambda: None) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._key, self._gpus, self._news = key, gpus, news
        self._nodes: dict[str, NodeEntry] = {}
        self._notable: set[str] = set()  # names of nodes with our taint or a record
        self._gpu_nodes = 0  # number of nodes with GPUs
        # By the pod's uid, with the text that it was read from.
        self._pod_reports: dict[str, tuple[str, PodReport]] = {}
        self._deleted_pods: dict[str, None] = {}  # uids, the first deleted first
        self.faults: dict[str, str] = {}

    def put_node(self, node: Node) -> None:
        """Store a node with its record. A record that cannot be read goes to `faults`, and counts as none.

        Call `news` if the node has changed, and has a taint with our key or a record now.
        """
        name, before = node.metadata.name, self._nodes.get(node.metadata.name)
        tainted = any(taint.key == self._key for taint in node.spec.taints or ())
        entry = NodeEntry(node.metadata.uid, self._has_gpus(node), tainted, self._read_record(node))
        self._count_gpu_node(before, -1)
        self._count_gpu_node(entry, 1)
        self._nodes[name] = entry
        notable = tainted or entry.record is not None
        (self._notable.add if notable else self._notable.discard)(name)
        if notable and entry != before:
            self._news()

    def drop_node(self, name: str) -> None:
        """Drop a deleted node, by its name, and the reports on it. An unknown node is ignored."""
        self._count_gpu_node(self._nodes.pop(name, None), -1)
        self._notable.discard(name)
        self.faults.pop(name, None)
        for uid in [uid for uid, (_, pod_report) in self._pod_reports.items() if pod_report.node == name]:
            self._forget(uid)

    def put_pod(self, pod: Pod) -> None:
        """Store the report of a pod, and call `news` if it may decide something.

        A pod without a report is ignored; an earlier report of it stays. An unreadable report is stored with its
        `fault`.
        """
        text = (pod.metadata.annotations or {}).get(labels.NODE_VERDICT)
        before = self._pod_reports.get(pod.metadata.uid)
        if text is None or (before is not None and before[0] == text and before[1].node == pod.spec.node_name):
            return
        pod_report = _decode_pod_report(pod, text)
        self._pod_reports[pod.metadata.uid] = text, pod_report
        is_fine = pod_report.report is not None and pod_report.report.kind is node_health.CheckResult.FINE
        if not is_fine or pod_report.node in self._notable:  # a passed check on an unremarkable node decides nothing
            self._news()

    def drop_pod(self, uid: str) -> None:
        """Note that a pod was deleted. Its report is kept until it is stale, for at most MAX_DELETED_PODS pods.

        Beyond that the pod that was deleted first is forgotten. A pod without a report is ignored.
        """
        if uid in self._pod_reports:
            self._deleted_pods[uid] = None
            while len(self._deleted_pods) > MAX_DELETED_PODS:
                self._forget(next(iter(self._deleted_pods)))

    def forget(self, before_s: float) -> None:
        """Drop the readable reports from before a time, in seconds since 1970, which are stale. Unreadable ones
        stay.
        """
        for uid in [
            uid
            for uid, (_, pod_report) in self._pod_reports.items()
            if pod_report.report and pod_report.report.at_s < before_s
        ]:
            self._forget(uid)

    def state(self, written_steps: Mapping[str, NodeStep]) -> NodeObservation:
        """Return the nodes with our taint, a record or a report, and all reports.

        written_steps: node -> step that was written and may not be shown by the watch yet; it counts as shown.
        """
        pod_reports = tuple(pod_report for _, pod_report in self._pod_reports.values())
        names = self._notable | {pod_report.node for pod_report in pod_reports} | written_steps.keys()
        nodes = {name: self._nodes[name] for name in sorted(names) if name in self._nodes}
        for name in nodes.keys() & written_steps.keys():
            nodes[name] = replace(nodes[name], record=written_steps[name].record, tainted=written_steps[name].taints)
        return NodeObservation(nodes, pod_reports, self._gpu_nodes, sum(each.tainted for each in nodes.values()))

    def is_shown(self, step: NodeStep) -> bool:
        """Return True if the watch shows a node as this step has written it, or if the node was deleted."""
        entry = self._nodes.get(step.node)
        return entry is None or (entry.record, entry.tainted) == (step.record, step.taints)

    def _read_record(self, node: Node) -> Record | None:
        """Return the fault record in a node's annotation; None without a record, or if it cannot be read.

        A record that cannot be read is noted in `faults`; a readable or missing record is removed from there.
        """
        name, text = node.metadata.name, (node.metadata.annotations or {}).get(labels.NODE_RECORD)
        self.faults.pop(name, None)
        if text is None:
            return None
        try:
            return read_record(text)
        except BadNodeRecord as error:
            self.faults[name] = str(error)
            return None

    def _has_gpus(self, node: Node) -> bool:
        """Return True if a node has GPUs in its allocatable or capacity: it has them, or had them before a fault.

        An amount that cannot be read counts as none.
        """
        for offered, gpu in product((node.status.allocatable, node.status.capacity), self._gpus):
            try:
                if amount(gpu, (offered or {}).get(gpu, 0)) > 0:
                    return True
            except KubeError:
                continue  # an invalid amount counts as none
        return False

    def _count_gpu_node(self, entry: NodeEntry | None, sign: int) -> None:
        """Add a node to the number of GPU nodes, or remove it, if it has GPUs. entry: None changes nothing.

        sign: 1 to add, -1 to remove.
        """
        if entry is not None and entry.gpus:
            self._gpu_nodes += sign

    def _forget(self, uid: str) -> None:
        """Forget the report of a pod by its uid."""
        self._pod_reports.pop(uid, None)
        self._deleted_pods.pop(uid, None)


def _decode_pod_report(pod: Pod, text: str) -> PodReport:
    """Return a pod's report on its node. text: the annotation NODE_VERDICT.

    If it is unreadable, `report` is None and `fault` says why.
    """
    meta = pod.metadata
    owners = meta.owner_references or ()
    owner = next((each.uid for each in owners if each.controller), meta.uid)
    name = f"{meta.namespace}/{meta.name}"
    try:
        return PodReport(name, meta.uid, owner, pod.spec.node_name, node_health.decode_report(text))
    except node_health.BadNodeReport as error:
        return PodReport(name, meta.uid, owner, pod.spec.node_name, None, str(error))
