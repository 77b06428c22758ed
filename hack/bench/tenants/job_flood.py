"""turnout-controller on a real API server: how soon an honest tenant's pods are made beside a flood of jobs.

Beside stands the same flood of jobs that another controller manages: the API server bears them, and ours passes over.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane, free_ports

GREEDY, HONEST, WORKERS = "greedy", "vision", 4
ELSEWHERE = {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}
ROOT = Path(__file__).resolve().parents[3]
_DEFINITION = ROOT / "deploy/crds/pytorchjobs.kubeflow.org.yaml"
_JOBS = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"
_PODS = f"/api/v1/namespaces/{HONEST}/pods"
_WITHIN_S = 120.0
Raw = dict[str, Any]


@dataclass(slots=True)
class FloodMeasurements:
    """The measurements beside a flood of jobs."""

    # For each honest job: from its creation until all its pods existed.
    wait_s: list[float] = field(default_factory=list)


def job(namespace: str, name: str, workers: int, more: Raw | None = None) -> Raw:
    """Return a PyTorchJob that has only workers. more: further fields of its spec."""
    pod = {"containers": [{"name": "pytorch", "image": "example.org/train:1", "command": ["python", "train.py"]}]}
    role = {"replicas": workers, "restartPolicy": "Never", "template": {"spec": pod}}
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "namespace": namespace}}
    return {**head, "spec": {"pytorchReplicaSpecs": {"Worker": role}, **(more or {})}}


def measure_flood(flood: int, honest: int) -> tuple[FloodMeasurements, FloodMeasurements]:
    """Measure how long honest jobs wait for their pods while another tenant floods the cluster with jobs.

    Returns (with a flood of jobs that our controllers handle, with one of jobs that another controller handles). flood:
    number of the attacker's jobs. honest: number of measured jobs. Raises an ExceptionGroup with a TimeoutError if a
    job's pods do not exist after _WITHIN_S.
    """
    return asyncio.run(_measure_on_new_plane(flood, honest))


async def _measure_on_new_plane(flood: int, honest: int) -> tuple[FloodMeasurements, FloodMeasurements]:
    """Measure on a new control plane, which is stopped afterwards. Arguments and result as of `measure_flood`."""
    plane = await asyncio.to_thread(ControlPlane().start)
    try:
        async with plane.api() as api:
            for name in (GREEDY, HONEST, "system"):
                await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            await api.create(yaml.safe_load(await asyncio.to_thread(_DEFINITION.read_text)))
            await asyncio.to_thread(_start, plane)
            baseline = await _measure_during_flood(api, "others", flood, honest, ELSEWHERE)
            results = await _measure_during_flood(api, "own", flood, honest, {})
    finally:
        await asyncio.to_thread(plane.stop)
    return results, baseline


def _start(plane: ControlPlane) -> None:
    """Start our job controllers on the control plane."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "turnout.controllers", "--kinds=PyTorchJob", "--lease=system/turnout-controller"]
    argv += [f"--kubeconfig={plane.kubeconfig}", f"--metrics-bind=127.0.0.1:{port}"]
    plane.start_program("turnout-controller", argv, f"http://127.0.0.1:{port}/readyz")


async def _measure_during_flood(api: Api, name: str, flood: int, honest: int, more: Raw) -> FloodMeasurements:
    """Create honest jobs one after the other, and record for each the seconds until all its pods exist, during a flood.

    name: prefix of the jobs' names. flood: number of the attacker's jobs. more: further fields of their specs.
    """
    results = FloodMeasurements()
    async with asyncio.TaskGroup() as group:
        flooding = group.create_task(_flood(api, name, flood, more))
        for number in range(honest):
            began_s = time.monotonic()
            await api.create(job(HONEST, f"{name}-{number}", WORKERS))
            await api.until(_PODS, partial(_has_all_pods, f"{name}-{number}"), _WITHIN_S)
            results.wait_s.append(time.monotonic() - began_s)
        flooding.cancel()
    return results


async def _flood(api: Api, name: str, count: int, more: Raw) -> None:
    """Create `count` jobs of the greedy tenant and change their annotations in turn, until cancelled.

    more: further fields of their specs.
    """
    await api.create_all([job(GREEDY, f"{name}-{number}", 1, more) for number in range(count)])
    turn = 0
    while True:
        turn += 1
        notes = {"metadata": {"annotations": {"turn": str(turn)}}}
        await api.patch(f"{_JOBS.format(GREEDY)}/{name}-{turn % count}", notes)


def _has_all_pods(name: str, pods: list[Raw]) -> bool:
    """Return True if all WORKERS pods of a job exist. name: of the job. pods: of its namespace."""
    return sum(str(each["metadata"]["name"]).startswith(f"{name}-worker-") for each in pods) == WORKERS
