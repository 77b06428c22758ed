"""LeaderWorkerSets: groups of one leader and its workers. Only whole groups are added or removed, the highest first.

A worker is a pod, also a leader that requests the same resources. Sizes are multiples of the workers of one group.
Source: docs/facts/autoscaling.md 5.
"""

from __future__ import annotations

from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.job_kind import JobKind, PodIdentity, PodValues, number_of
from turnout.jobs.model import BadJob, Change, Job, Object
from turnout.kube import labels

KIND, PATH = "LeaderWorkerSet", "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"
_LABEL_PREFIX = "leaderworkerset.sigs.k8s.io"


def read(raw: Object) -> Job:
    """Return the job that a LeaderWorkerSet describes. Raises BadJob.

    Its workers are all pods of its groups. If the leaders request other resources, they are not workers but another
    role, and the job cannot be resized. Sizes count pods, and are multiples of the workers of one group. Without our
    annotations its size is both its min and its max.
    """
    fields = job_kind.read_head(raw, KIND)
    template_part = fields.spec.part("leaderWorkerTemplate")
    if not template_part.has("workerTemplate"):
        raise BadJob(f"{template_part.at('workerTemplate')} is missing")
    groups, size = fields.spec.count("replicas", 1), template_part.count("size", 1, 1)
    template = template_part.part("workerTemplate")
    leader = job_kind.worker_shape(
        template_part.part("leaderTemplate" if template_part.has("leaderTemplate") else "workerTemplate")
    )
    leader_differs = size > 1 and leader != job_kind.worker_shape(template)
    if size == 1 and template_part.has("leaderTemplate"):
        template = template_part.part("leaderTemplate")  # groups of a leader alone
    workers = size - 1 if leader_differs else size
    declared_workers = max(1, groups) * workers
    return job_kind.build_job(
        fields,
        job_kind.SizeFields(groups * workers, declared_workers, declared_workers, template, unit=workers),
        queue=fields.first_value(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        role="worker" if leader_differs else "",
        other_roles=((leader, groups),) if leader_differs and groups else (),
        refused=_resize_refusal(fields, leader_differs),
    )


def resize(raw: Object, workers: int) -> Change:
    """Return the patch that sets the number of groups, for this number of pods. Raises BadJob.

    raw: the LeaderWorkerSet, whose leaders request the resources of its workers. workers: pods, a multiple of the group
    size; of another number the part that fills no group is dropped.
    """
    fields, job = job_kind.read_head(raw, KIND), read(raw)
    groups = workers // fields.spec.part("leaderWorkerTemplate").count("size", 1, 1)
    return job_kind.resize_patch(
        job, fields.annotations, PATH, workers, {"replicas": groups}, *job_kind.BOUND_ANNOTATIONS
    )


def _resize_refusal(fields: job_kind.JobFields, leader_differs: bool) -> str:
    """Return a sentence why the autoscaler must not resize a LeaderWorkerSet; "" if it may.

    leader_differs: leaders request other resources than workers.
    """
    if leader_differs:
        return "its leaders request other resources than its workers, so the pods of a group are not equal"
    if fields.spec.part("rolloutStrategy").part("rollingUpdateConfiguration").count("partition", 0) > 0:
        return "its rollout stands at a partition: groups of two revisions run, and a new size would move it"
    if fields.labels.get(labels.KUEUE_QUEUE):
        return "Kueue holds it, and resizes no LeaderWorkerSet in place: it would evict the whole job"
    return ""


def _job(values: PodValues) -> str:
    """Return the name of a pod's LeaderWorkerSet by its label, because StatefulSets own the pods; "" for others."""
    return values.get(f"{_LABEL_PREFIX}/name", "")


def _role(values: PodValues, _: str) -> str:
    """Return "leader" for the first pod of a group, else "worker"."""
    return "leader" if values.get(f"{_LABEL_PREFIX}/worker-index") == "0" else "worker"


def _index(values: PodValues, _: str) -> int:
    """Return the index of a pod over all groups, 0 without labels."""
    group = number_of(values.get(f"{_LABEL_PREFIX}/group-index", ""))
    worker = number_of(values.get(f"{_LABEL_PREFIX}/worker-index", ""))
    return group * number_of(values.get(f"{_LABEL_PREFIX}/size", "")) + worker


LEADER_WORKER_SET = JobKind(
    KIND, PATH, read, resize, pods=PodIdentity(job=_job, role=_role, index=_index), sizes=("spec.replicas",)
)
