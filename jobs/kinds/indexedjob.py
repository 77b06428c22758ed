"""Indexed Jobs of batch/v1: parallelism and completions change together. Source: facts/autoscaling.md 5 (KEP-3715)."""

from __future__ import annotations

from typing import Any

from jobs.kinds import common
from jobs.model import Change, Job, JobKind, Life, Object
from kube import labels

KIND, PATH = "Job", "/apis/batch/v1"


def read(raw: Object) -> Job:
    """Read one; without annotations of ours it is as large as it says. Raises BadJob."""
    said, spec = common.said(raw, KIND), raw.get("spec") or {}
    replicas = common.count(spec.get("parallelism", 1), "spec.parallelism")
    bounds = common.bounds(said.notes, max(1, replicas), max(1, replicas))
    marks = said.marks
    queue = marks.get(labels.KUEUE_QUEUE) or said.notes.get(labels.VOLCANO_QUEUE) or said.notes.get(labels.QUEUE)
    return Job(
        said.key,
        said.uid,
        said.version,
        queue=queue or "",
        replicas=replicas,
        bounds=bounds,
        shape=common.worker_shape(spec.get("template"), "spec.template"),
        priority=common.priority(said.notes),
        created=said.created,
        wish=common.wish(said.notes, replicas),
        life=_life(raw),
        pause=common.pause(said.notes),
        cooldown_s=common.cooldown_s(said.notes),
        refused=_refused(raw, spec),
    )


def resize(raw: Object, workers: int) -> Change:
    """Give it so many indexes."""
    job = read(raw)
    body = common.patch_of(raw, workers, job.wish, {"parallelism": workers, "completions": workers})
    return Change("PATCH", f"{PATH}/namespaces/{job.key.namespace}/jobs/{job.key.name}", body)


def _life(raw: Object) -> Life:
    told = {each.get("type"): each.get("status") for each in (raw.get("status") or {}).get("conditions") or ()}
    if told.get("Complete") == "True" or told.get("Failed") == "True":
        return Life.DONE
    return Life.SUSPENDED if (raw.get("spec") or {}).get("suspend") else Life.LIVE


def _refused(raw: Object, spec: Any) -> str:
    meta = raw.get("metadata") or {}
    if spec.get("completionMode") != "Indexed":
        return "spec.completionMode is not Indexed: which pods go is nobody's choice"
    if spec.get("completions") != spec.get("parallelism"):
        return "completions and parallelism differ: only a job of which all indexes run at once can be resized"
    kueue = (meta.get("labels") or {}).get(labels.KUEUE_QUEUE)
    if kueue and (meta.get("annotations") or {}).get(labels.KUEUE_ELASTIC) != "true":
        return f"Kueue holds it and {labels.KUEUE_ELASTIC} is not true: a resize would evict it whole"
    return ""


INDEXED_JOB = JobKind(KIND, f"{PATH}/jobs", read, resize)
