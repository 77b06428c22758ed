"""What every kind says alike: annotations of ours, the shape of a worker, what we wrote and what a person did since."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from jobs.model import BadJob, Bounds, JobKey, Object, Pause
from kube import labels
from kube.errors import KubeError
from kube.objects import Pod
from kube.shape import PodShape, shape_of

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?$")
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Said:
    """What a job's metadata says, to whom it is no matter what kind it is."""

    key: JobKey
    uid: str
    version: str
    created: str
    notes: Mapping[str, str]
    marks: Mapping[str, str]


def said(raw: Object, kind: str) -> Said:
    """Read the metadata. Raises BadJob."""
    meta = raw.get("metadata")
    if not isinstance(meta, dict) or not meta.get("name"):
        raise BadJob(f"a {kind} without metadata.name")
    return Said(
        JobKey(kind, meta.get("namespace", ""), meta["name"]),
        meta.get("uid", ""),
        meta.get("resourceVersion", ""),
        meta.get("creationTimestamp") or "",
        meta.get("annotations") or {},
        meta.get("labels") or {},
    )


def worker_shape(template: Any, where: str) -> PodShape:
    """The shape of a pod of this template. Raises BadJob."""
    try:
        return shape_of(msgspec.convert({"metadata": {}, "spec": (template or {}).get("spec") or {}}, Pod))
    except (msgspec.ValidationError, KubeError, AttributeError) as error:
        raise BadJob(f"{where}: {error}") from error


def count(value: Any, where: str, least: int = 0) -> int:
    """A whole number of pods. Raises BadJob."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise BadJob(f"{where} is {value!r}: it must be a whole number from {least} to {_MOST}")
    return value


def noted(notes: Mapping[str, str], key: str) -> int | None:
    """A count in an annotation, None when there is none. Raises BadJob."""
    text = notes.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a whole number from 1 to 999999")
    return int(text)


def bounds(notes: Mapping[str, str], least: int, most: int) -> Bounds:
    """The bounds of a job: its own, or those that annotations of ours give. Raises BadJob."""
    low, high = noted(notes, labels.MIN_WORKERS) or least, noted(notes, labels.MAX_WORKERS) or most
    if not 1 <= low <= high:
        raise BadJob(f"the least workers are {low} and the most {high}: 1 <= least <= most is needed")
    return Bounds(low, high)


def wish(notes: Mapping[str, str], replicas: int) -> int | None:
    """The size that a person has set by hand: what stands there and we did not write, or what we remember of it.

    None for a job that nobody has resized since it was made.
    """
    wrote = noted(notes, labels.WROTE_WORKERS)
    if wrote is not None and wrote != replicas and replicas > 0:
        return replicas
    return noted(notes, labels.WISH_WORKERS)


def pause(notes: Mapping[str, str]) -> Pause:
    """Which changes the owner has forbidden. Raises BadJob."""
    text = notes.get(labels.PAUSED, "")
    words = {"": Pause.NONE, "false": Pause.NONE, "true": Pause.BOTH, "grow": Pause.GROW, "shrink": Pause.SHRINK}
    if text not in words:
        raise BadJob(f"annotation {labels.PAUSED} is {text[:40]!r}: it must be true, false, grow or shrink")
    return words[text]


def cooldown_s(notes: Mapping[str, str]) -> float | None:
    """The pause between two changes that the job asks for, as a Go duration or seconds. Raises BadJob."""
    text = notes.get(labels.COOLDOWN) or notes.get(labels.VOLCANO_COOLDOWN)
    if text is None:
        return None
    found = _DURATION.match(text)
    if not text or found is None:
        raise BadJob(f"the cooldown {text[:40]!r} is no duration such as 600s or 10m")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def priority(notes: Mapping[str, str], otherwise: int = 0) -> int:
    """A job's priority: our annotation, 0 to 100, or what its kind says. Raises BadJob."""
    text = notes.get(labels.PRIORITY)
    if text is None:
        return otherwise
    if not re.fullmatch(r"[0-9]{1,3}", text) or int(text) > 100:
        raise BadJob(f"annotation {labels.PRIORITY} is {text[:40]!r}: it must be a whole number from 0 to 100")
    return int(text)


def patch_of(raw: Object, workers: int, person: int | None, spec: Any, most: int | None = None) -> dict[str, Any]:
    """The body of a merge patch that resizes a job: valid for this version of it only.

    person: the wish to remember. most: written down where it stood nowhere but in the size that changes.
    """
    notes = {labels.WROTE_WORKERS: str(workers)}
    if person is not None:
        notes[labels.WISH_WORKERS] = str(person)
    if most is not None:
        notes[labels.MAX_WORKERS] = str(most)
    return {"metadata": {"resourceVersion": raw["metadata"]["resourceVersion"], "annotations": notes}, "spec": spec}
