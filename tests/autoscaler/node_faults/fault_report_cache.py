"""A cluster of nodes that a plan is carried out on, as the API server would show it to a leader that has just begun."""

from __future__ import annotations

import json

from turnout.autoscaler.node_faults import model
from turnout.autoscaler.node_faults.cache import FaultReportCache
from turnout.autoscaler.node_faults.model import TaintRules
from turnout.autoscaler.node_faults.taint_policy import plan_taints
from turnout.kube import labels, node_health
from turnout.kube.node_health import CheckResult, NodeReport, utc_datetime
from turnout.kube.objects import Node, NodeSpec, NodeStatus, ObjectMeta, OwnerReference, Pod, PodSpec, Taint

GPU = "nvidia.com/gpu"
START_S = 1_800_000_000.0


class Cluster:
    """Nodes n0, n1, … with GPUs. now_s: is moved by hand."""

    def __init__(self, nodes=20, gpus=8, **rules):
        self.rules, self.now_s = TaintRules(**rules), START_S
        self.tainted, self.notes, self.gpus = set(), {}, {f"n{at}": gpus for at in range(nodes)}
        self.pods = {}
        self.words = []

    def says(self, pod, host, kind=CheckResult.FAULTY, *, team="team", owner=None, ago_s=0.0, text=None, **more):
        """A pod of a namespace that the API server has bound to this node says so."""
        report = NodeReport(kind, utc_datetime(self.now_s - ago_s), 1, "w0", **more)
        notes = {labels.NODE_VERDICT: node_health.encode_report(report) if text is None else text}
        owners = [OwnerReference(uid=owner, controller=True)] if owner else None
        meta = ObjectMeta(pod, team, f"uid-{pod}", annotations=notes, owner_references=owners)
        self.pods[pod] = Pod(metadata=meta, spec=PodSpec(node_name=host))
        return self

    def node(self, name):
        meta = ObjectMeta(name, uid=f"uid-{name}", annotations=self.notes.get(name))
        taints = [Taint(self.rules.key, "true", "NoSchedule")] if name in self.tainted else None
        return Node(meta, NodeSpec(taints=taints), NodeStatus(allocatable={GPU: str(self.gpus[name])}))

    def cache(self):
        """All of it, seen for the first time."""
        cache = FaultReportCache(self.rules.key, (GPU,))
        for name in self.gpus:
            cache.put_node(self.node(name))
        for pod in self.pods.values():
            cache.put_pod(pod)
        return cache

    def plan(self):
        return plan_taints(self.cache().state({}), self.rules, self.now_s)

    def look(self, after_s=0.0):
        """A leader that knows nothing but what the cluster shows decides, and does it."""
        self.now_s += after_s
        plan = self.plan()
        for step in plan.steps:
            (self.tainted.add if step.taints else self.tainted.discard)(step.node)
            self.notes[step.node] = {labels.NODE_RECORD: model.record_text(step.record)} if step.record else {}
        self.words += [(each.pod_report.node, each.reason.value) for each in plan.ineffective_reports]
        self.words += [(step.node, step.reason.value) for step in plan.steps]
        return plan

    def record(self, name):
        text = (self.notes.get(name) or {}).get(labels.NODE_RECORD)
        return text and model.read_record(text)

    def free(self, name):
        """Remove the taint, as kubectl taint does."""
        self.tainted.discard(name)
        return self

    def last(self):
        return self.words[-1] if self.words else None


def garbage(**change):
    """A report with something in it that is none."""
    document = json.loads(node_health.encode_report(NodeReport(CheckResult.FAULTY, utc_datetime(START_S), 1, "w0")))
    return json.dumps({**document, **change})
