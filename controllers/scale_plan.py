"""ScalePlans: objects by which DLRover's users, and our autoscaler, resize an ElasticJob.

A plan is carried out once, and its status has the result. Plans that are not marked as manual are DLRover's own notes,
and are left alone. Source: docs/facts/dlrover.md 5.1
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from turnout.controllers import conditions
from turnout.controllers.model import Object
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds.elasticjob import JOB_NAME
from turnout.jobs.kinds.job_kind import MAX_REPLICAS
from turnout.jobs.model import BadJob
from turnout.kube import labels
from turnout.kube.times import rfc3339

DONE, FAILED = "Succeeded", "Failed"  # phases of a plan that was carried out, or refused
TYPE_LABEL, MANUAL = "scale-type", "manual"
_NAME = re.compile(JOB_NAME)
_OTHER_FIELDS = ("createPods", "removePods", "migratePods", "psHosts")


@dataclass(frozen=True, slots=True)
class Scaling:
    """The result of a plan."""

    job: Object | None  # a merge patch of its job, None if the job does not change
    status: Object  # a merge patch of the status of the plan


def owner_of(plan: Object) -> str:
    """Return the name of a plan's job, in the plan's namespace; "" if it names none.

    A text that is no name of an object counts as none, because it would lead elsewhere as a part of a path.
    """
    name = (plan.get("spec") or {}).get("ownerJob")
    return name if isinstance(name, str) and _NAME.fullmatch(name) else ""


def is_pending(plan: Object) -> bool:
    """Return True if a plan is marked as manual and has no result in its status yet."""
    status = plan.get("status") or {}
    labels, spec = plan["metadata"].get("labels") or {}, plan.get("spec") or {}
    manual = labels.get(TYPE_LABEL) == MANUAL or spec.get("manualScaling") is True  # the older spelling
    return manual and status.get("phase") not in (DONE, FAILED)


def superseded_status(plan: Object, newer_plan: str, now_s: float) -> Object:
    """Return the status of a plan that is not carried out, because a newer plan of its job was carried out before.

    newer_plan: the name of that plan. now_s: seconds since 1970, the finish time.
    """
    text = f"{newer_plan[:253]} is a newer plan of {owner_of(plan)}, and was carried out before this plan"
    return _ended_status(FAILED, text, now_s)


def scale_job(plan: Object, job: Object | None, now_s: float) -> Scaling:
    """Return the result of a plan: its job gets the number of workers, or the plan fails with a message.

    job: the ElasticJob that the plan names, None if it does not exist. now_s: seconds since 1970. Raises nothing for an
    invalid plan.
    """
    try:
        workers, note = _read_workers(ObjectPart(plan).part("spec"))
        if job is None:
            raise BadJob(
                f"spec.ownerJob is {(plan.get('spec') or {}).get('ownerJob')!r:.70}: there is no such ElasticJob"
            )
        if conditions.has_ended(conditions.valid_conditions(job.get("status") or {})):
            raise BadJob(f"spec.ownerJob is {owner_of(plan)!r:.70}: that job has ended")
    except BadJob as error:
        return Scaling(None, _ended_status(FAILED, str(error), now_s))
    return Scaling(
        _patch(plan, job, workers), _ended_status(DONE, f"{owner_of(plan)} has {workers} workers{note}", now_s)
    )


def _patch(plan: Object, job: Object, workers: int) -> dict[str, Any] | None:
    """Return the patch of the job: its size, and an annotation for the autoscaler; None if nothing changes.

    The annotation is written if the job names this plan as its newest plan.
    """
    present = ObjectPart(job).part("spec").part("replicaSpecs").part("worker").value.get("replicas")
    size = {} if present == workers else {"spec": {"replicaSpecs": {"worker": {"replicas": workers}}}}
    name, annotations = plan["metadata"].get("name"), job["metadata"].get("annotations") or {}
    if not name or annotations.get(labels.SCALE_PLAN) != name or annotations.get(labels.SCALED_PLAN) == name:
        return size or None
    return {"metadata": {"annotations": {labels.SCALED_PLAN: name}}, **size}


def _read_workers(spec: ObjectPart) -> tuple[int, str]:
    """Return the number of workers that a plan requests, and a note for the status message.

    The note is "" unless the plan also states resources, which are ignored. Raises BadJob if the plan requests anything
    else, or more than MAX_REPLICAS workers.
    """
    for name in _OTHER_FIELDS:
        if spec.value.get(name):
            raise BadJob(f"{spec.at(name)} is not carried out: pods follow from the number of workers")
    roles = spec.parts_by_name("replicaResourceSpecs")
    if set(roles) != {"worker"}:
        raise BadJob(f"{spec.at('replicaResourceSpecs')} must name worker, and no other role")
    worker = roles["worker"]
    if not worker.has("replicas"):
        raise BadJob(f"{worker.at('replicas')} is missing")
    if (count := worker.count("replicas", 0)) > MAX_REPLICAS:
        raise BadJob(f"{worker.at('replicas')} is {count}: at most {MAX_REPLICAS} are made")
    return count, "; the resources of the plan are ignored, the pod template decides" if worker.value.get(
        "resource"
    ) else ""


def _ended_status(phase: str, text: str, now_s: float) -> dict[str, Any]:
    """Return the status of a plan that has ended.

    phase: DONE or FAILED. text: for a person. now_s: seconds since 1970, the finish time.
    """
    return {"phase": phase, "message": text, "finishTime": rfc3339(now_s)}
