"""Indexed Jobs of batch/v1: parallelism and completions change together.

Failures from before a resize still count for backoffLimit. Source: docs/facts/autoscaling.md 5 (KEP-3715)
"""

from __future__ import annotations

from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import Change, Job, Object
from turnout.kube import labels

KIND, PATH = "Job", "/apis/batch/v1/jobs"


def read(raw: Object) -> Job:
    """Return the job that a batch/v1 Job describes.

    Without our annotations its parallelism is both its min and its max. Parallelism 0 counts as suspended.
    `refused` says why it must not be resized, such as a Job that is not Indexed; "" if it may. Raises BadJob.
    """
    fields = job_kind.read_head(raw, KIND)
    spec = fields.spec
    size = spec.count("parallelism", 1)
    bound = max(1, size)
    return job_kind.build_job(
        fields,
        job_kind.SizeFields(size, bound, bound, spec.part("template")),
        queue=fields.first_value(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        lifecycle=job_kind.state_by_conditions(fields, spec.flag("suspend") or not size, ("Complete", "Failed")),
        refused=_resize_refusal(fields),
        selector=tuple(sorted(spec.part("selector").text_map("matchLabels").items())),
    )


def resize(raw: Object, workers: int) -> Change:
    """Return the patch that sets parallelism and completions to `workers`. raw: the Job.

    Raises BadJob if it is unreadable.
    """
    size = {"parallelism": workers, "completions": workers}
    return job_kind.resize_patch(
        read(raw), job_kind.read_head(raw, KIND).annotations, PATH, workers, size, *job_kind.BOUND_ANNOTATIONS
    )


def _resize_refusal(fields: job_kind.JobFields) -> str:
    """Return a sentence why the autoscaler must not resize the job; "" if it may."""
    spec = fields.spec
    if spec.text("completionMode") != "Indexed":
        return "spec.completionMode is not Indexed: nobody can choose the pods that leave"
    if spec.count("completions", 0) != spec.count("parallelism", 1):
        return "completions and parallelism differ: only a job of which all indexes run at once can be resized"
    if any(_needs_other_indexes(rule) for rule in spec.part("successPolicy").parts("rules")):
        return "spec.successPolicy names indexes that a smaller job would not have"
    if refusal := job_kind.kueue_refusal(fields):
        return refusal
    return job_kind.manager_refusal(spec.text("managedBy"), "spec.managedBy", "kubernetes.io/job-controller")


def _needs_other_indexes(rule: ObjectPart) -> bool:
    """Return True if a rule's success needs more than index 0."""
    return rule.text("succeededIndexes") != "0" and (
        rule.has("succeededIndexes") or rule.count("succeededCount", 1) > 1
    )


INDEXED_JOB = JobKind(KIND, PATH, read, resize, sizes=("spec.parallelism", "spec.completions"))
