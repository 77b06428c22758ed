"""The cluster of the benchmark and its jobs as objects, and how large a run is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hack.controlplane.nodes import gpu_nodes

Raw = dict[str, Any]
NAMESPACE = "bench"
NODES = 16
JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
OF_JOB = "training.kubeflow.org/job-name"


@dataclass(frozen=True, slots=True)
class WorkloadSize:
    """How much one run of the benchmark does."""

    jobs: int
    workers: int  # pods of each of these jobs
    lost_pods: int  # pods that are deleted one after the other; all pods if there are fewer
    deleted_jobs: int  # jobs that are deleted one after the other, in each of `turns`
    steady_jobs: int  # jobs of one worker each, which need no changes once they run
    steady_s: float  # for which each controller is measured beside these jobs
    times: int = 1  # runs of each controller in `run_trial`
    # Alternating runs of both controllers in `time_deletions`, so that differences of a few ms by the garbage collector
    # average out.
    turns: int = 5

    @property
    def pods(self) -> int:
        """Return the number of pods of all jobs."""
        return self.jobs * self.workers


FULL = WorkloadSize(jobs=500, workers=8, lost_pods=200, deleted_jobs=20, steady_jobs=5000, steady_s=60.0, times=2)
QUICK = WorkloadSize(jobs=40, workers=4, lost_pods=40, deleted_jobs=5, steady_jobs=500, steady_s=15.0)
SMALLEST = WorkloadSize(jobs=4, workers=2, lost_pods=2, deleted_jobs=1, steady_jobs=4, steady_s=1.0, turns=1)


def cluster() -> Iterator[Raw]:
    """Yield the namespace and the nodes, whose kubelets kwok simulates."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    yield from gpu_nodes(NODES)


def jobs(count: int, workers: int) -> list[Raw]:
    """Build jobs of workers alone. Their templates name a node, so that no scheduler runs beside what is measured."""
    return [_job(f"job-{at:05d}", workers, f"node-{at % NODES:03d}") for at in range(count)]


def _job(name: str, workers: int, node: str) -> Raw:
    """Return a PyTorchJob with `workers` workers, all on one node."""
    asks = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    container = {
        "name": "pytorch",
        "image": "registry.example.com/train:1",
        "command": ["torchrun", "train.py"],
        "resources": {"limits": asks},
    }
    template = {"metadata": {"labels": {"team": "bench"}}, "spec": {"nodeName": node, "containers": [container]}}
    role = {"replicas": workers, "restartPolicy": "OnFailure", "template": template}
    meta = {"name": name, "namespace": NAMESPACE}
    spec = {"pytorchReplicaSpecs": {"Worker": role}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec}
