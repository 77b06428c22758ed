"""RayClusters of KubeRay, ray.io/v1: one group of workers is resized, and a shrink names the pods that leave.

Without names KubeRay deletes any. A replica of numOfHosts pods comes and goes whole. Source: docs/facts/autoscaling.md
5. An operator that makes PodGroups for all clusters (--batch-scheduler) leaves no sign on one that names no queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Life, Object
from turnout.jobs.pod_identity import PodMarks, Said, number
from turnout.jobs.typed_fields import MOST, Part
from turnout.kube import labels

KIND, PATH = "RayCluster", "/apis/ray.io/v1/rayclusters"
HEAD_GROUP = "headgroup"  # what KubeRay calls it on pods
_QUEUE = "volcano.sh/queue-name"
_GANG = (_QUEUE, "ray.io/gang-scheduling-enabled", "ray.io/scheduler-name")


def read(raw: Object) -> Job:
    """Read one. Raises BadJob.

    Its least and most are those of the group, where they are given: KubeRay keeps to them whatever is asked, so
    annotations, which count pods, may only narrow them.
    """
    head = common.head(raw, KIND)
    groups, crown = _groups(head.spec), head.spec.part("headGroupSpec").part("template")
    told: dict[str, Any] = {
        "queue": head.said(labels.KUEUE_QUEUE, _QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        "priority_class": head.marks.get("ray.io/priority-class-name", ""),
        "life": Life.SUSPENDED if head.spec.flag("suspend") else Life.LIVE,
    }
    if not groups:
        why = "it has no group of workers at work"
        return common.job(head, common.Sized(1, 1, 1, crown), role=HEAD_GROUP, refused=why, **told)
    group = groups[_elastic_group(groups)]
    low, replicas, high, hosts = _size(group)
    job = common.job(
        head,
        common.Sized(
            replicas * hosts,
            (low or max(1, replicas)) * hosts,
            (high or max(1, replicas)) * hosts,
            group.part("template"),
            unit=hosts,
        ),
        role=group.text("groupName"),
        beside=((common.worker_shape(crown), 1), *_others(groups, group)),
        refused=_refused(head, groups),
        **told,
    )
    if job.bounds.least < max(1, low) * hosts or (high and job.bounds.most > high * hosts):
        asked = f"annotations ask for {job.bounds.least}..{job.bounds.most} pods"
        raise BadJob(f"{asked}, and {group.where} allows {low * hosts}..{(high or MOST) * hosts}")
    return job


def resize(raw: Object, workers: int) -> Change:
    """Give its group so many pods; which of them go is left to KubeRay."""
    return naming(raw, workers, ())


def naming(raw: Object, workers: int, leaving: tuple[str, ...]) -> Change:
    """Give its group so many pods, and name those that go."""
    head, job = common.head(raw, KIND), read(raw)
    chosen = _groups(head.spec)[_elastic_group(_groups(head.spec))]
    low, _, high, hosts = _size(chosen)
    groups: list[Any] = []
    for each in head.spec.parts("workerGroupSpecs"):
        mine: dict[str, Any] = {"replicas": workers // hosts} if each.where == chosen.where else {}
        if mine and (leaving or each.has("scaleStrategy")):
            mine["scaleStrategy"] = {**each.part("scaleStrategy").value, "workersToDelete": list(leaving)}
        groups.append({**each.value, **mine})
    keeps = (*(() if low else (labels.MIN_WORKERS,)), *(() if high else (labels.MAX_WORKERS,)))
    return common.patch(job, head.notes, PATH, workers, {"workerGroupSpecs": groups}, *keeps)


def _groups(spec: Part) -> list[Part]:
    return [group for group in spec.parts("workerGroupSpecs") if not group.flag("suspend")]


def _size(group: Part) -> tuple[int, int, int, int]:
    """(least, now, most, pods each), in replicas; least and most are 0 where they are not given."""
    low, hosts = group.count("minReplicas", 0), group.count("numOfHosts", 1) or 1
    told = group.value.get("maxReplicas")
    high = 0 if isinstance(told, int) and told > MOST else group.count("maxReplicas", 0)
    asked = max(low, group.count("replicas", low))
    return low, min(asked, high) if high else asked, high, hosts


def _elastic_group(groups: Sequence[Part]) -> int:
    """The group that grows and shrinks: the one called worker, else the last of those with most pods."""
    named = [number for number, each in enumerate(groups) if each.text("groupName") in ("worker", "workers")]
    if named:
        return named[0]
    pods = [_size(each)[1] * _size(each)[3] for each in groups]
    return max(range(len(groups)), key=lambda at: (pods[at], at))


def _others(groups: Sequence[Part], chosen: Part) -> list[tuple[Any, int]]:
    sized = ((each, _size(each)) for each in groups if each is not chosen)
    return [(common.worker_shape(each.part("template")), now * hosts) for each, (_, now, _, hosts) in sized]


def _refused(head: common.Head, groups: Sequence[Part]) -> str:
    spec = head.spec
    if spec.flag("enableInTreeAutoscaling"):
        return "spec.enableInTreeAutoscaling: Ray's own autoscaler resizes it, and two hands on one size fight"
    if head.marks.get("ray.io/originated-from-crd", KIND) != KIND:
        return f"its {head.marks['ray.io/originated-from-crd']} has made it and holds its size"
    by_volcano = any(each.part("template").part("spec").text("schedulerName") == "volcano" for each in groups)
    if by_volcano or any(mark in head.marks for mark in _GANG):
        return "KubeRay's PodGroup needs all replicas: what is lent would become part of its least"
    if len(groups) > 1 and len({each.text("groupName") for each in groups}) < len(groups):
        return "two of its groups have one name: nobody could tell their pods apart"
    if head.marks.get(labels.KUEUE_QUEUE) and head.notes.get(labels.KUEUE_ELASTIC) != "true":
        return f"Kueue holds it and {labels.KUEUE_ELASTIC} is not true: a resize would evict it whole"
    return common.elsewhere(spec, "ray.io/kuberay-operator")


def _role(said: Said, _: str) -> str:
    return said.get("ray.io/group", "")


def _index(said: Said, _: str) -> int:
    """Number a pod by replica and host, as KubeRay labels them since 1.5; else 0: the newest goes first."""
    replica = number(said.get("ray.io/worker-group-replica-index", ""))
    return replica * 1000 + number(said.get("ray.io/replica-host-index", ""))


RAY_CLUSTER = JobKind(KIND, PATH, read, resize, naming=naming, pods=PodMarks(role=_role, index=_index, ordered=True))
