"""The objects of the story: nodes under two leaves, a queue, the job that trains, a rigid job that comes and goes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.kube import labels
from turnout.simulator.cluster.kubelet import RUNS_FOR
from turnout.simulator.cluster.node_builder import GPU, NodeSpec, map_text
from turnout.topology.names import TEXT_KEY

NAMESPACE, QUEUE, JOB, LEASE = "team", "team", "train", "train"
MAP_NAMESPACE, MAP_NAME = "turnout-system", "node-topology-config"
NODES, NODES_PER_LEAF, QUEUE_GPUS = 4, 2, 3
MIN_WORKERS, MAX_WORKERS = 1, 3  # workers of the job, a GPU each
MARK = "HISTORY_HOME"  # by which processes of a pod are known on this machine: its UID
TRAIN_SCRIPT = Path(__file__).parents[1] / "train_script.py"
ROOT = Path(__file__).parents[3]

LEASE_S, COOLDOWN_S = 3.0, 1.0  # by default 15 s and 600 s

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The launcher's timeouts, in seconds."""

    heartbeat_s: float  # between two heartbeats of either side
    silence_s: float  # without a heartbeat, until a side is given up
    last_call_s: float  # for which a world that may begin waits for more members
    drain_s: float  # from a worker's SIGTERM to its end


SHORT = Clocks(0.5, 3.0, 1.0, 15.0)  # so that a death is noticed in seconds
USUAL = Clocks(2.0, 10.0, 30.0, 25.0)  # the launcher's defaults


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is trained."""

    samples: int = 96
    batch: int = 16
    epochs: int = 150
    pace_s: float = 0.1  # shortest time of a step at first; later steps take longer (train_script.py)

    @classmethod
    def of(cls, faults: int) -> Plan:
        """Return a plan with enough epochs for this number of faults, on a machine that is busy with other work."""
        return cls(epochs=15 * faults + 20)

    @property
    def steps(self) -> int:
        """Return the number of steps of the whole job."""
        return self.epochs * -(-self.samples // self.batch)


def node_places() -> list[NodeSpec]:
    """Return the NODES nodes with their addresses and switches: NODES_PER_LEAF consecutive nodes share a leaf."""
    return [
        NodeSpec(f"gpu-{number + 1}", f"10.40.0.{number + 1}", ("spine-1", f"leaf-{number // NODES_PER_LEAF + 1}"))
        for number in range(NODES)
    ]


def topology_map() -> Raw:
    """Return the ConfigMap with the topology map of all nodes."""
    return {"metadata": {"name": MAP_NAME}, "data": {TEXT_KEY: map_text(node_places())}}


def queue() -> Raw:
    """Return the queue that both jobs are in."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": QUEUE},
        "spec": {"weight": 1, "reclaimable": True, "capability": {GPU: str(QUEUE_GPUS)}},
        "status": {"state": "Open"},
    }


def lease() -> Raw:
    """Return the Lease that arbitrates the rounds of the job."""
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}}


def trainer(home: Path, workers: int = MIN_WORKERS, clocks: Clocks = SHORT) -> Raw:
    """Return the elastic job that trains. home: folder of its history and logs. workers: at first, MIN_WORKERS to
    MAX_WORKERS.

    clocks: of the launcher.
    """
    command = [
        *("sh", "-c", 'exec "$@" >>"$AGENT_LOG" 2>&1', "agent"),
        *(sys.executable, "-m", "turnout.launcher", "--rdzv-backend=turnout"),
        *(f"--rdzv-id={JOB}", f"--lease={NAMESPACE}/{LEASE}"),
        *(f"--nnodes={MIN_WORKERS}:{MAX_WORKERS}", "--nproc-per-node=1", "--max-restarts=100", "--log-format=json"),
        *(f"--heartbeat-s={clocks.heartbeat_s:g}", f"--silence-s={clocks.silence_s:g}"),
        *(f"--last-call-s={clocks.last_call_s:g}", f"--drain-grace-s={clocks.drain_s:g}", str(TRAIN_SCRIPT), str(home)),
    ]
    fields = {
        MARK: "metadata.uid",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
        "NODE_NAME": "spec.nodeName",
    }
    env: list[Raw] = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
    env += [{"name": "AGENT_LOG", "value": f"{home}/logs/$(POD_NAME).log"}]
    env += [{"name": "PYTHONPATH", "value": str(ROOT)}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    container = {"name": "train", "image": "train", "command": command, "env": env}
    # A container that ends with an error starts again beside its memory, as a kubelet does it.
    spec = {"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": int(clocks.drain_s) + 5}
    job = _job(JOB, MIN_WORKERS, container, spec, {labels.MAX_WORKERS: str(MAX_WORKERS)})
    job["spec"]["tasks"][0]["replicas"] = workers
    return job


def rival(number: int, workers: int, lasts_s: float) -> Raw:
    """Return a rigid job of `workers` workers, whose pods run no process and complete after `lasts_s` seconds.

    number: of the job, in its name.
    """
    return _job(f"rigid-{number}", workers, {"name": "work", "image": "work"}, {}, {}, {RUNS_FOR: f"{lasts_s:g}"})


def idle(name: str, workers: int, notes: Raw) -> Raw:
    """Return a job of `workers` workers, whose pods run no process until the job is deleted. notes: its annotations."""
    return _job(name, workers, {"name": "work", "image": "work"}, {}, notes)


def _job(name: str, minimum: int, container: Raw, spec: Raw, notes: Raw, pod_notes: Raw | None = None) -> Raw:
    """Return a Volcano job with one task, whose workers have one GPU each.

    minimum: number of workers, all of them required. spec: further fields of the pods. notes, pod_notes: annotations.
    container: without resources.
    """
    container = {**container, "resources": {"limits": {GPU: "1"}}}
    task = {
        "name": "worker",
        "replicas": minimum,
        "minAvailable": minimum,
        "template": {"metadata": {"annotations": pod_notes or {}}, "spec": {**spec, "containers": [container]}},
    }
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"minAvailable": minimum, "queue": QUEUE, "plugins": {"env": []}, "tasks": [task]},
    }
