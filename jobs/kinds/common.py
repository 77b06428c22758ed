"""The parts that all kinds of jobs share: metadata, the shape of a worker, and the patch that resizes a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.jobs import annotations as job_annotations
from turnout.jobs.model import BadJob, Change, Job, JobKey, Life, Object, Sizes
from turnout.jobs.typed_fields import Part
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape, shape_of

BOUND_ANNOTATIONS = (labels.MIN_WORKERS, labels.MAX_WORKERS)
SIZE_OWNERS = ("JobSet", "MPIJob", "RayJob", "RayService", "TrainJob")  # owners that restore the sizes of their jobs


@dataclass(frozen=True, slots=True)
class Head:
    """The metadata, spec and status of an object."""

    key: JobKey
    uid: str
    version: str  # the resourceVersion
    created: str  # the creationTimestamp
    notes: Mapping[str, str]  # annotations
    marks: Mapping[str, str]  # labels
    spec: Part
    status: Part
    owner_kind: str = ""  # of its controller
    owner_uid: str = ""  # of its controller
    is_deleted: bool = False  # it has a deletionTimestamp

    def first_value(self, *keys: str) -> str:
        """Return the first of these labels or annotations that is set, "" for none."""
        found = (self.marks.get(key) or self.notes.get(key) for key in keys)
        return next(filter(None, found), "")


@dataclass(frozen=True, slots=True)
class SizeFields:
    """The size and the bounds of a job by its own fields, in pods."""

    replicas: int  # >= 0
    least: int  # >= 1
    most: int  # >= least
    template: Part  # of a worker's pod
    fixed_field: str = ""  # the field that bounds the job, if annotations may only narrow its bounds
    unit: int = 1  # pods that are added or removed together


def head(raw: Object, kind: str) -> Head:
    """Return the metadata, spec and status of an object. Raises BadJob."""
    object_part = Part(raw)
    meta = object_part.part("metadata")
    if not meta.text("name"):
        raise BadJob(f"a {kind} without metadata.name")
    owners = [each for each in meta.parts("ownerReferences") if each.flag("controller")]
    return Head(
        JobKey(kind, meta.text("namespace"), meta.text("name")),
        meta.text("uid"),
        meta.text("resourceVersion"),
        meta.text("creationTimestamp"),
        meta.words("annotations"),
        meta.words("labels"),
        object_part.part("spec"),
        object_part.part("status"),
        owner_kind=owners[0].text("kind") if owners else "",
        owner_uid=owners[0].text("uid") if owners else "",
        is_deleted=bool(meta.text("deletionTimestamp")),
    )


def job(head: Head, sized: SizeFields, queue: str, priority: Any = None, priority_class: str = "", **own: Any) -> Job:
    """Return the job that the fields of its kind and our annotations describe. Raises BadJob.

    priority: 0 to 100, from a field of the kind. own: fields of Job that only this kind sets.
    """
    notes, sizes = head.notes, _sizes(head.notes, sized.unit)
    pause, ends_s = job_annotations.pause(notes)
    pod_notes = sized.template.part("metadata").words("annotations")
    bounds = job_annotations.bounds(notes, sized.least, sized.most, sizes, sized.fixed_field)
    other_pods = sum(count for _, count in own.get("other_roles", ()))
    own["refused"] = own.get("refused") or _owner_refusal(head) or _gang_refusal(pod_notes, bounds.least + other_pods)
    if head.is_deleted:
        own["life"] = Life.DONE  # it waits for nothing, whatever pods it lacks
    return Job(
        head.key,
        head.uid,
        head.version,
        queue=queue,
        replicas=sized.replicas,
        bounds=bounds,
        shape=worker_shape(sized.template),
        order=job_annotations.order(notes, priority),
        created=head.created,
        sizes=sizes,
        wish=job_annotations.manual_size(notes, sized.replicas),
        reapplied_size=job_annotations.reapplied_size(notes, sized.replicas),
        pause=pause,
        pause_ends_s=ends_s,
        cooldown_s=job_annotations.duration_s(notes, labels.COOLDOWN, labels.VOLCANO_COOLDOWN),
        bank=job_annotations.resize_budget(notes),
        curve=job_annotations.curve(notes),
        curve_measured=labels.CURVE not in notes,
        kueue_boosted=labels.KUEUE_BOOST in notes,
        spread=job_annotations.spread(pod_notes),
        priority_class=priority_class or sized.template.part("spec").text("priorityClassName"),
        part_of=head.owner_uid,
        **own,
    )


def worker_shape(template: Part) -> PodShape:
    """Return the shape of a pod of this template. Raises BadJob."""
    spec = template.part("spec").value
    try:
        return shape_of(msgspec.convert({"metadata": {}, "spec": spec}, Pod))
    except (msgspec.ValidationError, KubeError, AttributeError) as error:
        raise BadJob(f"{template.at('spec')}: {error}") from error


def life(head: Head, suspended: bool, final_types: tuple[str, ...]) -> Life:
    """Return a job's state by its conditions. Raises BadJob.

    final_types: the types of conditions that end the job when True.
    """
    conditions = {each.text("type"): each.text("status") for each in head.status.parts("conditions")}
    if any(conditions.get(end) == "True" for end in final_types):
        return Life.DONE
    return Life.SUSPENDED if suspended else Life.LIVE


def managed_elsewhere(part: Part, own: str) -> str:
    """Return why a job that another controller manages must not be resized, "" if none does.

    own: the managedBy value of the job's own controller.
    """
    manager = part.text("managedBy")
    return "" if manager in ("", own) else f"{part.at('managedBy')} is {manager}: its pods are made elsewhere"


def gang_mismatch(part: Part, needed: int, default: str) -> str:
    """Return why a job must not be resized whose gang needs more or fewer pods than its min; "" if they agree.

    part: the object with minAvailable. needed: pods of all roles at the job's min. default: the meaning of its absence.
    """
    if not part.has("minAvailable"):
        return f"{part.at('minAvailable')} is not set, so its gang needs {default}: set it to {needed}"
    floor = part.count("minAvailable", 0)
    if floor == needed:
        return ""
    return f"{part.at('minAvailable')} is {floor} and its least pods are {needed}: they must agree"


def patch(job: Job, notes: Mapping[str, str], plural: str, workers: int, spec: Any, *kept_keys: str) -> Change:
    """Return the merge patch that resizes a job, valid only for this version of it.

    plural: the path of the kind's objects. kept_keys: annotations of the bounds to write, because only the replaced
    size implied them.
    """
    new_annotations = {labels.WROTE_WORKERS: str(workers)}
    if labels.WROTE_WORKERS not in notes and job.replicas > 0:
        new_annotations[labels.SUBMITTED_WORKERS] = str(job.replicas)
    if job.wish is not None:
        new_annotations[labels.WISH_WORKERS] = str(job.wish)
    bound_values = {labels.MIN_WORKERS: str(job.bounds.least), labels.MAX_WORKERS: str(job.bounds.most)}
    new_annotations |= {key: bound_values[key] for key in kept_keys if key not in notes}
    body = {
        "metadata": {"resourceVersion": job.version, "annotations": new_annotations},
        **({"spec": spec} if spec else {}),
    }
    group, _, name = plural.rpartition("/")
    return Change("PATCH", f"{group}/namespaces/{job.key.namespace}/{name}/{job.key.name}", body)


def resize_refused(why: str) -> Callable[[Object, int], Change]:
    """Return a resize function that always raises BadJob, for a kind whose jobs are all refused."""

    def resize(_: Object, workers: int) -> Change:
        raise BadJob(f"not to be given {workers} workers: {why}")

    return resize


def _sizes(notes: Mapping[str, str], unit: int) -> Sizes:
    """Return the sizes that the owner and the kind allow together. Raises BadJob."""
    chosen = job_annotations.sizes(notes)
    if chosen.doubles:
        return Sizes(unit, doubles=True)
    if labels.UNIT in notes and chosen.unit % unit:
        raise BadJob(f"annotation {labels.UNIT} is {chosen.unit}, and {unit} pods come and go together: not a multiple")
    return Sizes(max(unit, chosen.unit))


def _owner_refusal(head: Head) -> str:
    """Return why a job that another object created must not be resized, "" if it may be."""
    return f"its {head.owner_kind} has made it and holds its size" if head.owner_kind in SIZE_OWNERS else ""


def _gang_refusal(pod_notes: Mapping[str, str], least: int) -> str:
    """Return why koordinator's gang does not allow fewer pods than it needs, "" if it does."""
    floor = pod_notes.get(labels.KOORD_MIN, "")
    if re.fullmatch(r"[0-9]{1,7}", floor) is None or int(floor) <= least:
        return ""
    return (
        f"{labels.KOORD_MIN} of its pods is {floor}, more than its least of {least}: what is left could not start anew"
    )
