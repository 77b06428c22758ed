"""The job, the role and the index of a pod, from its labels and name, as each kind of job sets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from turnout.kube import labels

PodValues = Mapping[str, str]  # labels and annotations of a pod
_ROLES = (labels.TRAINING_TYPE, labels.VOLCANO_TASK_SPEC)
_NUMBER = re.compile(r"[0-9]{1,9}")
_INDEXES = (labels.VOLCANO_TASK_INDEX, labels.TRAINING_INDEX, labels.JOB_INDEX)


def role(values: PodValues, _: str) -> str:
    """Return the role of a pod in its job, "" if no label tells it."""
    return first_value(values, *_ROLES)


def index(values: PodValues, name: str) -> int:
    """Return the index of a pod in its job: from a label, else from the end of its name, else 0."""
    tail = name.rpartition("-")[2]
    return number_of(first_value(values, *_INDEXES) or tail)


def no_job_name(_: PodValues) -> str:
    """Return "": the owner of the pod is the job."""
    return ""


def first_value(values: PodValues, *keys: str) -> str:
    """Return the first of these values that is set, "" for none."""
    return next(filter(None, (values.get(key) for key in keys)), "")


def number_of(text: str) -> int:
    """Return the number in a text, 0 if it is not a number."""
    return int(text) if _NUMBER.fullmatch(text) else 0


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """How a kind marks its pods by labels, annotations and names."""

    job: Callable[[PodValues], str] = no_job_name  # the name of the pod's job, "" if its owner is the job
    role: Callable[[PodValues, str], str] = role
    index: Callable[[PodValues, str], int] = index  # the controller deletes the highest first
    index_is_order: bool = False  # the indexes have gaps: only their order counts, ties by age, the oldest first


DEFAULT_IDENTITY = PodIdentity()
