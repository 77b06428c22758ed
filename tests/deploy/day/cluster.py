"""The cluster of the day: its nodes, queues, map and jobs, with a scheduler and a kubelet that act once a minute."""

from __future__ import annotations

from contextlib import suppress

from tests.kit import cluster as objects
from turnout.kube import labels
from turnout.kube.node_health import CheckResult, NodeReport, encode_report, utc_datetime
from turnout.simulator.api.model import ApiRefusal
from turnout.simulator.cluster.runtime.clients import ExtenderClient
from turnout.simulator.cluster.scheduler import ExtenderCall, ExtenderVerb

MERGE = "application/merge-patch+json"
JOBS = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"
MAP_NAMESPACE = "turnout-system"
GPU = "nvidia.com/gpu"
GATE = [{"name": labels.PLACEMENT_GATE}]


class Cluster:
    """Eight nodes of eight GPUs on four leaves.

    leaving_s: how long the deleted pods of a namespace hold their GPUs, in seconds, by namespace. extender: where the
    scheduler asks; None for nowhere.
    """

    def __init__(self, server, session):
        self.server, self._session = server, session
        self.leaving_s, self.extender = {}, None
        self._deleted_s = {}
        nodes, self.map = objects.make_fabric(4, 2)
        crd = objects.plain_crd("kubeflow.org", "v1", "PyTorchJob", subresources={"status": {}})
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        for name in (MAP_NAMESPACE, "vision", "speech", "audio"):
            server.call("POST", "/api/v1/namespaces", objects.namespace(name))
        for each in nodes:
            server.call("POST", "/api/v1/nodes", each)
        for name, deserved in (("vision", 24), ("speech", 40), ("audio", 0)):
            spec = {"capability": {GPU: "64"}, "deserved": {GPU: str(deserved)}, "reclaimable": True}
            body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
            server.call("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", {**body, "spec": spec})
        server.call(
            "POST",
            f"/api/v1/namespaces/{MAP_NAMESPACE}/configmaps",
            objects.config_map(self.map, namespace=MAP_NAMESPACE),
        )

    # What people do.

    def submit(self, namespace, name, minimum, maximum=None, gpus=8, gated=True, suspended=False, **notes):
        """Create a PyTorchJob of a queue that is named as its namespace."""
        gang = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(minimum), **notes}
        raw = objects.pytorch_job(name, minimum, gpus, namespace, notes=gang, maximum=maximum)
        raw["metadata"]["annotations"] = {labels.QUEUE: namespace}
        raw["spec"]["runPolicy"] = {"suspend": suspended}
        pod = raw["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["terminationGracePeriodSeconds"] = 30
        if gated:
            pod["schedulingGates"] = GATE
        self.server.call("POST", JOBS.format(namespace), raw)

    def delete(self, namespace, name):
        """Delete a job."""
        self.server.call("DELETE", f"{JOBS.format(namespace)}/{name}")

    def edit_map(self, text):
        """Write another map."""
        path = f"/api/v1/namespaces/{MAP_NAMESPACE}/configmaps/node-topology-config"
        self.server.call("PATCH", path, {"data": {"topology_config": text}}, MERGE)

    def plain_pod(self, name, node, gpus, namespace="vision", notes=None, **more):
        """Create a pod that another scheduler has bound."""
        pod = objects.make_pod(name, gpus, namespace, notes=notes, **more)
        pod["spec"]["terminationGracePeriodSeconds"] = 0
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.server.call("POST", path, pod)
        self._bind(pod, node)

    def delete_pod(self, name, namespace="vision"):
        """Delete a pod."""
        self.server.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def report_fault(self, name, namespace="vision", node="", fault=CheckResult.FAULTY):
        """Let a pod report a fault of its node, as its launcher does."""
        report = NodeReport(fault, utc_datetime(self.server.clock.wall()), 1, "w0", node=node)
        notes = {labels.NODE_VERDICT: encode_report(report)}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        self.server.call("PATCH", path, {"metadata": {"annotations": notes}}, MERGE)

    def phase(self, namespace, name, phase, code):
        """End the container of a pod with a code."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        state = {"terminated": {"exitCode": code}}
        status = {"phase": phase, "containerStatuses": [{"name": "pytorch", "restartCount": 0, "state": state}]}
        self.server.call("PATCH", path, {"status": status}, MERGE)

    # What the nodes and the scheduler do.

    def pods(self):
        """Return the pods."""
        return self.server.objects("/api/v1/pods")

    def free(self):
        """Return the free GPUs of each node that takes pods."""
        nodes = self.server.objects("/api/v1/nodes")
        free = {
            each["metadata"]["name"]: int(each["status"]["allocatable"][GPU])
            for each in nodes
            if not each["spec"].get("taints")
        }
        for pod in self.pods():
            node, phase = pod["spec"].get("nodeName"), pod.get("status", {}).get("phase")
            if node in free and phase not in ("Succeeded", "Failed"):
                free[node] -= _gpus(pod)
        return free

    async def minute(self):
        """Schedule the waiting pods, and end those that were deleted."""
        self._remove_leavers()
        if self.extender is None:
            return
        asks = ExtenderClient(self._session, f"http://127.0.0.1:{self.extender.port}")
        waiting = [pod for pod in self.pods() if _is_waiting(pod)]
        for pod in sorted(waiting, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])):
            names = tuple(name for name, free in sorted(self.free().items()) if free >= _gpus(pod))
            reply = await asks.ask(pod, ExtenderCall(ExtenderVerb.FILTER, names))
            if reply.feasible_nodes and not reply.failed:
                scored = await asks.ask(pod, ExtenderCall(ExtenderVerb.PRIORITIZE, reply.feasible_nodes))
                best = max(reply.feasible_nodes, key=lambda name: scored.points.get(name, 0))
                with suppress(ApiRefusal):  # it was deleted meanwhile
                    self._bind(pod, best)

    def _bind(self, pod, node):
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.server.call("POST", f"{path}/binding", {"target": {"name": node}})
        running = {"name": pod["spec"]["containers"][0]["name"], "restartCount": 0, "state": {"running": {}}}
        now = utc_datetime(self.server.clock.wall()).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "startTime": now, "containerStatuses": [running], "conditions": ready}
        self.server.call("PATCH", f"{path}/status", {"status": status}, MERGE)

    def _remove_leavers(self):
        """End the deleted pods whose time is over."""
        now_s = self.server.clock.monotonic()
        for pod in self.pods():
            meta = pod["metadata"]
            if meta.get("deletionTimestamp") is None:
                continue
            if now_s - self._deleted_s.setdefault(meta["uid"], now_s) >= self.leaving_s.get(meta["namespace"], 0.0):
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
                with suppress(ApiRefusal):
                    self.server.call("DELETE", path, {"gracePeriodSeconds": 0})


def _gpus(pod):
    return sum(int(each["resources"].get("requests", {}).get(GPU, 0)) for each in pod["spec"]["containers"])


def _is_waiting(pod):
    spec, meta = pod["spec"], pod["metadata"]
    return not (spec.get("nodeName") or spec.get("schedulingGates") or meta.get("deletionTimestamp"))
