"""A cluster for the table of wishes: the real extender from the bytes of a question to the bytes of its answer.

Two spines of three leaves of four hosts with 8 GPUs, named s0l0h0 and so on, and labelled as Kueue's and KAI's examples
label racks and blocks. Nodes, pods and PodGroups are put in as a watch shows them.
"""

import json

import msgspec

from hack.controlplane.nodes import gpu_node
from tests.kit.clock import ManualClock
from tests.scheduler_ext.shown import ShownExtender
from turnout.jobs.gang import Dialect
from turnout.kube.objects import Node, Owner, Pod, PodGroup
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.requests import Dispatcher, Verb
from turnout.topology.fabric import build
from turnout.topology.model import MapEntry

RACK, BLOCK = "cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"
HOSTS = [f"s{spine}l{leaf}h{host}" for spine in range(2) for leaf in range(3) for host in range(4)]
GPU = "nvidia.com/gpu"


class Stage:
    """The extender, and the pods that it was asked about."""

    def __init__(self, busy=(), soft=(), unlabelled=()):
        self.told, self.placed, self.refused, self.free = [], {}, {}, {}
        self.clock, metrics = ManualClock(), Metrics()
        self.view = ShownExtender(Rules(), self.clock, metrics, self.told.append)
        self.dispatcher = Dispatcher(self.view, metrics)
        for name in HOSTS:
            labels = {} if name in unlabelled else {RACK: name[:4], BLOCK: name[:2]}
            labels["pool"] = "reserved" if name in soft else "common"
            self.view.view.layout.put_node(msgspec.convert(gpu_node(name, "", labels=labels), Node))
            self.free[name] = 8
        self.view.use_map(build(MapEntry(name, (name[:2], name[:4]), at + 1) for at, name in enumerate(HOSTS)))
        for name, gpus in dict(busy).items():
            self.free[name] -= gpus
            self.view.put_pod(msgspec.convert(pod(f"there-{name}", gpus, at=name), Pod))

    def group(self, raw, dialect=Dialect.VOLCANO):
        """Show a PodGroup, or a Job, as its user wrote it."""
        if raw["kind"] == "Job":
            self.view.view.groups.put_owner("Job", msgspec.convert(raw, Owner))
        else:
            self.view.view.groups.put_group(dialect, msgspec.convert(raw, PodGroup))

    def show(self, raw):
        """Show a pod as it is."""
        self.view.put_pod(msgspec.convert(raw, Pod))

    def leave(self, name):
        """A pod is gone, and the host that it filled is free."""
        self.view.drop_pod(f"uid-{name}")
        self.free[name.removeprefix("there-")] = 8

    def leave_pod(self, name):
        """A pod that was placed is gone, and its host is free again."""
        self.view.drop_pod(f"uid-{name}")
        self.free[self.placed.pop(name)] = 8

    def schedule(self, pods, verb=Verb.FILTER):
        """Show all pods, then ask about each as a scheduler does, and bind it where the answer leaves one node."""
        for each in pods:
            self.view.put_pod(msgspec.convert(each, Pod))
        for each in pods:
            self.clock.now_s += 0.01
            name, gpus = each["metadata"]["name"], gpus_of(each)
            if name in self.placed:
                continue
            names = [host for host in HOSTS if self.free[host] >= gpus]
            answer = self._asked(verb, {"Pod": each, "Nodes": None, "NodeNames": names})
            if len(answer) != 1:
                self.refused[name] = len(answer)
                continue
            self.placed[name] = answer[0]
            self.free[answer[0]] -= gpus
            bound = {**each, "spec": {**each["spec"], "nodeName": answer[0]}}
            self.view.put_pod(msgspec.convert(bound, Pod))
        return self.placed

    def ask(self, pod_object):
        """The nodes that filter keeps for a pod, of all hosts."""
        return self._asked(Verb.FILTER, {"Pod": pod_object, "Nodes": None, "NodeNames": HOSTS})

    def _asked(self, verb, question):
        """The nodes that filter keeps, or those that prioritize scores highest."""
        body = json.loads(self.dispatcher.answer(verb, json.dumps(question).encode()).body)
        if verb is Verb.FILTER:
            return body["NodeNames"] or []
        best = max((each["Score"] for each in body), default=0)
        return [each["Host"] for each in body if each["Score"] == best > 0]


def gpus_of(raw_pod):
    """The GPUs that a pod asks the device plugin for."""
    return int(raw_pod["spec"]["containers"][0]["resources"]["requests"].get(GPU, 0))


def pod(name, gpus=8, notes=None, marks=None, owner="", at="", **spec):
    """A pod as the API server shows it."""
    asks = {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "annotations": notes or {},
        "labels": marks or {},
    }
    if owner:
        kind, name_of_owner = owner.split("/")
        meta["ownerReferences"] = [
            {"kind": kind, "name": name_of_owner, "uid": f"uid-{name_of_owner}", "controller": True}
        ]
    container = {"name": "main", "resources": {"requests": asks, "limits": asks}}
    spec = {"schedulerName": "default-scheduler", "containers": [container], "nodeName": at, **spec}
    return {"metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec}
