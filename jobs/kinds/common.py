"""Reads what every kind of job has: its metadata, the shape of a worker, and the body of a patch that resizes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.jobs import annotations as said_in
from turnout.jobs.model import BadJob, Change, Job, JobKey, Life, Object, Sizes
from turnout.jobs.typed_fields import Part
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape, shape_of

BOTH = (labels.MIN_WORKERS, labels.MAX_WORKERS)
SIZE_OWNERS = ("JobSet", "MPIJob", "RayJob", "RayService", "TrainJob")  # which hold the sizes of what they make


@dataclass(frozen=True, slots=True)
class Head:
    """The metadata, spec and status of an object. maker, part_of: the kind and uid of its controller.

    going: it has been told to go.
    """

    key: JobKey
    uid: str
    version: str
    created: str
    notes: Mapping[str, str]
    marks: Mapping[str, str]
    spec: Part
    status: Part
    maker: str = ""
    part_of: str = ""
    going: bool = False

    def said(self, *keys: str) -> str:
        """The first of these labels or annotations that is there, "" for none."""
        found = (self.marks.get(key) or self.notes.get(key) for key in keys)
        return next(filter(None, found), "")


@dataclass(frozen=True, slots=True)
class Sized:
    """How large a job is and may be by its own fields, in pods. template: of a worker's pod.

    fixed: the field that bounds it, when annotations may only narrow that. unit: of pods that come and go together.
    """

    replicas: int
    least: int
    most: int
    template: Part
    fixed: str = ""
    unit: int = 1


def head(raw: Object, kind: str) -> Head:
    """Read the metadata. Raises BadJob."""
    whole = Part(raw)
    meta = whole.part("metadata")
    if not meta.text("name"):
        raise BadJob(f"a {kind} without metadata.name")
    makers = [each for each in meta.parts("ownerReferences") if each.flag("controller")]
    return Head(
        JobKey(kind, meta.text("namespace"), meta.text("name")),
        meta.text("uid"),
        meta.text("resourceVersion"),
        meta.text("creationTimestamp"),
        meta.words("annotations"),
        meta.words("labels"),
        whole.part("spec"),
        whole.part("status"),
        maker=makers[0].text("kind") if makers else "",
        part_of=makers[0].text("uid") if makers else "",
        going=bool(meta.text("deletionTimestamp")),
    )


def job(told: Head, sized: Sized, queue: str, priority: Any = None, priority_class: str = "", **own: Any) -> Job:
    """The noun: what its kind says, with what annotations of ours add. own: fields that only its kind knows.

    priority: 0 to 100 by a field of the kind, where it has one. Raises BadJob.
    """
    notes, sizes = told.notes, _sizes(told.notes, sized.unit)
    pause, ends_s = said_in.pause(notes)
    pod_notes = sized.template.part("metadata").words("annotations")
    bounds = said_in.bounds(notes, sized.least, sized.most, sizes, sized.fixed)
    others = sum(count for _, count in own.get("beside", ()))
    own["refused"] = own.get("refused") or _kept(told) or _gang_of(pod_notes, bounds.least + others)
    if told.going:
        own["life"] = Life.DONE  # it waits for nothing, whatever pods it lacks
    return Job(
        told.key,
        told.uid,
        told.version,
        queue=queue,
        replicas=sized.replicas,
        bounds=bounds,
        shape=worker_shape(sized.template),
        order=said_in.order(notes, priority),
        created=told.created,
        sizes=sizes,
        wish=said_in.wish(notes, sized.replicas),
        put_back=said_in.put_back(notes, sized.replicas),
        pause=pause,
        pause_ends_s=ends_s,
        cooldown_s=said_in.duration_s(notes, labels.COOLDOWN, labels.VOLCANO_COOLDOWN),
        bank=said_in.bank(notes),
        curve=said_in.curve(notes),
        learnt=labels.CURVE not in notes,
        lifted=labels.KUEUE_BOOST in notes,
        spread=said_in.spread(pod_notes),
        priority_class=priority_class or sized.template.part("spec").text("priorityClassName"),
        part_of=told.part_of,
        **own,
    )


def worker_shape(template: Part) -> PodShape:
    """The shape of a pod of this template. Raises BadJob."""
    spec = template.part("spec").value
    try:
        return shape_of(msgspec.convert({"metadata": {}, "spec": spec}, Pod))
    except (msgspec.ValidationError, KubeError, AttributeError) as error:
        raise BadJob(f"{template.at('spec')}: {error}") from error


def life(told: Head, suspended: bool, ends: tuple[str, ...]) -> Life:
    """Tell a job's state by its conditions. ends: the types of those that are final when True. Raises BadJob."""
    conditions = {each.text("type"): each.text("status") for each in told.status.parts("conditions")}
    if any(conditions.get(end) == "True" for end in ends):
        return Life.DONE
    return Life.SUSPENDED if suspended else Life.LIVE


