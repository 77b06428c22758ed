"""The life of a pod as a table: bound, pulling, running, ended, leaving. It gives the next state, its time and status.

This kubelet runs nothing: time alone moves a pod on. Annotations on a pod say how long it runs and how it ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

Object = dict[str, Any]

RUNS_FOR = "local.turnout.dev/runs-for"  # seconds; absent: until it is deleted
EXIT_CODE = "local.turnout.dev/exit-code"  # absent: 0
IGNORES_TERM = "local.turnout.dev/ignores-sigterm"  # "true": it takes its whole grace


class PodState(Enum):
    """The state of a bound pod."""

    BOUND = "bound"
    PULLING = "pulling"
    RUNNING = "running"
    ENDED = "ended"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in seconds."""

    pull_s: float = 0.5
    stop_s: float = 0.5  # from SIGTERM to the end, for a pod that obeys it
    restart_s: float = 1.0
    # of pods that are processes: back-off: the second pause before a restart, and the longest
    backoff_s: tuple[float, float] = (10.0, 300.0)


@dataclass(frozen=True, slots=True)
class NextState:
    """The next state of a pod, and how many seconds after its present state it comes."""

    after_s: float
    to: PodState


def state_of(pod: Object) -> PodState:
    """Return the state of a pod from its own fields."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return PodState.LEAVING
    if status.get("phase") in ("Succeeded", "Failed"):
        return PodState.ENDED
    if not status.get("startTime"):
        return PodState.BOUND
    statuses = status.get("containerStatuses") or ()
    if statuses and all("terminated" in (each.get("state") or {}) for each in statuses):
        return PodState.ENDED
    return PodState.RUNNING if status.get("phase") == "Running" else PodState.PULLING


def next_state(pod: Object, pace: Pace) -> NextState | None:
    """Return the state that a pod enters next by itself, and after how many seconds.

    None if it stays as it is until something else changes it. pace: how long each state lasts.
    """
    match state_of(pod):
        case PodState.BOUND:
            return NextState(0.0, PodState.PULLING)
        case PodState.PULLING:
            return NextState(pace.pull_s, PodState.RUNNING)
        case PodState.RUNNING:
            runs_s = _number(pod, RUNS_FOR)
            return None if runs_s is None else NextState(runs_s, PodState.ENDED)
        case PodState.ENDED if (pod.get("status") or {}).get("phase") == "Running":
            return NextState(pace.restart_s, PodState.RUNNING)  # by its restart policy
        case PodState.LEAVING:
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            stubborn = (pod["metadata"].get("annotations") or {}).get(IGNORES_TERM) == "true"
            return NextState(grace_s if stubborn else min(grace_s, pace.stop_s), PodState.GONE)
    return None


def missing_image(pod: Object, images: Collection[str] | None) -> str:
    """Return the first image of the pod that the registry does not have; "" if it has all of them.

    images: the images that can be pulled; None for any.
    """
    if images is None:
        return ""
    spec = pod["spec"]
    wanted_images = [each.get("image", "") for each in (*(spec.get("initContainers") or ()), *spec["containers"])]
    return next((image for image in wanted_images if image not in images), "")


def pull_failed(pod: Object, image: str, stamp: str, host_ip: str = "") -> Object:
    """Return the status of a pod whose image cannot be pulled, as a strategic merge patch."""
    waiting = {"waiting": {"reason": "ErrImagePull", "message": f'failed to pull image "{image}": not found'}}
    status = status_in(pod, PodState.PULLING, stamp, host_ip=host_ip)
    containers = [_container(each, False, 0, waiting) for each in pod["spec"]["containers"]]
    return status | {"containerStatuses": containers}


def exit_code(pod: Object) -> int:
    """Return the exit code of the pod's containers."""
    return int(_number(pod, EXIT_CODE) or 0)


def status_in(pod: Object, to: PodState, stamp: str, pod_ip: str = "", host_ip: str = "", code: int = 0) -> Object:
    """Return the change of status for a state, as a strategic merge patch.

    stamp: the time as RFC 3339.
    """
    match to:
        case PodState.PULLING:
            return {
                "phase": "Pending",
                "startTime": stamp,
                "hostIP": host_ip,
                "conditions": _conditions(stamp, ready=False),
                "containerStatuses": [_waiting(each) for each in pod["spec"]["containers"]],
            }
        case PodState.RUNNING:
            return {
                "phase": "Running",
                "podIP": pod_ip,
                "podIPs": [{"ip": pod_ip}],
                "conditions": _conditions(stamp, ready=True),
                "containerStatuses": [_running(pod, each, stamp) for each in pod["spec"]["containers"]],
            }
        case PodState.ENDED:
            restarts = _restarts(pod, code)
            return {
                "phase": "Running" if restarts else "Failed" if code else "Succeeded",
                "conditions": _conditions(stamp, ready=False, why="" if restarts else "PodCompleted"),
                "containerStatuses": [_ended(pod, each, stamp, code) for each in pod["spec"]["containers"]],
            }
    raise ValueError(f"no status goes with {to.value}")


def _restarts(pod: Object, code: int) -> bool:
    policy = pod["spec"].get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _number(pod: Object, annotation: str) -> float | None:
    """Return the number in a pod's annotation; None if it is missing or no number."""
    text = (pod["metadata"].get("annotations") or {}).get(annotation)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _conditions(stamp: str, ready: bool, why: str = "") -> list[Object]:
    """Return the conditions of a pod that has started.

    stamp: time of the change, RFC 3339. why: reason of those that are False.
    """
    states = {"PodReadyToStartContainers": True, "Initialized": True, "Ready": ready, "ContainersReady": ready}
    reason = {"reason": why} if why else {}
    return [
        {"type": kind, "status": "True" if holds else "False", "lastProbeTime": None, "lastTransitionTime": stamp}
        | (reason if not holds else {})
        for kind, holds in states.items()
    ]


def _before(pod: Object, name: str) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each["name"] == name), {})


def _container(container: Object, ready: bool, restarts: int, state: Object) -> Object:
    image = container.get("image", "")
    status = {"name": container["name"], "image": image, "imageID": image, "ready": ready, "started": ready}
    return {**status, "restartCount": restarts, "state": state}


def _waiting(container: Object) -> Object:
    return _container(container, False, 0, {"waiting": {"reason": "ContainerCreating"}})


def _running(pod: Object, container: Object, stamp: str) -> Object:
    """Return the status of a container that runs.

    A preceding end becomes lastState and counts as a restart. stamp: its start, RFC 3339.
    """
    before = _before(pod, container["name"])
    ended = (before.get("state") or {}).get("terminated")
    restarts = before.get("restartCount", 0) + (1 if ended else 0)
    shown = _container(container, True, restarts, {"running": {"startedAt": stamp}})
    return shown | ({"lastState": {"terminated": ended}} if ended else {})


def _ended(pod: Object, container: Object, stamp: str, code: int) -> Object:
    """Return the status of a container that has ended. stamp: its end, RFC 3339. code: exit code."""
    before = _before(pod, container["name"])
    began = ((before.get("state") or {}).get("running") or {}).get("startedAt", stamp)
    ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": began, "finishedAt": stamp}
    return _container(container, False, before.get("restartCount", 0), {"terminated": ended})
