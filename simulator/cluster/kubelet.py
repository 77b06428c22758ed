"""The life of a pod as a table: bound, pulling, running, ended, terminating. It gives the next state, time and status.

This kubelet runs nothing: only time changes the state of a pod. Annotations on a pod say how long it runs and how it
ends.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

Object = dict[str, Any]

# Annotations of a pod.
RUNS_FOR = "local.turnout.dev/runs-for"  # seconds; absent: until it is deleted
EXIT_CODE = "local.turnout.dev/exit-code"  # absent: 0
IGNORES_TERM = "local.turnout.dev/ignores-sigterm"  # "true": it runs until its grace period is over


class PodState(Enum):
    """The state of a bound pod."""

    BOUND = "bound"  # no container has started
    PULLING = "pulling"  # its images are pulled
    RUNNING = "running"
    ENDED = "ended"  # all its containers have ended
    TERMINATING = "terminating"  # it has a deletion timestamp
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in seconds."""

    pull_s: float = 0.5  # to pull the images
    stop_s: float = 0.5  # from SIGTERM to the end, for a pod that obeys it
    restart_s: float = 1.0  # from the end of the containers to their restart
    # The second pause before a restart, and the longest, for pods that run as processes.
    backoff_s: tuple[float, float] = (10.0, 300.0)


@dataclass(frozen=True, slots=True)
class NextState:
    """The next state of a pod."""

    after_s: float  # seconds from the begin of its present state
    to: PodState


def state_of(pod: Object) -> PodState:
    """Return the state of a bound pod from its own fields: deletion, phase and container statuses. Never DELETED."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return PodState.TERMINATING
    if status.get("phase") in ("Succeeded", "Failed"):
        return PodState.ENDED
    if not status.get("startTime"):
        return PodState.BOUND
    statuses = status.get("containerStatuses") or ()
    if statuses and all("terminated" in (each.get("state") or {}) for each in statuses):
        return PodState.ENDED
    return PodState.RUNNING if status.get("phase") == "Running" else PodState.PULLING


def next_state(pod: Object, pace: Pace) -> NextState | None:
    """Return the state that a pod enters next by itself, and after how long. None if it stays until something changes
    it.

    A pod whose restart policy restarts it goes from ENDED to RUNNING again. pace: how long each state lasts.
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
        case PodState.TERMINATING:
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            ignores_sigterm = (pod["metadata"].get("annotations") or {}).get(IGNORES_TERM) == "true"
            return NextState(grace_s if ignores_sigterm else min(grace_s, pace.stop_s), PodState.DELETED)
    return None


def missing_image(pod: Object, images: Collection[str] | None) -> str:
    """Return the first image of the pod, init containers first, that is not in `images`; "" if all are.

    images: those that exist, None for all images.
    """
    if images is None:
        return ""
    spec = pod["spec"]
    wanted_images = [each.get("image", "") for each in (*(spec.get("initContainers") or ()), *spec["containers"])]
    return next((image for image in wanted_images if image not in images), "")


def pull_failure_status(pod: Object, image: str, stamp: str, host_ip: str = "") -> Object:
    """Return the status of a pod whose image cannot be pulled, as a strategic merge patch. stamp: now, RFC 3339.

    image: its name. host_ip: of the node.
    """
    waiting = {"waiting": {"reason": "ErrImagePull", "message": f'failed to pull image "{image}": not found'}}
    status = status_in(pod, PodState.PULLING, stamp, host_ip=host_ip)
    containers = [_container_status(each, False, 0, waiting) for each in pod["spec"]["containers"]]
    return status | {"containerStatuses": containers}


def exit_code(pod: Object) -> int:
    """Return the exit code that a pod's containers are to end with; 0 without the annotation EXIT_CODE, or if it is no
    finite number.
    """
    return int(_number(pod, EXIT_CODE) or 0)