def elsewhere(part: Part, own: str) -> str:
    """Why a job that another controller has been given is not ours to resize, "" for one that has not. own: its own."""
    by = part.text("managedBy")
    return "" if by in ("", own) else f"{part.at('managedBy')} is {by}: its pods are made elsewhere"


def gang_differs(part: Part, needed: int, default: str) -> str:
    """Why a gang that does not need just the least pods cannot be resized, "" for one that does.

    part: what holds minAvailable. needed: pods of all roles at the job's least. default: what its absence means.
    """
    if not part.has("minAvailable"):
        return f"{part.at('minAvailable')} is not set, so its gang needs {default}: set it to {needed}"
    floor = part.count("minAvailable", 0)
    if floor == needed:
        return ""
    return f"{part.at('minAvailable')} is {floor} and its least pods are {needed}: they must agree"


def patch(job: Job, notes: Mapping[str, str], plural: str, workers: int, spec: Any, *keeps: str) -> Change:
    """The merge patch that resizes a job, valid for this version of it only. plural: where objects of its kind are.

    keeps: which of the two annotations of its bounds are to be written down, where nothing but its size, which
    changes, says them.
    """
    noted = {labels.WROTE_WORKERS: str(workers)}
    if labels.WROTE_WORKERS not in notes and job.replicas > 0:
        noted[labels.SUBMITTED_WORKERS] = str(job.replicas)
    if job.wish is not None:
        noted[labels.WISH_WORKERS] = str(job.wish)
    said = {labels.MIN_WORKERS: str(job.bounds.least), labels.MAX_WORKERS: str(job.bounds.most)}
    noted |= {key: said[key] for key in keeps if key not in notes}
    body = {"metadata": {"resourceVersion": job.version, "annotations": noted}, **({"spec": spec} if spec else {})}
    group, _, name = plural.rpartition("/")
    return Change("PATCH", f"{group}/namespaces/{job.key.namespace}/{name}/{job.key.name}", body)


def never(why: str) -> Callable[[Object, int], Change]:
    """The resize of a kind of which every job is refused: asked all the same, it is a BadJob."""

    def resize(_: Object, workers: int) -> Change:
        raise BadJob(f"not to be given {workers} workers: {why}")

    return resize


def _sizes(notes: Mapping[str, str], unit: int) -> Sizes:
    """The sizes that its owner and its kind allow together. Raises BadJob."""
    said = said_in.sizes(notes)
    if said.doubles:
        return Sizes(unit, doubles=True)
    if labels.UNIT in notes and said.unit % unit:
        raise BadJob(f"annotation {labels.UNIT} is {said.unit}, and {unit} pods come and go together: not a multiple")
    return Sizes(max(unit, said.unit))


def _kept(told: Head) -> str:
    """Why a job that another object has made is not ours to resize."""
    return f"its {told.maker} has made it and holds its size" if told.maker in SIZE_OWNERS else ""


def _gang_of(pod_notes: Mapping[str, str], least: int) -> str:
    """Why pods that koordinator starts together cannot become fewer than their gang."""
    floor = pod_notes.get(labels.KOORD_MIN, "")
    if re.fullmatch(r"[0-9]{1,7}", floor) is None or int(floor) <= least:
        return ""
    return (
        f"{labels.KOORD_MIN} of its pods is {floor}, more than its least of {least}: what is left could not start anew"
    )
