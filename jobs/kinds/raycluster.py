"""RayClusters of KubeRay, ray.io/v1: one worker group is resized, and a shrink names the pods that leave.

Without names KubeRay deletes any pods. A replica of numOfHosts pods is added or removed as a whole. Source:
docs/facts/autoscaling.md 5. An operator with --batch-scheduler makes PodGroups for all clusters, which cannot be seen
on a cluster without a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnout.jobs.fields import MAX_PODS, ObjectPart
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.job_kind import JobKind, PodIdentity, PodValues, number_of
from turnout.jobs.model import BadJob, Change, Job, JobLifecycle, Object
from turnout.kube import labels

KIND, PATH = "RayCluster", "/apis/ray.io/v1/rayclusters"
HEAD_GROUP = "headgroup"  # what KubeRay calls it on pods
_QUEUE = "volcano.sh/queue-name"
_GANG = (_QUEUE, "ray.io/gang-scheduling-enabled", "ray.io/scheduler-name")


def read(raw: Object) -> Job:
    """Return the job that a RayCluster describes. Its workers are the pods of its elastic group. Raises BadJob.

    The elastic group is the first active worker group named worker or workers, else the last of the largest. The bounds
    are those of the group if it sets them; KubeRay enforces them, so annotations, which count pods, may only narrow
    them: BadJob if they do not. `refused` of the job says why the autoscaler must not resize it, such as Ray's own
    autoscaler or a gang of Volcano; "" if it may. A cluster without active worker groups is a job of its head pod with
    `refused`.
    """
    fields = job_kind.read_head(raw, KIND)
    groups, head_template = _groups(fields.spec), fields.spec.part("headGroupSpec").part("template")
    shared_fields: dict[str, Any] = {
        "queue": fields.first_value(labels.KUEUE_QUEUE, _QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        "priority_class": fields.labels.get("ray.io/priority-class-name", ""),
        "lifecycle": JobLifecycle.SUSPENDED if fields.spec.flag("suspend") else JobLifecycle.LIVE,
    }
    if not groups:
        why = "all its worker groups are suspended, or it has none"
        return job_kind.build_job(
            fields, job_kind.SizeFields(1, 1, 1, head_template), role=HEAD_GROUP, refused=why, **shared_fields
        )
    group = groups[_elastic_group(groups)]
    min_replicas, replicas, max_replicas, hosts = _group_sizes(group)
    job = job_kind.build_job(
        fields,
        job_kind.SizeFields(
            replicas * hosts,
            (min_replicas or max(1, replicas)) * hosts,
            (max_replicas or max(1, replicas)) * hosts,
            group.part("template"),
            unit=hosts,
        ),
        role=group.text("groupName"),
        other_roles=((job_kind.worker_shape(head_template), 1), *_other_groups(groups, group)),
        refused=_resize_refusal(fields, groups),
        **shared_fields,
    )
    if job.bounds.minimum < max(1, min_replicas) * hosts or (
        max_replicas and job.bounds.maximum > max_replicas * hosts
    ):
        wanted_text = f"annotations ask for {job.bounds.minimum}..{job.bounds.maximum} pods"
        raise BadJob(
            f"{wanted_text}, and {group.where} allows {min_replicas * hosts}..{(max_replicas or MAX_PODS) * hosts}"
        )
    return job


def resize(raw: Object, workers: int) -> Change:
    """Return the patch that sets the elastic group to this number of pods; KubeRay chooses the pods that leave.

    raw: the RayCluster, with at least one active group. workers: pods, a multiple of numOfHosts. Raises BadJob.
    """
    return resize_with_names(raw, workers, ())


def resize_with_names(raw: Object, workers: int, leaving: tuple[str, ...]) -> Change:
    """Return the patch that sets the elastic group to this number of pods.

    Raises BadJob for a job that cannot be read, and unless `workers` is a multiple of numOfHosts. raw: the RayCluster,
    with at least one active group. workers: pods, a multiple of numOfHosts. leaving: the names of the pods that KubeRay
    must delete, () for its own choice, which also clears the names of an earlier patch.
    """
    fields, job = job_kind.read_head(raw, KIND), read(raw)
    chosen = _groups(fields.spec)[_elastic_group(_groups(fields.spec))]
    min_replicas, _, max_replicas, hosts = _group_sizes(chosen)
    if workers % hosts:
        raise BadJob(f"{workers} pods are no multiple of its numOfHosts, {hosts}")
    groups: list[Any] = []
    for each in fields.spec.parts("workerGroupSpecs"):
        changed_fields: dict[str, Any] = {"replicas": workers // hosts} if each.where == chosen.where else {}
        if changed_fields and (leaving or each.has("scaleStrategy")):
            changed_fields["scaleStrategy"] = {**each.part("scaleStrategy").value, "workersToDelete": list(leaving)}
        groups.append({**each.value, **changed_fields})
    keeps = (*(() if min_replicas else (labels.MIN_WORKERS,)), *(() if max_replicas else (labels.MAX_WORKERS,)))
    return job_kind.resize_patch(job, fields.annotations, PATH, workers, {"workerGroupSpecs": groups}, *keeps)


def _groups(spec: ObjectPart) -> list[ObjectPart]:
    """Return the worker groups that are not suspended, in their order."""
    return [group for group in spec.parts("workerGroupSpecs") if not group.flag("suspend")]


def _group_sizes(group: ObjectPart) -> tuple[int, int, int, int]:
    """Return (min, current size, max, pods per replica) of a group. The first three are in replicas.

    The min and the max are 0 if absent; a max of 0 is no max, and one above MAX_PODS counts as absent. The current size
    is `replicas`, or the min if absent, raised to the min and then cut to the max. Pods per replica: >= 1.
    """
    min_replicas, hosts = group.count("minReplicas", 0), group.count("numOfHosts", 1) or 1
    raw_max = group.value.get("maxReplicas")
    max_replicas = 0 if isinstance(raw_max, int) and raw_max > MAX_PODS else group.count("maxReplicas", 0)
    replicas = max(min_replicas, group.count("replicas", min_replicas))
    return min_replicas, min(replicas, max_replicas) if max_replicas else replicas, max_replicas, hosts


def _elastic_group(groups: Sequence[ObjectPart]) -> int:
    """Return the index of the group that is resized: the first one named worker or workers, else the last of the
    largest.
    """
    named = [index for index, each in enumerate(groups) if each.text("groupName") in ("worker", "workers")]
    if named:
        return named[0]
    pods = [_group_sizes(each)[1] * _group_sizes(each)[3] for each in groups]
    return max(range(len(groups)), key=lambda index: (pods[index], index))


def _other_groups(groups: Sequence[ObjectPart], chosen: ObjectPart) -> list[tuple[Any, int]]:
    """Return (shape of a pod, number of pods) of each group but the chosen one."""
    sized = ((each, _group_sizes(each)) for each in groups if each is not chosen)
    return [(job_kind.worker_shape(each.part("template")), replicas * hosts) for each, (_, replicas, _, hosts) in sized]


def _resize_refusal(fields: job_kind.JobFields, groups: Sequence[ObjectPart]) -> str:
    """Return a sentence why the autoscaler must not resize the cluster; "" if it may.

    groups: those that are not suspended.
    """
    spec = fields.spec
    if spec.flag("enableInTreeAutoscaling"):
        return (
            "spec.enableInTreeAutoscaling: Ray's own autoscaler resizes it, "
            "and two autoscalers would overwrite each other"
        )
    if fields.labels.get("ray.io/originated-from-crd", KIND) != KIND:
        return f"its {fields.labels['ray.io/originated-from-crd']} created it and sets its size"
    by_volcano = any(each.part("template").part("spec").text("schedulerName") == "volcano" for each in groups)
    if by_volcano or any(mark in fields.labels for mark in _GANG):
        return "KubeRay's PodGroup has a minMember of all replicas, so lent workers would raise the min of the gang"
    if len(groups) > 1 and len({each.text("groupName") for each in groups}) < len(groups):
        return "two of its groups have one name: their pods cannot be told apart"
    if refusal := job_kind.kueue_refusal(fields):
        return refusal
    return job_kind.manager_refusal(spec.text("managedBy"), "spec.managedBy", "ray.io/kuberay-operator")


def _role(values: PodValues, _: str) -> str:
    """Return the name of a pod's group, "" without one."""
    return values.get("ray.io/group", "")


def _index(values: PodValues, _: str) -> int:
    """Return 1000 * replica index + host index of a pod, which orders pods; 0 if KubeRay (before 1.5) has no labels."""
    replica = number_of(values.get("ray.io/worker-group-replica-index", ""))
    return replica * 1000 + number_of(values.get("ray.io/replica-host-index", ""))


RAY_CLUSTER = JobKind(
    KIND,
    PATH,
    read,
    resize,
    resize_with_names=resize_with_names,
    pods=PodIdentity(role=_role, index=_index, index_is_order=True),
    sizes=("spec.workerGroupSpecs[].replicas", "spec.workerGroupSpecs[].scaleStrategy"),
)