def status_in(pod: Object, to: PodState, stamp: str, pod_ip: str = "", host_ip: str = "", code: int = 0) -> Object:
    """Return the change of status when a pod enters a state, as a strategic merge patch.

    to: PULLING, RUNNING or ENDED. stamp: now, RFC 3339. pod_ip: of the pod, used for RUNNING. host_ip: of its node,
    used for PULLING. code: exit code, used for ENDED; a pod that its policy restarts stays Running. Raises ValueError
    for another state.
    """
    match to:
        case PodState.PULLING:
            return {
                "phase": "Pending",
                "startTime": stamp,
                "hostIP": host_ip,
                "conditions": _conditions(stamp, ready=False),
                "containerStatuses": [_waiting_status(each) for each in pod["spec"]["containers"]],
            }
        case PodState.RUNNING:
            return {
                "phase": "Running",
                "podIP": pod_ip,
                "podIPs": [{"ip": pod_ip}],
                "conditions": _conditions(stamp, ready=True),
                "containerStatuses": [_running_status(pod, each, stamp) for each in pod["spec"]["containers"]],
            }
        case PodState.ENDED:
            restarts = _restarts(pod, code)
            return {
                "phase": "Running" if restarts else "Failed" if code else "Succeeded",
                "conditions": _conditions(stamp, ready=False, why="" if restarts else "PodCompleted"),
                "containerStatuses": [_terminated_status(pod, each, stamp, code) for each in pod["spec"]["containers"]],
            }
    raise ValueError(f"no status goes with {to.value}")


def _restarts(pod: Object, code: int) -> bool:
    """Return True if a pod's restart policy restarts its containers after this exit code."""
    policy = pod["spec"].get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _number(pod: Object, annotation: str) -> float | None:
    """Return the number in a pod's annotation; None if it is missing or no finite number."""
    text = (pod["metadata"].get("annotations") or {}).get(annotation)
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _conditions(stamp: str, ready: bool, why: str = "") -> list[Object]:
    """Return the conditions of a pod that has started.

    stamp: now, RFC 3339. ready: of the conditions Ready and ContainersReady. why: reason of the False ones, "" for
    none.
    """
    states = {"PodReadyToStartContainers": True, "Initialized": True, "Ready": ready, "ContainersReady": ready}
    reason = {"reason": why} if why else {}
    return [
        {"type": kind, "status": "True" if is_true else "False", "lastProbeTime": None, "lastTransitionTime": stamp}
        | (reason if not is_true else {})
        for kind, is_true in states.items()
    ]


def _status_before(pod: Object, name: str) -> Object:
    """Return the present status of the container of this name; {} without one."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each["name"] == name), {})


def _container_status(container: Object, ready: bool, restarts: int, state: Object) -> Object:
    """Return the status of a container. ready: also its `started`. restarts: how often it was restarted.

    state: {"waiting", "running" or "terminated": its fields}.
    """
    image = container.get("image", "")
    status = {"name": container["name"], "image": image, "imageID": image, "ready": ready, "started": ready}
    return {**status, "restartCount": restarts, "state": state}


def _waiting_status(container: Object) -> Object:
    """Return the status of a container that has not started yet."""
    return _container_status(container, False, 0, {"waiting": {"reason": "ContainerCreating"}})


def _running_status(pod: Object, container: Object, stamp: str) -> Object:
    """Return the status of a container that starts to run. stamp: now, RFC 3339.

    If it has ended before, that end becomes lastState and counts as a restart.
    """
    before = _status_before(pod, container["name"])
    terminated = (before.get("state") or {}).get("terminated")
    restarts = before.get("restartCount", 0) + (1 if terminated else 0)
    status = _container_status(container, True, restarts, {"running": {"startedAt": stamp}})
    return status | ({"lastState": {"terminated": terminated}} if terminated else {})


def _terminated_status(pod: Object, container: Object, stamp: str, code: int) -> Object:
    """Return the status of a container that ends now. stamp: now, RFC 3339. code: its exit code."""
    before = _status_before(pod, container["name"])
    started_at = ((before.get("state") or {}).get("running") or {}).get("startedAt", stamp)
    terminated = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "startedAt": started_at,
        "finishedAt": stamp,
    }
    return _container_status(container, False, before.get("restartCount", 0), {"terminated": terminated})
