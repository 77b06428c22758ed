"""Which log of a worker is read: its newest pod's, and the run of the training container there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from turnout.controllers.model import ControlledKind, Object


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a container. begun: it has a log. over: nothing is added to that any more."""

    pod: str
    uid: str
    container: str
    number: int = 0  # of restarts before it
    begun: bool = False
    over: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """The run among all runs of a worker."""
        return self.uid, self.number


def selector(kind: ControlledKind, job: str, rank: int) -> str:
    """Return the labels by which the pods of a rank are listed."""
    return f"{kind.child_labels.job}={job},{kind.child_labels.index}={rank}"


class NoSuchContainer(Exception):
    """A container that a person has named is not in the pod. The message names those that are."""


def newest(kind: ControlledKind, pods: Iterable[Object], container_name: str = "") -> Run | None:
    """Return the newest run among a rank's pods, as they are listed; None where no worker is among them.

    container_name: "" for the container that trains. Raises NoSuchContainer.
    """
    role = kind.child_labels.role
    workers = [each for each in pods if (each["metadata"].get("labels") or {}).get(role) == "worker"]
    if not workers:
        return None
    pod = max(workers, key=_age)
    container = _container(kind, pod, container_name)
    pod_status, meta = pod.get("status") or {}, pod["metadata"]
    status = {each.get("name"): each for each in pod_status.get("containerStatuses") or ()}.get(container) or {}
    state = status.get("state") or {}
    over = "terminated" in state or pod_status.get("phase") in ("Succeeded", "Failed")
    begun = over or "running" in state
    return Run(meta["name"], meta["uid"], container, int(status.get("restartCount") or 0), begun, over)


def _container(kind: ControlledKind, pod: Object, name: str) -> str:
    """Return the named container of a pod; for "" the one that trains, else the first. Raises NoSuchContainer."""
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    if name and name not in names:
        raise NoSuchContainer(f"pod {pod['metadata']['name']} has no container {name!r}; it has {', '.join(names)}")
    return name or (kind.container if kind.container in names else names[0])


def _age(pod: Object) -> tuple[str, bool, Any]:
    meta = pod["metadata"]
    return str(meta.get("creationTimestamp")), "deletionTimestamp" not in meta, meta["name"]
