"""MSJobs, mindspore.gitee.com/v1. Only jobs with dynamic workers are resized. Source: docs/facts/job-kinds.md 1.4;
MS-31.

MindSpore's Scheduler waits for its initial number of workers unless `enableDynamicWorker` is set. No field bounds such
a job, so annotations of its owner do.
"""

from __future__ import annotations

from dataclasses import replace

from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Object
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

KIND, PATH = "MSJob", "/apis/mindspore.gitee.com/v1/msjobs"
_ROLES = "spec.msReplicaSpecs"
WHY = "spec.enableDynamicWorker is not true: its Scheduler waits for the number of workers that it started with"


def read(raw: Object) -> Job:
    """Return the job. Raises BadJob."""
    head = common.head(raw, KIND)
    roles = {name.lower(): role for name, role in head.spec.by_name("msReplicaSpecs").items()}  # in any case
    if "worker" not in roles:
        raise BadJob(f"{_ROLES}.Worker is missing")
    worker, run = roles["worker"], head.spec.part("runPolicy")
    replicas = worker.count("replicas", 1, 1)
    gang = run.part("schedulingPolicy")
    job = common.job(
        head,
        common.SizeFields(replicas, replicas, replicas, worker.part("template")),
        queue=gang.text("queue") or head.first_value(labels.QUEUE),
        priority_class=gang.text("priorityClass"),
        role="worker",
        other_roles=tuple(
            (common.worker_shape(role.part("template")), role.count("replicas", 1))
            for name, role in sorted(roles.items())
            if name != "worker"
        ),
        life=common.life(head, run.flag("suspend"), ("Succeeded", "Failed")),
        refused=_refused(head.spec),
    )
    if job.refused or not gang.value:
        return job
    needed = job.bounds.least + sum(count for _, count in job.other_roles)
    return replace(job, refused=common.gang_mismatch(gang, needed, "all replicas"))


def resize(raw: Object, workers: int) -> Change:
    """Return the change to this number of workers. Raises BadJob for a job without dynamic workers."""
    head = common.head(raw, KIND)
    if why := _refused(head.spec):
        raise BadJob(f"not to be given {workers} workers: {why}")
    name = next(name for name in head.spec.by_name("msReplicaSpecs") if name.lower() == "worker")
    size = {"msReplicaSpecs": {name: {"replicas": workers}}}
    return common.patch(read(raw), head.notes, PATH, workers, size, *common.BOUND_ANNOTATIONS)


def _refused(spec: Part) -> str:
    return "" if spec.flag("enableDynamicWorker") else WHY


MS_JOB = JobKind(KIND, PATH, read, resize)
