"""Reads from a pod's labels its job, its role and its index there, as each kind of job writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from turnout.kube import labels

Said = Mapping[str, str]  # labels and annotations of a pod
_ROLES = (labels.TRAINING_TYPE, labels.VOLCANO_TASK_SPEC)
_NUMBER = re.compile(r"[0-9]{1,9}")
_INDEXES = (labels.VOLCANO_TASK_INDEX, labels.TRAINING_INDEX, labels.JOB_INDEX)


def role(said: Said, _: str) -> str:
    """Return a pod's role in its job, "" when its labels do not say."""
    return first(said, *_ROLES)


def index(said: Said, name: str) -> int:
    """A pod's number in its job: by its label, else by the end of its name, else 0."""
    tail = name.rpartition("-")[2]
    return number(first(said, *_INDEXES) or tail)


def nobody(_: Said) -> str:
    """The job itself is the owner of its pods."""
    return ""


def first(said: Said, *keys: str) -> str:
    """The first of these that is there, "" for none."""
    return next(filter(None, (said.get(key) for key in keys)), "")


def number(text: str) -> int:
    """A number written on a pod, 0 for what is none."""
    return int(text) if _NUMBER.fullmatch(text) else 0


@dataclass(frozen=True, slots=True)
class PodMarks:
    """How a kind marks its pods, by their labels and annotations and their names.

    job: the name of the job that a pod belongs to, "" where the owner says it. role: what it is there. index: its
    number, of which the controller deletes the highest first. ordered: these numbers have gaps and tell the order only:
    a job's workers are counted through in it, the oldest first among equals, and those that leave last.
    """

    job: Callable[[Said], str] = nobody
    role: Callable[[Said, str], str] = role
    index: Callable[[Said, str], int] = index
    ordered: bool = False


USUAL = PodMarks()
