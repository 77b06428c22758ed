"""Write what a kubelet reports of a pod: a strategic merge patch of its status, made from its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.kube.times import rfc3339
from turnout.simulator.processes.pod_lifecycle import (
    Container,
    ContainerEnd,
    ContainerState,
    Part,
    PodLifecycle,
    initialized,
    phase,
    ready,
)

Object = dict[str, Any]


def status_of(pod: Object, lifecycle: PodLifecycle, now_s: float, pod_ip: str, host_ip: str) -> Object:
    """Return the whole status as a patch. Conditions that do not belong to a kubelet stay.

    now_s: the time of a condition that changes.
    """
    images = {each["name"]: each.get("image", "") for each in _containers(pod)}
    pod_phase = phase(lifecycle)
    began = (pod.get("status") or {}).get("startTime") or rfc3339(now_s)
    done = pod_phase in ("Succeeded", "Failed")
    status: Object = {
        "phase": pod_phase,
        "startTime": began,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}] if host_ip else [],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "conditions": _conditions(pod, lifecycle, now_s, done),
        "containerStatuses": [_shown(each, images) for each in lifecycle.of(Part.MAIN)],
    }
    if first := [_shown(each, images) for each in lifecycle.of(Part.INIT, Part.SIDECAR)]:
        status["initContainerStatuses"] = first
    return status


def _containers(pod: Object) -> list[Object]:
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def _conditions(pod: Object, lifecycle: PodLifecycle, now_s: float, done: bool) -> list[Object]:
    holds = ready(lifecycle)
    states = {
        "PodReadyToStartContainers": not done,
        "Initialized": initialized(lifecycle),
        "Ready": holds,
        "ContainersReady": holds,
    }
    before = {each["type"]: each for each in (pod.get("status") or {}).get("conditions") or ()}
    return [_condition(before.get(kind, {}), kind, true, now_s, done) for kind, true in states.items()]


def _condition(before: Mapping[str, Any], kind: str, holds: bool, now_s: float, done: bool) -> Object:
    word = "True" if holds else "False"
    since = before.get("lastTransitionTime") if before.get("status") == word else None
    reason = {} if holds else {"reason": "PodCompleted" if done else "ContainersNotReady"}
    head = {"type": kind, "status": word, "lastProbeTime": None}
    return {**head, "lastTransitionTime": since or rfc3339(now_s), **reason}


def _shown(each: Container, images: Mapping[str, str]) -> Object:
    runs = each.state is ContainerState.RUNNING
    image = images.get(each.name, "")
    done = each.part is Part.INIT and each.end is not None and each.end.code == 0
    shown: Object = {
        "name": each.name,
        "image": image,
        "imageID": image,
        "ready": (runs and each.answers) if each.part is not Part.INIT else done,
        "started": runs,
        "restartCount": each.restarts,
        "state": _state(each),
    }
    last = each.end if _backs_off(each) else each.last
    return shown | ({"lastState": {"terminated": _ended(last)}} if last else {})


def _backs_off(each: Container) -> bool:
    return each.state is ContainerState.ENDED and each.end is not None and each.not_before_s > each.end.ended_s


def _state(each: Container) -> Object:
    if each.state is ContainerState.RUNNING:
        return {"running": {"startedAt": rfc3339(each.began_s)}}
    if each.state is ContainerState.WAITING:
        return {"waiting": {"reason": each.why} | ({"message": each.message} if each.message else {})}
    if _backs_off(each) and each.end is not None:
        pause_s = each.not_before_s - each.end.ended_s
        message = f"back-off {pause_s:g}s restarting failed container={each.name}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    return {"terminated": _ended(each.end)} if each.end else {}


def _ended(end: ContainerEnd) -> Object:
    terminated: Object = {
        "exitCode": end.code,
        "reason": "Error" if end.code else "Completed",
        "startedAt": rfc3339(end.began_s),
        "finishedAt": rfc3339(end.ended_s),
    }
    return terminated | ({"message": end.message} if end.message else {})
