"""Clusters drawn with a seed, as lists of an API server; an autoscaler's first look at one, and a person's."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import yaml

from tests.autoscaler.local_cluster import manifest
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.controller import AutoscalerController
from turnout.autoscaler.controller.event_recorder import DecisionEvents, Refs
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.controller.scale_writer import ScaleWriter
from turnout.autoscaler.settings import Settings
from turnout.jobs.kinds.registry import KINDS
from turnout.kube import labels
from turnout.kube.client.clock import RealClock
from turnout.kube.errors import Forbidden, NotFound

GPU = "nvidia.com/gpu"
JOBS, QUEUES = "/apis/batch.volcano.sh/v1alpha1/jobs", "/apis/scheduling.volcano.sh/v1beta1/queues"
MAPS = "/api/v1/namespaces/turnout-system/configmaps"
SERVED = ("/api/v1/nodes", "/api/v1/pods", JOBS, QUEUES, MAPS, "/apis/scheduling.k8s.io/v1/priorityclasses")
LONG_AGO = "2026-01-01T00:00:00Z"
VIEWER = Path(__file__).parents[3] / "deploy/manifests/autoscaler/base/autoscaler.yaml"


class Served:
    """An API server of lists. may: asked whether a path may be listed with these parameters."""

    def __init__(self, items, may=lambda path, params: True):
        self._items, self._may = items, may

    async def pages(self, path, params=None, *, limit=500):
        if not self._may(path, params or {}):
            raise Forbidden("GET", path, 403, "you may not")
        if path not in SERVED:
            raise NotFound("GET", path, 404, "nobody serves it")
        _, _, name = (params or {}).get("fieldSelector", "").partition("metadata.name=")
        found = [each for each in self._items.get(path, []) if not name or each["metadata"]["name"] == name]
        yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": found}).encode()

    async def watch(self, path, params):
        await asyncio.Event().wait()
        yield b""


def viewer_may():
    """Say what the ClusterRole of a viewer allows, as a function of a path and its parameters."""
    (role,) = (
        each
        for each in yaml.safe_load_all(VIEWER.read_text())
        if each and each["kind"] == "ClusterRole" and each["metadata"]["name"] == "turnout-viewer"
    )

    def may(path, params):
        _, base, *rest = path.split("/")
        group, plural = ("" if base == "api" else rest[0]), rest[-1]
        name = params.get("fieldSelector", "").removeprefix("metadata.name=")
        return any(
            group in rule["apiGroups"]
            and plural in rule["resources"]
            and "list" in rule["verbs"]
            and ("resourceNames" not in rule or name in rule["resourceNames"])
            for rule in role["rules"]
        )

    return may


class Drawn:
    """One cluster: a few nodes under leaves, queues with and without bounds, jobs that run, wait, or cannot start."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.free = {}
        self.items = {path: [] for path in SERVED}
        self._nodes()
        for at in range(self.dice.randint(0, 2)):
            self._queue(f"q{at}")
        self.queues = [each["metadata"]["name"] for each in self.items[QUEUES]] or ["default"]
        for at in range(self.dice.randint(1, 6)):
            self._job(f"job-{at}")
        for at in range(self.dice.randint(0, 2)):
            self._bare(f"gang-{at}")

    def _nodes(self):
        lines = []
        for at in range(self.dice.randint(1, 6)):
            name, ip, gpus = f"n{at}", f"10.0.0.{at + 1}", self.dice.choice([4, 8])
            meta = {"name": name, "uid": name, "resourceVersion": "1", "labels": {labels.HOSTNAME: name}}
            ready = {"type": "Ready", "status": "True" if self.dice.random() < 0.9 else "False"}
            room = {GPU: str(gpus), "cpu": "96", "memory": "1Ti", "pods": "110"}
            status = {"allocatable": room, "conditions": [ready], "addresses": [{"type": "InternalIP", "address": ip}]}
            self.items["/api/v1/nodes"].append({"metadata": meta, "spec": {}, "status": status})
            self.free[name] = gpus
            lines.append(f"asw-{at // 2} psw-0 {ip}")
        if self.dice.random() < 0.7:
            meta = {"name": "node-topology-config", "namespace": "turnout-system", "uid": "m", "resourceVersion": "1"}
            self.items[MAPS].append({"metadata": meta, "data": {"topology_config": "\n".join(lines)}})

    def _queue(self, name):
        spec = {"weight": 1}
        if self.dice.random() < 0.6:
            spec["capability"] = {GPU: str(self.dice.randint(2, 12))}
        meta = {"name": name, "uid": name, "resourceVersion": "1"}
        state = {"state": "Closed" if self.dice.random() < 0.15 else "Open"}
        self.items[QUEUES].append({"metadata": meta, "spec": spec, "status": state})

    def _job(self, name):
        minimum = self.dice.randint(1, 6)
        maximum, gpus = minimum + self.dice.choice([0, 0, 3, 6]), self.dice.choice([1, 1, 2])
        notes = {}
        if self.dice.random() < 0.3:
            notes = {labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: "1"}
        size = self.dice.randint(minimum, maximum)
        raw = manifest(name, minimum, maximum, size, gpus, notes)
        raw["metadata"] |= {"namespace": "default", "uid": name, "resourceVersion": "1", "creationTimestamp": LONG_AGO}
        raw["spec"]["queue"] = self.dice.choice(self.queues)
        raw["spec"]["tasks"][0]["template"]["metadata"] = {"annotations": notes}
        runs = self.dice.random() < 0.6
        raw["status"] = {"state": {"phase": "Running" if runs else "Pending"}}
        self.items[JOBS].append(raw)
        pod_count = size if runs else self.dice.choice([0, minimum, minimum, max(1, minimum - 1)])
        owner = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "name": name,
            "uid": name,
            "controller": True,
        }
        for index in range(pod_count):
            marks = {
                labels.VOLCANO_JOB: name,
                labels.VOLCANO_TASK_SPEC: "w",
                labels.VOLCANO_TASK_INDEX: str(index),
                "volcano.sh/job-namespace": "default",
            }
            self._pod(f"{name}-w-{index}", gpus, runs, labels=marks, annotations=notes, ownerReferences=[owner])

    def _bare(self, name):
        minimum = self.dice.randint(1, 6)
        notes = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(minimum)}
        runs = self.dice.random() < 0.3
        for index in range(self.dice.choice([minimum, minimum, max(1, minimum - 1)])):
            self._pod(f"{name}-{index}", 1, runs, annotations=notes)

    def put_pod(self, name, gpus, **meta):
        """Create one more pod, which waits."""
        self._pod(name, gpus, False, **meta)

    def _pod(self, name, gpus, runs, **meta):
        node = next((node for node, free in self.free.items() if free >= gpus), "") if runs else ""
        if node:
            self.free[node] -= gpus
        asks = {GPU: str(gpus)}
        container = {"name": "m", "image": "i", "resources": {"requests": asks, "limits": asks}}
        pod_status = {
            "name": name,
            "namespace": "default",
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": LONG_AGO,
        }
        spec = {"containers": [container], "schedulerName": "volcano", **({"nodeName": node} if node else {})}
        status = {"phase": "Running" if node else "Pending", "startTime": LONG_AGO}
        self.items["/api/v1/pods"].append({"metadata": {**pod_status, **meta}, "spec": spec, "status": status})


class Recorder:
    """Keeps the newest Event on each object."""

    def __init__(self):
        self.newest = {}

    def emit(self, ref, type_, reason, message, now):
        self.newest[ref.kind, ref.name] = reason


async def events_of(drawn):
    """The newest Event on each object after an autoscaler's first look, which resizes nothing."""
    view, clock = Cache(KINDS), RealClock()
    settings = Settings()
    watched = settings.configmaps()
    informers = AutoscalerInformers(view, Served(drawn.items), KINDS, clock, random.Random(0), watched)
    watching = asyncio.create_task(informers.run())
    try:
        async with asyncio.timeout(30):
            await informers.wait_for_sync()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    recorder, refs = Recorder(), Refs(view)
    metrics = Metrics(settings.gpu_resource, restart_s=settings.restart_s)
    events = DecisionEvents(recorder, refs.job, refs.leaving, metrics)
    writer = ScaleWriter(None, KINDS, lambda: None, events.report_outcome)
    controller = AutoscalerController(view, informers, writer, settings.policy(), clock, events, metrics)
    await controller.look(clock.wall())
    return recorder.newest
