"""Chooses the log of a worker to read: the newest pod's, and there the last run of the training container."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from turnout.controllers.model import ControlledKind, Object


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a container."""

    pod: str  # its name
    uid: str  # of the pod
    container: str
    number: int = 0  # of restarts before it
    begun: bool = False  # it has a log
    over: bool = False  # its log is complete

    @property
    def key(self) -> tuple[str, int]:
        """What tells this run from all other runs of a worker: (uid of the pod, restarts before it)."""
        return self.uid, self.number


def selector(kind: ControlledKind, job: str, rank: int) -> str:
    """Return the label selector of a rank's pods. job: the name of the job. rank: index of the worker in its role."""
    return f"{kind.children.label_keys.job}={job},{kind.children.label_keys.index}={rank}"


class NoSuchContainer(Exception):
    """The pod has no container of the given name. The message lists its containers."""


def newest(kind: ControlledKind, pods: Iterable[Object], container_name: str = "") -> Run | None:
    """Return the newest run among the pods of a rank; None if there is no worker among them.

    The newest pod counts. container_name: "" for the training container, or the pod's first one if it has none of that
    name. Raises NoSuchContainer if the newest pod has no container of the given name.
    """
    role = kind.children.label_keys.role
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
    """Return the name of the container: `name`, or for "" the training container, else the first.

    Raises NoSuchContainer if the pod has no container `name`.
    """
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    if name and name not in names:
        raise NoSuchContainer(f"pod {pod['metadata']['name']} has no container {name!r}; it has {', '.join(names)}")
    return name or (kind.container if kind.container in names else names[0])


def _age(pod: Object) -> tuple[str, bool, Any]:
    meta = pod["metadata"]
    return str(meta.get("creationTimestamp")), "deletionTimestamp" not in meta, meta["name"]
