"""PyTorchJobs of training-operator v1. Source: facts/autoscaling.md 5; PE-19, PE-49, VE-23, VE-24."""

from __future__ import annotations

from typing import Any

from jobs.kinds import common
from jobs.model import BadJob, Change, Job, JobKind, Life, Object
from kube import labels

KIND, PATH = "PyTorchJob", "/apis/kubeflow.org/v1"
_ENDS = ("Succeeded", "Failed")


def read(raw: Object) -> Job:
    """Read one. Raises BadJob."""
    said, spec = common.said(raw, KIND), raw.get("spec") or {}
    roles = spec.get("pytorchReplicaSpecs") or {}
    worker = roles.get("Worker")
    if not isinstance(worker, dict):
        raise BadJob("spec.pytorchReplicaSpecs.Worker is missing")
    replicas = common.count(worker.get("replicas", 1), "spec.pytorchReplicaSpecs.Worker.replicas", 1)
    policy = spec.get("elasticPolicy") or {}
    least, most = (
        policy.get(long) or policy.get(short) or replicas
        for long, short in (("minReplicas", "min"), ("maxReplicas", "max"))
    )
    where = "spec.elasticPolicy"
    own = common.count(least, f"{where}.minReplicas", 1), common.count(most, f"{where}.maxReplicas", 1)
    run = spec.get("runPolicy") or {}
    gang = run.get("schedulingPolicy") or {}
    bounds = common.bounds(said.notes, *own)
    master = roles.get("Master")
    return Job(
        said.key,
        said.uid,
        said.version,
        queue=gang.get("queue") or said.marks.get(labels.KUEUE_QUEUE) or said.notes.get(labels.QUEUE) or "",
        replicas=replicas,
        bounds=bounds,
        shape=common.worker_shape(worker.get("template"), "spec.pytorchReplicaSpecs.Worker.template"),
        priority=common.priority(said.notes),
        created=said.created,
        role="worker",
        wish=common.wish(said.notes, replicas),
        beside=_beside(master),
        life=_life(raw, run),
        pause=common.pause(said.notes),
        cooldown_s=common.cooldown_s(said.notes),
        refused=_refused(policy, gang, bounds.least, bool(master)),
    )


def resize(raw: Object, workers: int) -> Change:
    """Give it so many workers."""
    job = read(raw)
    body = common.patch_of(raw, workers, job.wish, {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}})
    return Change("PATCH", f"{PATH}/namespaces/{job.key.namespace}/pytorchjobs/{job.key.name}", body)


def _beside(master: Any) -> tuple[Any, ...]:
    if not isinstance(master, dict):
        return ()
    return ((common.worker_shape(master.get("template"), "Master.template"), master.get("replicas", 1)),)


def _life(raw: Object, run: Any) -> Life:
    told = {each.get("type"): each.get("status") for each in (raw.get("status") or {}).get("conditions") or ()}
    if any(told.get(end) == "True" for end in _ENDS):
        return Life.DONE
    return Life.SUSPENDED if run.get("suspend") else Life.LIVE


def _refused(policy: Any, gang: Any, least: int, has_master: bool) -> str:
    if policy.get("metrics"):
        return "spec.elasticPolicy.metrics: its own HPA resizes it, and two hands on one size fight"
    if has_master and policy:
        return "an elastic job with a Master: rank 0 is then no worker, and the Master's size is fixed"
    if gang and gang.get("minAvailable") not in (None, least):
        return f"schedulingPolicy.minAvailable is {gang['minAvailable']} and the least workers {least}: they must agree"
    if gang and gang.get("minAvailable") is None:
        return "schedulingPolicy.minAvailable is not set, so its gang needs all replicas: set it to the least workers"
    return ""


PYTORCH_JOB = JobKind(KIND, f"{PATH}/pytorchjobs", read, resize)
